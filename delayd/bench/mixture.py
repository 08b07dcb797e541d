"""A mixture of requests to audit: half of them due while they are sent, half of them in two days.

A tenth has an id, and of these a third is cancelled a moment later. Values have 300 bytes, and each
message two headers of its user. Nothing is kept of what was sent, however many there are.
"""

from typing import Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from delayd.bench.load import USER_HEADERS, VALUE_BYTES
from delayd.bench.sending import produce
from delayd.runtime.clock import SystemClock

BUFFER: Final = "delayd-buffer"
VALUE: Final = b"v" * VALUE_BYTES
TARGETS: Final = 4
ID_SHARE: Final = 10
CANCEL_SHARE: Final = 30

SOON_MS: Final = 10_000
LATER_MS: Final = 48 * 3600 * 1000
LATER_SPREAD_MS: Final = 2 * 3600 * 1000
"""As many files on each node as seconds: enough for a bench."""

CANCEL_DISTANCE: Final = 5_000
"""Messages between one and its cancel: some are delivered by then."""

_STRIDE: Final = 7919


class Sent(NamedTuple):
    """The number of requests that Kafka refused, and the last due time of the half that is due
    soon."""

    failed: int
    last_due_ms: int


def targets_of(run: str) -> tuple[str, ...]:
    """Return the topics that the messages of a run go to."""
    return tuple(f"bench.{run}.{number}" for number in range(TARGETS))


def send(bootstrap: str, run: str, messages: int) -> Sent:
    """Write the mixture to the buffer. Return when Kafka has acknowledged all of it."""
    clock = SystemClock()
    failed = [0]

    def note(_error: KafkaError | None, _message: Message) -> None:
        failed[0] += 1

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",  # ids have their partition
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 128 * 1024,
            "delivery.report.only.error": True,
            "on_delivery": note,
        }
    )
    targets = [topic.encode() for topic in targets_of(run)]
    last_due_ms = 0
    for number in range(messages + CANCEL_DISTANCE):
        before = number - CANCEL_DISTANCE
        if before >= 0 and before % CANCEL_SHARE == 0:
            id = _key(run, before)
            produce(producer, BUFFER, None, id, [("delayd-op", b"cancel"), ("delayd-id", id)])
        if number >= messages:
            continue
        now_ms = clock.wall_ms()
        due_ms = now_ms + number * _STRIDE % SOON_MS
        if number // ID_SHARE % 2:
            due_ms = now_ms + LATER_MS + number * _STRIDE % LATER_SPREAD_MS
        else:
            last_due_ms = max(last_due_ms, due_ms)
        headers = [
            *USER_HEADERS,
            ("delayd-topic", targets[number % TARGETS]),
            ("delayd-due", b"%d" % due_ms),
        ]
        key = _key(run, number)
        if number % ID_SHARE == 0:
            headers.append(("delayd-id", key))
        produce(producer, BUFFER, VALUE, key, headers)
    left = producer.flush()
    return Sent(failed[0] + left, last_due_ms)


def _key(run: str, number: int) -> bytes:
    return f"{run}-{number}".encode()
