"""The measuring reader: an independent read_committed consumer, in a process of its own.

It shares no code with a node's data plane but librdkafka. Out: {"at": "ready"} when it reads, and
{"at": "end", "altered"} when it has written what it found to `folder`: the files `received` and
`fired` (int64 ms by number), and `copies`. In: one line {"until_ms"}: it ends when it has all, or
at that wall time, SETTLE_MS later.

Invariants: a receipt's time is taken when the call that brought it returns, and no call waits for
more once it has something; only committed records are seen; it ends when its input does.
"""

import dataclasses
import json
import sys
import tempfile
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from delayd.bench.errors import BenchError
from delayd.bench.job import Job, arguments_given, say, started
from delayd.bench.load import Load
from delayd.bench.receipts import Receipts
from delayd.runtime.clock import SystemClock
from delayd.runtime.gc_tuning import tune_collector

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
COPIES_MAX: Final = 255
FIRED: Final = "delayd-fired"
"""As the wire contract has it."""


class Reader:
    """A running reader, as whoever started it holds it."""

    def __init__(self, job: Job, load: Load, folder: Path) -> None:
        self._job = job
        self._load = load
        self._folder = folder

    def finish(self, until_ms: int) -> Receipts:
        """Return what it received until it had all, or until this wall time. Raises BenchError
        if it ended."""
        self._job.tell({"until_ms": until_ms})
        said = self._job.next()
        return Receipts(
            self._load,
            _array(self._folder / "received"),
            _array(self._folder / "fired"),
            bytearray((self._folder / "copies").read_bytes()),
            int(said["altered"]),
        )


@contextmanager
def reading(kafka: dict[str, str], load: Load, *, with_fired: bool = False) -> Iterator[Reader]:
    """Read the load's target inside, from its beginning. The target exists."""
    with (
        tempfile.TemporaryDirectory(prefix="delayd-bench-") as folder,
        started(
            __name__,
            kafka=kafka,
            load=dataclasses.asdict(load),
            folder=folder,
            with_fired=with_fired,
        ) as job,
    ):
        job.next()
        yield Reader(job, load, Path(folder))


def read_back(
    kafka: dict[str, str], load: Load, now_ms: int, wait_ms: int = READ_BACK_MS_MAX
) -> Receipts:
    """Return all that is in a load's target now. The times are of this reading, not of delivery."""
    with reading(kafka, load) as reader:
        return reader.finish(now_ms + wait_ms)


class _Reading:
    """What the process does."""

    def __init__(self, kafka: dict[str, str], load: Load, folder: Path, with_fired: bool) -> None:
        self._clock = SystemClock(offset_ms=0)
        self._load = load
        self._folder = folder
        self._with_fired = with_fired
        self._received_ms = array("q", bytes(8 * load.count))
        self._fired_ms = array("q", bytes(8 * load.count))
        self._copies = bytearray(load.count)
        self._seen = self._altered = 0
        self._unjudged: list[tuple[int, list[tuple[bytes | None, Any]]]] = []
        """When they were received, and values and headers."""
        self._unjudged_count = 0
        self._consumer = Consumer({**kafka, **READER})

    def run(self) -> None:
        consumer = self._consumer
        topic = consumer.list_topics(self._load.target, METADATA_TIMEOUT_S)
        partitions = topic.topics[self._load.target].partitions
        if not partitions:
            raise BenchError(f"there is no topic {self._load.target}")
        consumer.assign([TopicPartition(self._load.target, number, 0) for number in partitions])
        orders: list[dict[str, Any] | None] = []
        threading.Thread(target=_listen, args=(orders,), daemon=True).start()
        say({"at": "ready"})
        end_ms = None
        while end_ms is None or self._clock.wall_ms() < end_ms:
            is_idle = not self._poll()
            if is_idle or self._seen + self._unjudged_count >= self._load.count:
                self._judge_all()
            if not orders:
                continue
            if orders[0] is None:
                return
            until_ms = int(orders[0]["until_ms"])
            if end_ms is None and (
                self._seen == self._load.count or self._clock.wall_ms() >= until_ms
            ):
                end_ms = self._clock.wall_ms() + SETTLE_MS
        self._judge_all()  # of a stream that never pauses, too
        consumer.close()
        for name, content in (("received", self._received_ms), ("fired", self._fired_ms)):
            (self._folder / name).write_bytes(content.tobytes())
        (self._folder / "copies").write_bytes(self._copies)
        say({"at": "end", "altered": self._altered})

    def _poll(self) -> bool:
        """Receive what is there. Return False if nothing came."""
        first = self._consumer.poll(POLL_S)
        if first is None:
            return False
        messages = [first, *self._consumer.consume(BATCH_RECORDS, 0)]
        now_ms = self._clock.wall_ms()
        received = []
        for message in messages:
            error = message.error()
            if error is None:
                received.append((message.value(), message.headers() if self._with_fired else None))
            elif error.fatal():
                raise KafkaException(error)
        self._unjudged.append((now_ms, received))
        self._unjudged_count += len(received)
        if len(messages) <= JUDGED_AT_ONCE_MAX:
            self._judge_all()
        return True

    def _judge_all(self) -> None:
        for received_ms, messages in self._unjudged:
            for value, headers in messages:
                self._judge(received_ms, value, headers)
        self._unjudged.clear()
        self._unjudged_count = 0

    def _judge(self, received_ms: int, value: bytes | None, headers: Any) -> None:
        number = self._load.number_of(value)
        if number is None:
            self._altered += 1
            return
        copies = self._copies[number] = min(self._copies[number] + 1, COPIES_MAX)
        if copies > 1:
            return
        self._seen += 1
        self._received_ms[number] = received_ms
        if self._with_fired:
            self._fired_ms[number] = next(int(v) for name, v in headers or () if name == FIRED)


def _array(file: Path) -> "array[int]":
    found = array("q")
    found.frombytes(file.read_bytes())
    return found


def _listen(orders: list[dict[str, Any] | None]) -> None:
    line = sys.stdin.readline()
    orders.append(json.loads(line) if line else None)


def main() -> None:
    """Run the process."""
    order = arguments_given()
    tune_collector()
    _Reading(
        order["kafka"], Load(**order["load"]), Path(order["folder"]), order["with_fired"]
    ).run()


if __name__ == "__main__":
    main()
