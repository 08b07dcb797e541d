"""One node over Kafka in memory, whose every move a test makes."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from delayd.bus import Ack, Headers, Record
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.murmur2 import partition_of
from delayd.errors import DelaydError
from delayd.frontier_log import FrontierLog
from delayd.mastership import Grant, Mastership
from delayd.pace import Pace
from delayd.replica import Replica
from delayd.suspects import Suspects
from delayd.targets import Targets
from delayd.topics import create_topics, load_settings
from delayd.wheel.storage import Wheel

START_MS = 1_785_000_000_000
CLUSTER_KEY = "a key that is long enough"
TIMEOUT_MS = 1_000
FOREVER_MS = 10**15
T = TypeVar("T")


class ManualClock:
    """It stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


class InstantCondition(threading.Condition):
    """Nobody waits: who has nothing to do is asked again by the test."""

    def wait(self, timeout: float | None = None) -> bool:
        return False

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        return predicate()


class OneNode:
    """Replica and masterships; `failures` counts the steps that were lost."""

    def __init__(
        self,
        folder: Path,
        *targets: str,
        partitions: int = 1,
        retry_delays_ms: tuple[int, ...] = (10_000, 30_000),
    ) -> None:
        self.clock = ManualClock()
        self.kafka = MemoryKafka(self.clock)
        self.bus = MemoryBus(self.kafka, clock=self.clock)
        self.settings = create_topics(
            self.bus,
            cluster="c",
            cluster_key=CLUSTER_KEY,
            partitions=partitions,
            retry_delays_ms=retry_delays_ms,
        )
        for target in targets:
            self.kafka.create_topic(target, 1, {"message.timestamp.type": "LogAppendTime"})
        self.suspects = Suspects()
        self.failures: Counter[str] = Counter()
        self.targets = Targets(
            self.bus.cluster(), self.clock, TIMEOUT_MS, anchor=self.settings.buffer.name
        )
        self.replica = Replica(
            Wheel.open(folder, partitions=partitions),
            self.settings,
            proof_key=CLUSTER_KEY.encode(),
            export_hold_ms=0,
            disk_free_min_bytes=0,
        )
        self.replica.changed = InstantCondition()
        self.replica.observe(load_settings(self.bus, "c", "delayd-", TIMEOUT_MS))
        self._frontiers = FrontierLog(self.bus, self.settings.frontier.name, 0)
        self._frontiers.open(TIMEOUT_MS)
        self.consumer = self.bus.consumer(self.settings.buffer.name)
        self.consumer.assign(self.replica.positions)
        self._pace = Pace(10_000, 16 * 1024 * 1024)
        self._mastership: Mastership | None = None

    def close(self) -> None:
        """Release the wheel."""
        if self._mastership is not None:
            self._mastership.close()
        self.replica.close()

    def ingest(self) -> None:
        """Take in all that is committed in the buffer."""
        self.replica.take(self.consumer.poll(10**6, 0))

    def lead(self) -> None:
        """Begin a mastership."""
        self._mastership = Mastership(
            self.bus,
            self.replica,
            self._frontiers,
            self.targets,
            self.suspects,
            self.clock,
            Grant("n/1", FOREVER_MS),
            self._pace,
            self.ingest,
            idle_interval_ms=1_000,
            clock_drift_max_ms=500,
        )
        assert self._mastership.take_over()

    def step(self) -> None:
        """One turn of the loop; after a failure the next one takes over again."""
        if self._mastership is None:
            self.lead()
        assert self._mastership is not None
        try:
            self._mastership.advance()
        except DelaydError as error:
            self.failures[error.code] += 1
            self._mastership.close()
            self._mastership = None
            self.targets.forget()

    def send(
        self,
        topic: str,
        due_ms: int = 0,
        *,
        id: str | None = None,
        op: str | None = None,
        partition: int = 0,
        value: bytes = b"v",
        more: Sequence[tuple[str, bytes]] = (),
    ) -> Ack:
        """Write a request; with an id in the partition where it belongs."""
        headers: Headers = list(more)
        if op != "cancel":
            headers += [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % due_ms)]
        if op is not None:
            headers.append(("delayd-op", op.encode()))
        key = None
        if id is not None:
            key = id.encode()
            headers.append(("delayd-id", key))
            partition = partition_of(key, self.settings.partitions)
        return self.kafka.append(self.settings.buffer.name, partition, key, value, headers)

    def read(self, topic: str) -> list[Record]:
        """Committed records of a topic."""
        return [
            record
            for log in self.kafka.topics[topic].partitions
            for record in log.read(0, 10**9)[0]
        ]
