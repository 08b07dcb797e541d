"""Runs that change a cluster's shards, on twins: killed behind each call, two at once, refused.

Source: docs/design/shards.md, "More or fewer".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hooked_producer import Call, HookedProducer
from long_tests import long_ones
from manual_clock import START_MS, ManualClock

from delayd.bus import Ack
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.frontier_log import SeenFrontier, joint_seen
from delayd.cluster.resharding import ATTEMPTS, Resharding
from delayd.cluster.topics import create_topics, last_frontier, transactional_id
from delayd.errors import FrontierError, ReshardError, ShardsChangedError
from replication.quotas import Quota
from replication.rank import Rank
from replication.record import FrontierRecord, decode, encode, record_key
from replication.settings import AT_LEAST_ONCE, Settings
from replication.shards import joint_frontier

FRONTIER = "delayd-frontier"
PARTITIONS, TIMEOUT_MS = 24, 5_000


class KilledError(Exception):
    """The process is gone."""


class Hooked(HookedProducer):
    """Its calls are told to `told`, before and after."""

    told: Callable[[str], None]

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        self.told(f"before {call.name}")
        yield
        self.told(f"behind {call.name}")


class HookedBus(MemoryBus):
    def __init__(self, cluster: "Cluster", told: Callable[[str], None]) -> None:
        super().__init__(cluster.kafka, clock=cluster.clock)
        self._told = told

    def transactional_producer(self, transactional_id: str) -> HookedProducer:
        made = Hooked(self._kafka, self.link, self._clock, transactional_id, self._record_bytes_max)
        made.told = self._told
        return made


class Cluster:
    """Its topics, and whoever writes there."""

    def __init__(self, shards: int, **options: object) -> None:
        self.clock = ManualClock()
        self.kafka = MemoryKafka(self.clock)
        self.bus = MemoryBus(self.kafka, clock=self.clock)
        self.settings: Settings = create_topics(
            self.bus,
            cluster="c",
            cluster_key="a key of sixteen or more characters",
            partitions=PARTITIONS,
            shards=shards,
            **options,  # type: ignore[arg-type]
        )

    def run(
        self, told: Callable[[str], None] = lambda _: None, wait: Callable[[], None] | None = None
    ) -> Resharding:
        def pause(s: float) -> None:
            self.clock.now_ms += int(s * 1_000)
            if wait is not None:
                wait()

        bus = HookedBus(self, told)
        return Resharding(bus, self.newest().record.settings, self.clock, TIMEOUT_MS, 5_000, pause)

    def newest(self) -> SeenFrontier:
        seen = last_frontier(self.bus, FRONTIER, TIMEOUT_MS)
        assert seen is not None
        return seen

    def parts(self) -> list[FrontierRecord]:
        seen = self.newest()
        return [part.record for part in seen.parts or (seen,)]

    def of_partition(self, partition: int) -> list[FrontierRecord]:
        records = self.kafka.log(FRONTIER, partition).read(0, 10**6)[0]
        return [decode(record.value or b"") for record in records]

    def step(self, shard: int, change: Callable[[FrontierRecord], FrontierRecord]) -> None:
        """Write a step of a shard's master, which takes over first."""
        last = self.of_partition(shard)[-1]
        frontier = replace(last.frontier, step=last.frontier.step + 1, term=last.frontier.term + 1)
        record = change(replace(last, frontier=frontier, owner=f"n/{shard}"))
        producer = self.bus.transactional_producer(transactional_id(self.settings.realm, shard))
        producer.init_transactions(TIMEOUT_MS)
        producer.begin()
        key, value = record_key(shard), encode(record)
        producer.send(FRONTIER, key=key, value=value, headers=[], partition=shard)
        producer.flush(TIMEOUT_MS)
        producer.commit(TIMEOUT_MS)

    def rest(self) -> None:
        """What masters do who were told: each comes to stand at its T."""
        for shard, part in enumerate(self.parts()):
            at = Rank(part.rest_ms, 0, 0)
            if part.rest_ms and not part.resharding and part.frontier.lowest_cursor != at:
                self.step(shard, lambda r, at=at: moved(r, at))  # type: ignore[misc]


def moved(record: FrontierRecord, cursor: Rank) -> FrontierRecord:
    frontier = replace(record.frontier, cursors=(cursor,) * len(record.frontier.cursors))
    return replace(record, frontier=frontier)


