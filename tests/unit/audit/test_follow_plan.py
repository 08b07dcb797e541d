"""delayd.audit.reading.plan and unread: one bad target holds up no other, and what cannot be read
any more is said.

Source: docs/reference/audit.md, "Targets that cannot be read".
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_settings import LANES
from cluster_settings import SETTINGS as CLUSTER
from manual_clock import ManualClock

from delayd.audit.errors import AuditError
from delayd.audit.reading import stream
from delayd.audit.reading.access import Access
from delayd.audit.reading.partition import ReadError
from delayd.audit.reading.plan import Planner
from delayd.audit.reading.positions import Ends, Positions
from delayd.audit.reading.ranges import Range
from delayd.audit.reading.shard_records import frontier_in
from delayd.audit.reading.unread import HOLD_MS, Reading, reading_of
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.cluster import MemoryCluster
from delayd.errors import DelaydError, KafkaUnreachableError, TopicMismatchError
from delayd.runtime.clock import SystemClock
from replication.frontier import ALL_SHARDS, Frontier
from replication.rank import Rank
from replication.record import FrontierRecord, StepCounts, encode, record_key
from replication.settings import TOPIC_ROLES
from replication.shards import first_of_shard

T = 1_700_000_000_000
SETTINGS = replace(CLUSTER, partitions=1)
TOPICS = {role: getattr(SETTINGS, role).name for role in TOPIC_ROLES}


class WaitingClock(ManualClock):
    """A clock that moves by a ms when somebody looks how long to wait."""

    def monotonic_ms(self) -> int:
        self.now_ms += 1
        return self.now_ms


class DeafCluster(MemoryCluster):
    """Describes all topics, and has no offsets of some."""

    deaf: dict[str, DelaydError]

    def _partitions(self, topic: str, timeout_ms: int) -> Any:
        if topic in self.deaf:
            raise self.deaf[topic]
        return super()._partitions(topic, timeout_ms)


class Site:
    """A cluster with two targets, `good` and `bad`, and what follows it."""

    def __init__(self) -> None:
        self.clock = WaitingClock(T)
        self.kafka = MemoryKafka(self.clock)
        for name in (*TOPICS.values(), "good", "bad"):
            self.kafka.create_topic(name)
        self.deaf: dict[str, DelaydError] = {}
        frontier = Frontier(0, (Rank(T, 0, 0),) * LANES, (0,), (-1,), 1, 0)
        said = FrontierRecord(frontier, "n/1", T, StepCounts(), 0, SETTINGS)
        self.kafka.append(TOPICS["frontier"], 0, b"shard-0", encode(said))
        self.at = self.planner().first()
        self.reading = Reading((), {})

    def cluster(self) -> DeafCluster:
        made = MemoryBus(self.kafka).cluster()
        cluster = DeafCluster(made._kafka, made._link)
        cluster.deaf = self.deaf
        return cluster

    def planner(self) -> Planner:
        planner = Planner(MemoryBus(self.kafka), TOPICS, self.clock)
        planner._kafka = self.cluster()
        return planner

    def plan(self) -> Positions:
        self.clock.now_ms += 1_000
        return self.planner().next(self.at, ["good", "bad"])

    def batch(self) -> Reading:
        """One batch: planned, and read at once."""
        before, self.at = self.at, self.plan()
        self.reading = self.read(before, self.at)
        return self.reading

    def read(self, before: Positions, after: Positions) -> Reading:
        return reading_of(self.cluster(), TOPICS, before, after, self.clock.now_ms)

    def send(self, topic: str, count: int = 1) -> None:
        for _ in range(count):
            self.kafka.append(topic, 0, b"k", b"v")

    def lose_bad(self, why: str) -> None:
        """Let `bad` be there, and not be read."""
        if why == "no leader":
            self.kafka.log("bad", 0).leader = None
        elif why == "no right":
            self.kafka.topics["bad"].may_read = False
        elif why == "hidden":
            self.kafka.hidden.add("bad")
        elif why == "silent":
            self.kafka.silent.add("bad")
        elif why == "refused":
            self.deaf["bad"] = TopicMismatchError("asking for bad was refused")
        else:
            self.deaf["bad"] = KafkaUnreachableError("nothing was said of bad")

    def make_again(self, topic: str, partitions: int = 1) -> None:
        self.kafka.delete_topic(topic)
        self.kafka.create_topic(topic, partitions)

    def ranges(self, topic: str) -> list[tuple[int, int]]:
        return [(one.start, one.end) for one in self.reading.ranges if one.topic == topic]


@pytest.fixture
def site() -> Site:
    site = Site()
    site.send("good", 3)
    site.send("bad", 3)
    site.batch()  # finds the targets
    site.batch()
    assert site.ranges("good") == site.ranges("bad") == [(0, 3)]
    assert site.reading.unread == {}
    return site


@pytest.mark.parametrize("why", ["no leader", "no right", "hidden", "silent", "refused", "mute"])
def test_a_target_that_cannot_be_read_holds_up_no_other(site: Site, why: str) -> None:
    settled_ms = site.at.settled_ms["bad"]
    site.send("good")
    site.send("bad")
    site.lose_bad(why)

    site.batch()

    assert site.ranges("good") == [(3, 4)]
    assert site.ranges("bad") == [] and site.at.next["bad"] == (3,)
    assert site.at.settled_ms["bad"] == settled_ms < site.at.settled_ms["good"]
    assert site.reading.unread == {}, "it may come back"

    site.kafka.log("bad", 0).leader = 1
    site.kafka.topics["bad"].may_read = True
    site.kafka.hidden.clear()
    site.kafka.silent.clear()
    site.deaf.clear()
    site.batch()
    assert site.ranges("bad") == [(3, 4)]
    assert site.at.settled_ms["bad"] == site.at.settled_ms["good"]


@pytest.mark.parametrize("role", ["buffer", "frontier", "receipts", "dead"])
def test_a_topic_of_delayds_own_holds_up_everything(site: Site, role: str) -> None:
    site.send("good")
    site.deaf[TOPICS[role]] = KafkaUnreachableError("no answer")
    with pytest.raises(KafkaUnreachableError):
        site.plan()


@pytest.mark.parametrize("role", ["buffer", "frontier", "receipts", "dead"])
def test_a_topic_of_delayds_own_that_lost_its_end_is_an_error(site: Site, role: str) -> None:
    site.send(TOPICS[role], 2)
    site.batch()
    site.kafka.log(TOPICS[role], 0).truncate(site.at.next[TOPICS[role]][0] - 1)
    with pytest.raises(AuditError, match="ends before what was read of it"):
        site.plan()


@pytest.mark.parametrize("count", [0, 2, 3, 9])
def test_a_target_that_was_made_again_is_read_from_its_beginning(site: Site, count: int) -> None:
    site.make_again("bad")
    site.send("bad", count)

    site.batch()
    assert "bad" not in site.at.settled_ms
    assert set(site.reading.unread) == {"bad"}, "who knows what was in the old one"
    assert site.ranges("bad") == []

    site.batch()
    assert site.ranges("bad") == ([(0, count)] if count else [])
    assert site.reading.unread == {}
    assert site.at.settled_ms["bad"] == site.at.settled_ms["good"]


def test_a_target_made_again_before_anything_of_it_was_read_is_said_too() -> None:
    site = Site()
    site.batch()
    site.make_again("bad")
    assert set(site.batch().unread) == {"bad"}


def test_a_batch_that_was_planned_reads_nothing_of_a_target_made_again_since(site: Site) -> None:
    site.send("bad", 2)
    planned = site.plan()
    site.make_again("bad")
    site.send("bad", 9)
    reading = site.read(site.at, planned)
    assert set(reading.unread) == {"bad"}
    assert [one for one in reading.ranges if one.topic == "bad"] == []
    site.at = planned
    site.batch()
    site.batch()
    assert site.ranges("bad") == [(0, 9)]


def test_a_target_that_lost_its_end_goes_on_behind_it(site: Site) -> None:
    site.kafka.log("bad", 0).truncate(1)
    assert set(site.batch().unread) == {"bad"}
    assert site.at.next["bad"] == (1,) and "bad" not in site.at.settled_ms
    site.send("bad")
    site.batch()
    assert site.ranges("bad") == [(1, 2)]


def test_nothing_is_settled_that_ends_before_its_position(site: Site) -> None:
    at = replace(site.at, settled_ms={})
    assert "bad" not in at.settling("bad", Ends((2,), (2,)), T).settled_ms
    assert "bad" in at.settling("bad", Ends((3,), (2,)), T).settled_ms, "the end moves meanwhile"


@pytest.mark.parametrize("role", ["target", "buffer", "receipts", "dead"])
def test_what_kafka_has_deleted_is_left_out_and_said(site: Site, role: str) -> None:
    topic = TOPICS.get(role, "bad")
    begun = site.at.next[topic][0]
    site.send(topic, 9)
    site.kafka.log(topic, 0).delete_before(begun + 4)
    site.batch()
    assert site.ranges(topic) == [(begun + 4, begun + 9)]
    assert site.reading.unread == {topic: (begun + 4,)}
    assert site.batch().unread == {}


def test_what_kafka_has_deleted_after_the_plan_is_left_out_too(site: Site) -> None:
    site.send("bad", 9)
    planned = site.plan()
    site.kafka.log("bad", 0).delete_before(12)
    reading = site.read(site.at, planned)
    assert reading.unread == {"bad": (12,)}
    assert [one for one in reading.ranges if one.topic == "bad"] == []


def test_a_target_whose_beginning_is_gone_when_it_is_first_seen_is_said() -> None:
    site = Site()
    site.send("bad", 9)
    site.kafka.log("bad", 0).delete_before(4)
    assert site.batch().unread == {"bad": (4,)}


def test_watching_begins_at_the_newest_frontier_of_each_shard(site: Site) -> None:
    """And what has come since the first of them counts: a shard may have been idle."""
    settings = replace(SETTINGS, partitions=2, shards=2)
    topics = TOPICS | {"frontier": "two"}
    site.kafka.create_topic("two", 2)
    planner = Planner(MemoryBus(site.kafka), topics, site.clock, shards=2)
    at_ms = {0: T - 5_000, 1: T + 1_000}
    for shard, append_ms in at_ms.items():
        with pytest.raises(AuditError, match=f"two/{shard} holds no frontier"):
            planner.first()
        first = first_of_shard(shard, 2, 2, settings.lanes)
        for step in (1, 2):
            site.clock.now_ms = append_ms
            record = FrontierRecord(
                replace(first, step=step), "n/1", append_ms, StepCounts(), 0, settings
            )
            site.kafka.append("two", shard, record_key(shard), encode(record))
    at = planner.first()
    assert at.next["two"] == (2, 2)
    assert frontier_in(at.watch).step == 4 and frontier_in(at.watch).shard == ALL_SHARDS
    assert (at.begun_ms, at.watch_ms) == (at_ms[0], at_ms[1])
    assert Positions.from_json(at.to_json()) == at


def test_frontiers_that_are_gone_do_not_matter(site: Site) -> None:
    topic = TOPICS["frontier"]
    site.send(topic, 9)
    site.kafka.log(topic, 0).delete_before(8)
    assert site.batch().unread == {}
    assert site.ranges(topic) == [(8, 10)]


def test_a_compacted_target_is_said_in_each_batch(site: Site) -> None:
    site.kafka.topics["bad"].config["cleanup.policy"] = "compact,delete"
    for _ in range(2):
        assert set(site.batch().unread) == {"bad"}
    site.kafka.hidden.add("bad")
    assert set(site.batch().unread) == {"bad"}


@pytest.mark.parametrize("why", ["no leader", "silent", "mute"])
def test_a_planned_batch_waits_for_a_target_and_then_goes_on(site: Site, why: str) -> None:
    site.send("good")
    site.send("bad")
    planned = site.plan()
    site.lose_bad(why)
    site.clock.now_ms = planned.at_ms + HOLD_MS
    with pytest.raises(DelaydError):
        site.read(site.at, planned)
    site.clock.now_ms += 1
    reading = site.read(site.at, planned)
    assert [one.topic for one in reading.ranges] == ["good"]
    assert set(reading.unread) == {"bad"}


def test_a_range_that_cannot_be_read_fails_a_batch_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read_ranges(_: Access, role: str, ranges: Any, __: int) -> Iterator[Any]:
        for wanted in ranges:
            if wanted.topic == "bad":
                raise ReadError("reading bad/0 failed")
            yield wanted.topic

    monkeypatch.setattr(stream, "read_ranges", read_ranges)
    reader = stream.FollowReader(Access("b:1").write(tmp_path / "access"), TOPICS, tmp_path / "t")
    ranges = [Range(topic, 0, 0, 0, 1) for topic in ("a", "bad", "z")]
    now_ms = SystemClock().wall_ms()
    with pytest.raises(ReadError):
        list(reader.read(stream.Portion({"target": ranges}, now_ms + 60_000)))
    *read, said = reader.read(stream.Portion({"target": ranges}, now_ms))
    assert read == ["a", "z"]
    assert said.to_pylist()[0]["value"] == b'{"unread": {"bad": []}}'


def test_positions_survive_their_json_and_those_of_older_versions_are_understood(
    site: Site,
) -> None:
    site.kafka.topics["bad"].config["cleanup.policy"] = "compact"
    site.batch()
    said = site.at.to_json()
    assert Positions.from_json(said) == site.at
    del said["ids"], said["compacted"]
    assert Positions.from_json(said) == replace(site.at, ids={}, compacted=())
    site.at = Positions.from_json(said)
    site.kafka.topics["bad"].config["cleanup.policy"] = "delete"
    site.kafka.log("bad", 0).truncate(1)
    site.batch()
    assert site.at.next["bad"] == (0,), "nobody knows which it was: it may have been made again"
