"""One node over Kafka in memory, whose every move a test makes."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from manual_clock import ManualClock

from delayd.bus import Ack, Headers, Record
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.murmur2 import partition_of
from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import create_topics, load_settings
from delayd.errors import DelaydError
from delayd.node.delivery.delivery_context import DeliveryOptions
from delayd.node.delivery.delivery_loop import DeliveryLoop
from delayd.node.delivery.mastership import Mastership
from delayd.node.delivery.standby import Standby
from delayd.runtime.clock import Clock
from delayd.testing.node import CLUSTER_KEY as CLUSTER_KEY
from delayd.testing.node import FOREVER_MS as FOREVER_MS
from delayd.testing.node import TIMEOUT_MS as TIMEOUT_MS
from delayd.testing.node import InstantCondition as InstantCondition
from delayd.testing.node import SteppedNode
from delayd.testing.node import open_replica as open_replica
from replication.election_facts import Ended


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; AssertionError after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        threading.Event().wait(0.005)


def request_parts(
    topic: str,
    due_ms: int,
    id: str | None,
    op: str | None,
    more: Iterable[tuple[str, bytes | None]] = (),
) -> tuple[bytes | None, Headers]:
    """Key and headers of a request."""
    headers: Headers = list(more)
    if op != "cancel":
        headers += [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % due_ms)]
    if op is not None:
        headers.append(("delayd-op", op.encode()))
    key = None if id is None else id.encode()
    return key, headers if key is None else [*headers, ("delayd-id", key)]


class DeliveryDesk:
    """A delivery thread over Kafka in memory, and what it reported; it runs once it is started."""

    def __init__(
        self,
        replica_folder: Path,
        clock: Clock,
        options: DeliveryOptions,
        *,
        partitions: int = 1,
        **of_replica: Any,
    ) -> None:
        self.kafka = MemoryKafka(clock)
        self.bus = MemoryBus(self.kafka, clock=clock)
        self.settings = create_topics(
            self.bus,
            cluster="c",
            cluster_key=CLUSTER_KEY,
            partitions=partitions,
            timeout_ms=TIMEOUT_MS,
        )
        self.replica = open_replica(replica_folder, self.settings, **of_replica)
        self.replica.observe(load_settings(self.bus, "c", "delayd-", TIMEOUT_MS))
        log = FrontierLog(self.bus, self.settings.frontier.name, 0)
        log.open(TIMEOUT_MS)
        self.reports: queue.Queue[Ended | BaseException] = queue.Queue()
        """How each delivery ended, and what the thread ended with."""
        self.delivery = DeliveryLoop(
            self.bus,
            self.replica,
            log,
            clock,
            options,
            lambda _, ended: self.reports.put(ended),
            self.reports.put,
        )

    def send(self, topic: str, due_ms: int, partition: int = 0) -> None:
        """Write a request."""
        headers: Headers = [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % due_ms)]
        self.kafka.append("delayd-buffer", partition, None, b"v", headers)

    def stop(self) -> None:
        """End the thread, and release the wheel."""
        self.delivery.stop(10)
        self.replica.close()


class OneNode(SteppedNode):
    """Replica and masterships; `failures` counts the steps that were lost."""

    clock: ManualClock

    def __init__(
        self,
        folder: Path,
        *targets: str,
        partitions: int = 1,
        retry_delays_ms: tuple[int, ...] = (10_000, 30_000),
        **options: Any,
    ) -> None:
        super().__init__(
            folder,
            ManualClock(),
            partitions=partitions,
            retry_delays_ms=retry_delays_ms,
            **options,
        )
        for target in targets:
            self.kafka.create_topic(target, 1, {"message.timestamp.type": "LogAppendTime"})
        self.failures: Counter[str] = Counter()
        self.passes_ms = 0
        """Time that passes at each turn of a loop in which the master waits."""

    def turn(self) -> None:
        super().turn()
        self.clock.now_ms += self.passes_ms

    def smoothing_ms(self) -> dict[str, int]:
        """How far the last deferral of each topic with a rate is ahead."""
        assert self._mastership is not None, "only a master smooths"
        return self._mastership.smoothing.delays_ms(self.clock.wall_ms())

    def stop_leading(self) -> None:
        """End the mastership; the next step takes over again."""
        assert self._mastership is not None, "it leads"
        self._mastership.close()
        self._mastership = None

    def step(self) -> None:
        """One turn of the loop; after a failure the next one takes over again."""
        if self._mastership is None:
            self.lead()
        assert self._mastership is not None
        try:
            self._mastership.advance()
        except DelaydError as error:
            self.failures[error.code] += 1
            self.stop_leading()
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
        key, headers = request_parts(topic, due_ms, id, op, more)
        if key is not None:
            partition = partition_of(key, self.settings.partitions)
        return self.kafka.append(self.settings.buffer.name, partition, key, value, headers)

    def read(self, topic: str) -> list[Record]:
        """Committed records of a topic."""
        return [
            record
            for log in self.kafka.topics[topic].partitions
            for record in log.read(0, 10**9)[0]
        ]


class ShardedNode(OneNode):
    """A node that leads all of several shards."""

    def __init__(self, folder: Path, *targets: str, **options: Any) -> None:
        self._leading: dict[int, Mastership] = {}
        self.without_master: set[int] = set()
        """Shards that nobody delivers meanwhile."""
        super().__init__(folder, *targets, **options)

    def lead(self) -> None:
        for shard in range(self.settings.shards):
            log = FrontierLog(self.bus, self.settings.frontier.name, shard)
            log.open(TIMEOUT_MS)
            context = replace(
                self.delivery_context(),
                frontier_log=log,
                standby=Standby(self.bus, self.settings, self.clock, shard),
                shard=shard,
            )
            self._leading[shard] = Mastership(context, self.grant)
            assert self._leading[shard].take_over()
        self._mastership = self._leading[0]

    def stop_leading(self) -> None:
        for mastership in self._leading.values():
            mastership.close()
        self._leading.clear()
        self._mastership = None

    def step(self) -> None:
        if self._mastership is None:
            self.lead()
        try:
            for shard, mastership in self._leading.items():
                if shard not in self.without_master:
                    mastership.advance()
        except DelaydError as error:
            self.failures[error.code] += 1
            self.stop_leading()
            self.targets.forget()

    def close(self) -> None:
        self.stop_leading()
        self.replica.close()


Maker = Callable[..., OneNode]
"""From targets and options to a node."""


@contextmanager
def nodes_in(folder: Path) -> Iterator[Maker]:
    """Makes nodes with these targets, each in a folder of its own; closes them."""
    made: list[OneNode] = []

    def make_node(*targets: str, **options: object) -> OneNode:
        kind = ShardedNode if options.get("shards", 1) != 1 else OneNode
        made.append(kind(folder / str(len(made)), *targets, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make_node
    for node in made:
        node.close()