def passed(record: FrontierRecord, cursor: Rank) -> FrontierRecord:
    """A step that has passed something of its own partitions, and come to this cursor."""
    frontier = record.frontier
    offsets = [
        offset + 3 + p if frontier.owns(p) else 0 for p, offset in enumerate(frontier.offsets)
    ]
    return moved(replace(record, frontier=replace(frontier, offsets=tuple(offsets))), cursor)


def used(shards: int) -> Cluster:
    """A cluster whose shards have come to different places."""
    cluster = Cluster(shards)
    for shard in range(shards):
        at = Rank(START_MS - 5_000 + 100 * shard, shard, 7)
        cluster.step(shard, lambda r, at=at: passed(r, at))  # type: ignore[misc]
    return cluster


@pytest.mark.parametrize(("before", "shards"), [(1, 2), (2, 8), (4, 4), (8, 2), (4, 1)])
def test_others_stand_where_those_before_stood(before: int, shards: int) -> None:
    """Rules: resharded"""
    cluster = used(before)
    joint = joint_frontier([part.frontier for part in cluster.parts()])
    settings = cluster.run(wait=cluster.rest).to(shards)
    assert settings.shards == shards == len(cluster.parts())
    now = joint_frontier([part.frontier for part in cluster.parts()])
    assert (now.offsets, now.own_writes) == (joint.offsets, joint.own_writes)
    assert joint.is_within(now) and now.step >= joint.step
    assert not any(part.resharding or part.rest_ms for part in cluster.parts())
    if shards >= before:
        assert now.is_within(joint), "nothing moves but for a rest"
    again = cluster.newest()
    assert cluster.run().to(shards) == settings
    assert cluster.newest() == again, "a second run finds nothing to do"


