"""Probes over Kafka in memory: who is asked, and what becomes of the answers."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from manual_clock import START_MS, ManualClock
from one_node import DeliveryDesk, wait_for

from delayd.bus import Record
from delayd.node.delivery.counters import StepCounters
from delayd.node.delivery.deliveries import Deliveries
from delayd.node.delivery.delivery_context import DeliveryOptions
from delayd.node.delivery.grant import Grant
from delayd.node.target_probes import ASKED_MAX, TargetProbes
from delayd.node.targets.sparing import SparedPartition, Sparing
from replication.election_facts import Ended

FOREVER_MS = 10**15
SECOND_MS = 1_000


class Desk(DeliveryDesk):
    """A delivery thread that spares what a test says; it runs once it is started."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        super().__init__(
            folder, self.clock, DeliveryOptions(idle_interval_ms=1_000, clock_drift_max_ms=10_000)
        )
        self.sparing = self.delivery._context.sparing

    def ask(self) -> None:
        """One round of questions, and the step behind it."""
        deliveries = Deliveries([self.delivery], self.delivery.counters)
        TargetProbes(self.bus, deliveries)._ask(deliveries.spared_partitions)
        self.clock.now_ms += 60 * SECOND_MS
        self.sparing.turn(self.clock.wall_ms())
        self.clock.now_ms += 120 * SECOND_MS
        self.sparing.turn(self.clock.wall_ms())

    def buffer(self) -> list[Record]:
        """Return the committed records of the buffer: requests, and what was deferred."""
        with self.kafka.changed:
            return self.kafka.log("delayd-buffer", 0).read(0, 10**9)[0]

    def spared(self) -> list[tuple[str, int]]:
        return [(each.topic, each.partition) for each in self.delivery.spared_partitions]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.stop()


def test_a_partition_without_an_answer_keeps_no_other_of_its_topic_spared(desk: Desk) -> None:
    """docs/design/frontier.md, A leader that hangs.

    Rules: silent-spared
    """
    desk.kafka.create_topic("orders", 3)
    desk.kafka.hang("orders", 1)
    desk.kafka.log("orders", 2).leader = None
    gone = [("orders", 7), ("gone", 0)]
    desk.sparing.note_silent(START_MS, [*(("orders", n) for n in range(3)), *gone])
    desk.ask()
    assert desk.spared() == [("orders", 1), ("orders", 2)]


def test_more_partitions_than_one_question_holds_are_asked_about(desk: Desk) -> None:
    desk.kafka.create_topic("orders", 2 * ASKED_MAX + 1)
    desk.kafka.hang("orders", 0)
    desk.sparing.note_silent(START_MS, [("orders", n) for n in range(2 * ASKED_MAX + 1)])
    desk.ask()
    assert desk.spared() == [("orders", 0)]


def test_without_a_broker_nothing_is_answered(desk: Desk) -> None:
    desk.sparing.note_silent(START_MS, [("orders", 0)])
    desk.bus.link.up = False
    desk.ask()
    assert desk.spared() == [("orders", 0)]


def test_a_node_spares_and_probes_nothing_once_its_grant_is_over(desk: Desk) -> None:
    """docs/design/frontier.md, A leader that hangs: as long as the grant, and no longer.

    Rules: silent-spared
    """
    desk.kafka.create_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
    desk.kafka.hang("orders", 0)
    desk.send("orders", 1)
    desk.replica.take(desk.buffer())
    grant = Grant("n/1", FOREVER_MS)
    desk.delivery.give(grant)
    desk.delivery.start()
    wait_for(lambda: len(desk.buffer()) == 2)
    assert desk.spared() == [("orders", 0)], "it outlasts the mastership that failed"
    grant.withdrawn = True
    desk.delivery.wake()
    assert desk.reports.get(timeout=20) is Ended.ASKED
    assert desk.spared() == []


class Loop:
    """What spares a partition, as one shard of several."""

    def __init__(self, since_ms: int) -> None:
        self.sparing = Sparing()
        self.sparing.note_silent(since_ms, [("orders", 0)])

    @property
    def spared_partitions(self) -> tuple[SparedPartition, ...]:
        return self.sparing.report

    def probe_answered(self, spared: SparedPartition) -> None:
        self.sparing.answered(spared)


def test_an_answer_is_told_to_all_shards_that_spare_the_partition() -> None:
    loops: list[Any] = [Loop(1_000), Loop(1_007)]
    deliveries = Deliveries(loops, StepCounters())
    answering = SimpleNamespace(answering=lambda places, _ms: {*places}, close=lambda: None)
    bus: Any = SimpleNamespace(cluster=lambda: answering)
    probes = TargetProbes(bus, deliveries)
    ended_ms: dict[int, int] = {}
    for at_ms in range(2_000, 60_000, SECOND_MS):
        probes._ask(deliveries.spared_partitions)
        for number, loop in enumerate(loops):
            loop.sparing.turn(at_ms)
            if not loop.spared_partitions:
                ended_ms.setdefault(number, at_ms)
    assert abs(ended_ms[0] - ended_ms[1]) <= SECOND_MS
