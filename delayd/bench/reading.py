"""The measuring reader: an independent read_committed consumer, in a process of its own.

It shares no code with a node's data plane but librdkafka. It says "ready" when it reads, and its
Receipts at the end. Its one order is a wall time: it ends when it has all, or at that time,
SETTLE_MS later.

Invariants: a receipt's time is taken when the call that brought it returns, and no call waits for
more once it has something; only committed records are seen; it ends when its input does.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from delayd.bench.errors import BenchError
from delayd.bench.job import started
from delayd.bench.load import Load
from delayd.bench.receipts import Planned, Receipts
from delayd.dev.job import Job, heard, say
from delayd.runtime.clock import SystemClock

READER: Final[dict[str, str | int | bool]] = {
    "group.id": "delayd-bench",
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    # A commit marker does not end a waiting fetch: this time does.
    "fetch.wait.max.ms": 5,
    "fetch.queue.backoff.ms": 5,
}
BATCH_RECORDS: Final = 5_000
JUDGED_AT_ONCE_MAX: Final = 500
"""Larger batches are judged when nothing more comes: a reader that is behind must leave the
processors to the measured nodes."""

POLL_S: Final = 0.05
SETTLE_MS: Final = 1_000
"""How long doubles are waited for after the last message."""

READ_BACK_MS_MAX: Final = 60_000
"""How long to wait for records that should be there already."""

METADATA_TIMEOUT_S: Final = 10
FIRED: Final = "delayd-fired"
PLANNED: Final = "delayd-planned"
SOURCE: Final = "delayd-source"
ORIGIN: Final = "delayd-origin"
"""As the wire contract has them."""


@contextmanager
def reading(kafka: dict[str, str], load: Load, *, with_fired: bool = False) -> Iterator[Job]:
    """Read the load's target inside, from its beginning. The target exists."""
    with started(read, kafka, load, with_fired=with_fired) as reader:
        reader.next()
        yield reader


def received(reader: Job, until_ms: int) -> Receipts:
    """Return what a reader received until it had all, or until this wall time. Raises BenchError
    if it ended."""
    reader.tell(until_ms)
    found: Receipts = reader.next()
    return found


def read_back(
    kafka: dict[str, str], load: Load, now_ms: int, wait_ms: int = READ_BACK_MS_MAX
) -> Receipts:
    """Return all that is in a load's target now. The times are of this reading, not of delivery."""
    with reading(kafka, load) as reader:
        return received(reader, now_ms + wait_ms)


def read(kafka: dict[str, str], load: Load, *, with_fired: bool) -> Receipts | None:
    """Do what the process does. Return None if nobody is there any more to order it."""
    return _Reading(kafka, load, with_fired).run()


class _Reading:
    def __init__(self, kafka: dict[str, str], load: Load, with_fired: bool) -> None:
        self._clock = SystemClock(offset_ms=0)
        self._found = Receipts(load)
        self._with_headers = with_fired or load.window_ms > 0
        self._unjudged: list[tuple[int, bytes | None, Any]] = []
        """When they were received, values and headers."""
        self._consumer = Consumer({**kafka, **READER})

    def run(self) -> Receipts | None:
        load = self._found.load
        topic = self._consumer.list_topics(load.target, METADATA_TIMEOUT_S).topics[load.target]
        if not topic.partitions:
            raise BenchError(f"there is no topic {load.target}")
        self._consumer.assign([TopicPartition(load.target, each, 0) for each in topic.partitions])
        orders: list[int | None] = []
        threading.Thread(target=lambda: orders.append(heard()), daemon=True).start()
        say("ready")
        end_ms = None
        while end_ms is None or self._clock.wall_ms() < end_ms:
            is_idle = not self._poll()
            if is_idle or self._found.seen + len(self._unjudged) >= load.count:
                self._judge_all()
            if not orders:
                continue
            if orders[0] is None:
                return None
            is_over = self._found.seen == load.count or self._clock.wall_ms() >= orders[0]
            if end_ms is None and is_over:
                end_ms = self._clock.wall_ms() + SETTLE_MS
        self._judge_all()  # of a stream that never pauses, too
        self._consumer.close()
        return self._found

    def _poll(self) -> bool:
        """Receive what is there. Return False if nothing came."""
        first = self._consumer.poll(POLL_S)
        if first is None:
            return False
        messages = [first, *self._consumer.consume(BATCH_RECORDS, 0)]
        now_ms = self._clock.wall_ms()
        for message in messages:
            error = message.error()
            if error is None:
                headers = message.headers() if self._with_headers else None
                self._unjudged.append((now_ms, message.value(), headers))
            elif error.fatal():
                raise KafkaException(error)
        if len(messages) <= JUDGED_AT_ONCE_MAX:
            self._judge_all()
        return True

    def _judge_all(self) -> None:
        for received_ms, value, headers in self._unjudged:
            found = dict(headers or ())
            fired_ms, said = int(found.get(FIRED, 0)), planned_of(found)
            self._found.write_down(received_ms, value, fired_ms, said)
        self._unjudged.clear()


def planned_of(headers: Mapping[str, bytes]) -> Planned | None:
    """Return what a delivered record's headers say of its plan; None where there is none."""
    source = headers.get(ORIGIN, headers.get(SOURCE))
    if source is None or PLANNED not in headers:
        return None
    return Planned(source.decode(), int(headers[PLANNED]))