@pytest.mark.parametrize(("before", "shards"), [*long_ones((1, 2), (2, 1)), (2, 4), (4, 2)])
@pytest.mark.parametrize("after", [None, "the same", "as before"])
def test_who_is_killed_at_any_call_is_ended_by_the_next(
    before: int, shards: int, after: str | None
) -> None:
    """`after`: which number the next one asks for. Rules: resharded"""
    calls: list[str] = []
    whole = used(before)
    whole.run(calls.append, whole.rest).to(shards)
    assert len(calls) > 20
    for at in range(len(calls)):
        cluster = used(before)
        left = iter(range(at))

        def told(what: str, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KilledError(what)

        with pytest.raises(KilledError):
            cluster.run(told, cluster.rest).to(shards)
        joint = joint_frontier([part.frontier for part in cluster.parts()])
        wanted = before if after == "as before" else shards
        if after is not None:
            cluster.run(wait=cluster.rest).to(wanted)
            assert len(cluster.parts()) == wanted
            assert not any(part.resharding for part in cluster.parts())
        now = joint_frontier([part.frontier for part in cluster.parts()])
        assert joint.is_within(now) and now.offsets == joint.offsets


@pytest.mark.parametrize(
    ("before", "one", "other"),
    [
        *((2, 4, 8), (4, 2, 1)),
        *long_ones((2, 4, 4), (4, 2, 2), (4, 1, 2), (4, 8, 2), (6, 2, 3)),
    ],
)
def test_of_two_at_once_one_number_comes_out(before: int, one: int, other: int) -> None:
    """Each is interrupted by a whole run of the other, at each of its calls. Rules: resharded"""
    calls: list[str] = []
    whole = used(before)
    whole.run(calls.append, whole.rest).to(one)
    for at in range(len(calls)):
        cluster = used(before)
        joint = joint_frontier([part.frontier for part in cluster.parts()])
        left, begun = iter(range(at)), list[int]()

        def told(
            _: str, left: Iterator[int] = left, cluster: Cluster = cluster, begun: list[int] = begun
        ) -> None:
            if next(left, None) is None and not begun:
                begun.append(other)
                cluster.run(wait=cluster.rest).to(other)

        try:
            assert cluster.run(told, cluster.rest).to(one).shards == one
            assert len(cluster.parts()) in (one, other)
        except ReshardError:
            assert len(cluster.parts()) in (before, one, other)
        parts = cluster.parts()
        assert not any(part.resharding or part.rest_ms for part in parts), (at, calls[at])
        now = joint_frontier([part.frontier for part in parts])
        assert joint.is_within(now) and now.offsets == joint.offsets


def test_shards_that_do_not_come_to_rest_go_on_as_they_were() -> None:
    """Rules: shards-rest"""
    cluster = used(4)
    before = [part.frontier.cursors for part in cluster.parts()]
    with pytest.raises(ReshardError, match="did not come to rest: 0, 1, 2, 3"):
        cluster.run().to(2)
    assert [part.frontier.cursors for part in cluster.parts()] == before
    assert not any(part.rest_ms or part.resharding for part in cluster.parts())


def test_shards_that_stood_apart_when_they_were_closed_go_on_as_they_were() -> None:
    """A rest that counts no more while shards are closed. Rules: resharded"""
    cluster = used(2)

    def told(what: str) -> None:
        parts = cluster.parts()
        if parts[0].resharding and not parts[1].resharding and what == "before init_transactions":
            ahead = Rank(parts[1].rest_ms + 9, 0, 0)
            if parts[1].frontier.lowest_cursor != ahead:
                cluster.step(1, lambda r: moved(replace(r, rest_ms=0), ahead))

    with pytest.raises(ReshardError, match="did not stand together"):
        cluster.run(told, cluster.rest).to(1)
    parts = cluster.parts()
    assert len(parts) == 2 and not any(part.resharding for part in parts)
    assert parts[0].frontier.cursors != parts[1].frontier.cursors
    cluster.run(wait=cluster.rest).to(1)
    assert len(cluster.parts()) == 1


def test_a_read_that_was_stale_is_read_again() -> None:
    """docs/design/frontier.md, Stale reads: a master's step lands behind the read. Rules:
    resharded"""
    cluster = used(2)
    stolen: list[Ack] = []

    def told(what: str) -> None:
        # Without a fence: as a step that the broker which was read did not have yet.
        if what == "before send" and not stolen:
            last = cluster.of_partition(0)[-1]
            frontier = replace(last.frontier, step=last.frontier.step + 1)
            step = passed(replace(last, frontier=frontier), Rank(START_MS, 0, 0))
            stolen.append(cluster.kafka.append(FRONTIER, 0, record_key(0), encode(step), []))

    cluster.run(told).to(4)
    assert stolen and cluster.parts()[0].frontier.cursors[0] == Rank(START_MS, 0, 0)
    assert len(cluster.parts()) == 4


def test_masters_that_take_their_id_back_are_fenced_again_and_not_for_ever() -> None:
    cluster = used(2)
    taken: list[str] = []

    def told(what: str, most: int) -> None:
        if what == "before commit" and len(taken) < most:
            taken.append(what)
            cluster.step(0, lambda r: r)

    with pytest.raises(ReshardError, match="again and again"):
        cluster.run(lambda what: told(what, ATTEMPTS)).to(4)
    taken.clear()
    cluster.run(lambda what: told(what, 3)).to(4)
    assert len(cluster.parts()) == 4


def test_what_cannot_be_is_refused_and_nothing_is_changed() -> None:
    cluster = Cluster(2)
    before = cluster.newest()
    for shards, said in ((3, "a multiple"), (16, "shared out"), (0, "1 to 64")):
        with pytest.raises(ReshardError, match=said):
            cluster.run().to(shards)
    assert cluster.newest() == before
    alone = Cluster(1, guarantee=AT_LEAST_ONCE)
    with pytest.raises(ReshardError, match="exactly-once"):
        alone.run().to(2)


def test_limits_go_along() -> None:
    """Rules: quota-shards, resharded"""
    cluster, limited = Cluster(2), Quota(5, 0, 0, 0, 0)
    for shard in range(2):
        cluster.step(shard, lambda r: replace(r, quotas={"orders": limited}))
    begun = {"orders": limited._replace(offset=-1)}
    for shards in (4, 1):
        cluster.run(wait=cluster.rest).to(shards)
        assert [part.quotas for part in cluster.parts()] == [begun] * shards


def test_a_reader_in_between_is_told_to_come_again() -> None:
    cluster = used(2)
    cluster.run().to(4)
    parts = list(cluster.newest().parts)
    old = cluster.of_partition(1)[0]
    parts[1] = parts[1]._replace(record=old)
    with pytest.raises(ShardsChangedError, match="there were 4"):
        joint_seen(parts)
    cluster.kafka.delete_topic(FRONTIER)
    cluster.kafka.create_topic(FRONTIER, 4, {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(FrontierError, match="holds no record"):
        Resharding(cluster.bus, cluster.settings, cluster.clock, TIMEOUT_MS, 0).to(2)
