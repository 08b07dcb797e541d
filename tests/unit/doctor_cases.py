"""Clusters in memory for the doctor: what it asks of Kafka and etcd, and nodes that answer."""

from collections.abc import Iterable
from typing import Any, cast

from manual_clock import ManualClock

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.raw import (
    Active,
    OpenTransaction,
    Place,
    ProducerEpoch,
    Producers,
    RawLog,
    TransactionState,
)
from delayd.cluster.topics import create_topics
from delayd.commands.doctor.case import Means
from delayd.commands.doctor.examining import Examination, examine
from delayd.commands.doctor.finding import Finding
from delayd.config.security import Security
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.runtime.clock import Clock

CLUSTER_KEY = "a key that is long enough"
TIMEOUT_MS = 1_000
MASTER = 7
"""The id of the masters' producer."""


class Log:
    """What the doctor asks of a raw log: no transaction is open, unless a test says so."""

    def __init__(self) -> None:
        self.levels: dict[str, tuple[int, int]] = {"transaction.version": (2, 2)}
        self.active: dict[Place, tuple[Active, ...]] = {}
        self.known: dict[int, OpenTransaction] = {}
        """By producer."""

    def places(self, _: int) -> list[Place]:
        return [*self.active]

    def producers(self, places: Iterable[Place], _: int) -> Producers:
        return Producers({place: self.active[place] for place in places}, {})

    def transaction(self, _name: str, _: int) -> TransactionState:
        return TransactionState("CompleteCommit", ProducerEpoch(MASTER, 0))

    def open_transactions(self, producers: Iterable[int], _: int) -> dict[int, OpenTransaction]:
        return {each: self.known[each] for each in producers if each in self.known}

    def features(self, _: int) -> dict[str, tuple[int, int]]:
        return self.levels


class Ward:
    """A cluster of three brokers that was just made, with nodes that are announced."""

    def __init__(self, clock: Clock | None = None, **more: Any) -> None:
        self.clock = clock or ManualClock()
        self.kafka = MemoryKafka(self.clock, brokers=3)
        self.bus = MemoryBus(self.kafka, clock=self.clock)
        self.log = Log()
        settings = create_topics(
            self.bus, cluster="c", cluster_key=CLUSTER_KEY, partitions=1, timeout_ms=TIMEOUT_MS
        )
        self.etcd = MemoryCoordination(MemoryEtcd(self.clock), "c")
        self.etcd.enter(settings.realm)
        given: dict[str, Any] = {"etcd": (), "security": Security.none(), "file": {}, **more}
        self.means = Means(
            bus=self.bus,
            raw=cast(RawLog, self.log),
            coordination=self.etcd,
            bootstrap="b:9092",
            clock=self.clock,
            timeout_ms=TIMEOUT_MS,
            **given,
        )

    def examine(self) -> Examination:
        return examine(self.means, "c", "delayd-")

    def found(self) -> dict[str, Finding]:
        return {each.code: each for each in self.examine().findings}
