"""Sends a load to a buffer, as any Kafka client would, in a process of its own.

All at once, or each message `lead_ms` before its place in an even rate.

Invariant: what is paced is sent in the order of the numbers, each at its time or as soon after it
as Kafka takes it.
"""

import threading
from contextlib import AbstractContextManager
from typing import Any, Final

from confluent_kafka import Producer

from delayd.bench.errors import BenchError
from delayd.bench.job import started
from delayd.bench.load import USER_HEADERS, Load
from delayd.dev.job import Job
from delayd.runtime.clock import SystemClock

PRODUCER: Final[dict[str, str | int | bool]] = {
    "acks": "all",
    "delivery.report.only.error": True,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 128 * 1024,
}
FILLING_LINGER_MS: Final = 20
PACED_LINGER_MS: Final = 2
PAUSE_S: Final = 0.002
FLUSH_S: Final = 60
LEAD_MS: Final = 8_000
MESSAGES_PER_LEAD_MS: Final = 50
"""The first message is due a ms later for each so many: slower machines take longer."""

Header = tuple[str, bytes]


def lead_ms(messages: int) -> int:
    """Return how long before they are due so many messages are sent, so that all are ingested by
    then."""
    return LEAD_MS + messages // MESSAGES_PER_LEAD_MS


def fill(kafka: dict[str, str], buffer: str, *loads: Load) -> None:
    """Send these loads as fast as they go. Raises BenchError if Kafka refuses any message."""
    for load in loads:
        with sending(kafka, buffer, load) as sender:
            finish(sender)


def sending(
    kafka: dict[str, str], buffer: str, load: Load, lead_ms: int | None = None
) -> AbstractContextManager[Job]:
    """Return a process that sends a load at once or, with `lead_ms`, at its even rate."""
    return started(send, kafka, buffer, load, lead_ms)


def finish(sender: Job) -> None:
    """Wait until all is sent. Raises BenchError if Kafka refused any message."""
    if failed := sender.next():
        raise BenchError(f"{failed} requests were refused by Kafka")


def produce(
    producer: Producer, topic: str, value: bytes | None, key: bytes, headers: list[Header]
) -> None:
    """Hand a record to the driver, as soon as there is room in its queue."""
    while True:
        try:
            producer.produce(topic, value, key, headers=headers)  # type: ignore[arg-type]
            return
        except BufferError:
            producer.poll(0.1)


def send(kafka: dict[str, str], buffer: str, load: Load, lead_ms: int | None) -> int:
    """Send the load. Return how many messages Kafka has not acknowledged."""
    clock = SystemClock(offset_ms=0)
    failed = [0]

    def note(_error: Any, _message: Any) -> None:
        failed[0] += 1

    linger_ms = FILLING_LINGER_MS if lead_ms is None else PACED_LINGER_MS
    producer = Producer({**kafka, **PRODUCER, "linger.ms": linger_ms, "on_delivery": note})
    asked = [*USER_HEADERS, ("delayd-topic", load.target.encode())]
    if load.window_ms:
        asked.append(("delayd-window", b"%dms" % load.window_ms))
    begin_ms = load.first_due_ms - (lead_ms or 0)
    sent = 0
    while sent < load.count:
        may_go = load.count
        if lead_ms is not None:
            passed_ms = clock.wall_ms() - begin_ms
            may_go = min(load.count, passed_ms * load.count // max(1, load.spread_ms))
            if may_go <= sent:
                producer.poll(0)
                threading.Event().wait(PAUSE_S)
                continue
        for number in range(sent, may_go):
            due = ("delayd-due", b"%d" % load.due_ms(number))
            value, key = load.value(number), load.key(number)
            produce(producer, buffer, value, key, [*asked, due])
        sent = may_go
        producer.poll(0)
    return failed[0] + producer.flush(FLUSH_S)
