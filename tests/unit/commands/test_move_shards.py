"""`delayd move` ends an old cluster of several shards: all of them at one cut, or none, wherever a
run is killed. What it has closed in vain it opens again.

Source: docs/design/moving.md, "Several shards".
"""

from contextlib import closing, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from manual_clock import ManualClock
from moves import Kill, KillableBus, KilledError

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.frontier_log import FrontierLog, send_frontiers
from delayd.cluster.resharding import Resharding
from delayd.cluster.topics import create_topics, last_frontier, transactional_id
from delayd.commands.move.moving import _last_meanwhile
from delayd.commands.move.old_cluster import OldCluster
from delayd.commands.recover.marker.changes import any_frontier
from delayd.commands.recover.marker.looking import Looker
from delayd.errors import FrontierError, MoveError, ReshardError
from replication.frontier import begin_term
from replication.record import FrontierRecord
from replication.resharding import resharded
from replication.settings import Settings
from replication.shards import joint_frontier, joint_record

SHARDS, PARTITIONS, TIMEOUT_MS, CALLS_MAX = 3, 6, 1_000, 60
NEW = "n/1"


class Old:
    """An old cluster whose shards stand apart."""

    def __init__(self, cluster: str = "c") -> None:
        self.clock = ManualClock()
        self.kafka = MemoryKafka(self.clock)
        self.bus = MemoryBus(self.kafka, clock=self.clock)
        self.settings: Settings = create_topics(
            self.bus,
            cluster=cluster,
            cluster_key="a key of sixteen or more characters",
            partitions=PARTITIONS,
            shards=SHARDS,
        )
        for shard in range(SHARDS):
            self.step(shard)

    def step(self, shard: int) -> None:
        """A master of the shard delivers."""
        last = self.parts()[shard]
        offsets = tuple(
            offset + 1 + shard if p % SHARDS == shard else 0
            for p, offset in enumerate(last.frontier.offsets)
        )
        frontier = replace(begin_term(last.frontier), offsets=offsets)
        with closing(self.bus.transactional_producer(self.id_of(shard))) as producer:
            producer.init_transactions(TIMEOUT_MS)
            producer.begin()
            record = replace(last, frontier=frontier, owner="n/x")
            send_frontiers(producer, self.settings.frontier.name, [record], TIMEOUT_MS)
            producer.commit(TIMEOUT_MS)

    def id_of(self, shard: int) -> str:
        return transactional_id(self.settings.realm, shard)

    def parts(self) -> list[FrontierRecord]:
        """The newest record of each shard."""
        found = []
        for shard in range(SHARDS):
            log = FrontierLog(self.bus, self.settings.frontier.name, shard, takes_moved=True)
            with closing(log):
                seen = log.open(TIMEOUT_MS)
                assert seen is not None
                found.append(seen.record)
        return found

    def reach(self) -> object:
        """K, O and R of all shards."""
        joint = joint_frontier([part.frontier for part in self.parts()])
        return joint.cursors, joint.offsets, joint.own_writes

    def opened(self, kill: Kill | None = None) -> OldCluster:
        return OldCluster(KillableBus(self.kafka, kill or Kill()), self.settings, TIMEOUT_MS)


def test_all_shards_are_closed_and_ended_at_their_joint_frontier() -> None:
    site = Old()
    reach = site.reach()
    with site.opened() as old:
        old.fence()
        assert [part.resharding for part in site.parts()] == [SHARDS] * SHARDS
        cut = old.last().record
        assert (cut.frontier.cursors, cut.frontier.offsets, cut.frontier.own_writes) == reach
        old.end(NEW)
    assert [part.moved for part in site.parts()] == [NEW] * SHARDS
    assert site.reach() == reach
    with pytest.raises(FrontierError, match="the cluster was moved"):
        last_frontier(site.bus, site.settings.frontier.name, TIMEOUT_MS)
    before = site.parts()
    with site.opened() as old:
        old.fence()
        assert old.last().record.moved == NEW
    assert site.parts() == before, "a further run changes nothing"


def test_recover_marker_reads_what_a_move_has_ended() -> None:
    """Where the other half of the transaction hangs, nothing else can go on."""
    site = Old()
    with site.opened() as old:
        old.fence()
        old.last()
        old.end(NEW)
    seen = any_frontier(site.bus, site.settings.frontier.name, TIMEOUT_MS)
    assert seen is not None and seen.record.moved == NEW
    options: dict[str, Any] = {"since_ms": None, "tell": lambda *_: None, "shard": 1}
    raw: Any = None  # It is not asked.
    looker = Looker(site.bus, raw, site.settings, timeout_ms=TIMEOUT_MS, **options)
    assert looker.last()[0].record.moved == NEW


def test_what_was_closed_in_vain_is_opened_again() -> None:
    site = Old()
    reach = site.reach()
    with suppress(MoveError), site.opened() as old:
        old.fence()
        old.last()
        raise MoveError("paused")
    assert [part.resharding for part in site.parts()] == [0] * SHARDS
    assert site.reach() == reach


def test_a_second_run_takes_over_and_the_first_leaves_the_shards_to_it() -> None:
    site = Old()
    with site.opened() as second:
        with site.opened() as first:
            first.fence()
            first.last()
            second.fence()
            second.last()
        assert [part.resharding for part in site.parts()] == [SHARDS] * SHARDS
        second.end(NEW)
    assert [part.moved for part in site.parts()] == [NEW] * SHARDS


@pytest.mark.parametrize("is_left_open", [False, True])
def test_a_move_that_refuses_leaves_as_many_shards_as_somebody_has_made_meanwhile(
    is_left_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, close = Old(), Resharding.close

    def close_late(run: Resharding) -> None:
        Resharding(site.bus, site.settings, site.clock, TIMEOUT_MS, 0).to(PARTITIONS)
        if not is_left_open:
            close(run)

    monkeypatch.setattr(Resharding, "close", close_late)
    with suppress(MoveError), site.opened() as old:
        old.fence()
        raise MoveError("paused")
    seen = last_frontier(site.bus, site.settings.frontier.name, TIMEOUT_MS)
    assert seen is not None and seen.record.settings.shards == PARTITIONS
    assert not seen.record.resharding


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_shard_is_ended_behind_a_stale_read(shard: int) -> None:
    """What lies behind it is of another id, so no fence shows it."""
    site = Old()
    with site.opened() as old:
        old.fence()
        old.last()
        before = site.parts()
        with closing(site.bus.transactional_producer("another")) as producer:
            producer.init_transactions(TIMEOUT_MS)
            producer.begin()
            topic = site.settings.frontier.name
            send_frontiers(producer, topic, [before[shard]], TIMEOUT_MS)
            producer.commit(TIMEOUT_MS)
        with pytest.raises(MoveError, match="goes on to"):
            old.end(NEW)
    assert [part.moved for part in site.parts()] == [""] * SHARDS


def test_a_change_that_is_visible_in_part_names_what_mends_it() -> None:
    site = Old()
    Resharding(site.bus, site.settings, site.clock, TIMEOUT_MS, 0).close()
    topic = site.settings.frontier.name
    opened = resharded(site.parts(), SHARDS * 2, {}, "delayd-shards")[:SHARDS]
    with closing(site.bus.transactional_producer(site.id_of(0))) as producer:
        producer.init_transactions(TIMEOUT_MS)
        producer.begin()
        send_frontiers(producer, topic, opened, TIMEOUT_MS)
        producer.commit(TIMEOUT_MS)
    with closing(site.bus.cluster()) as kafka:
        kafka.add_partitions(topic, SHARDS * 2, TIMEOUT_MS)
    with site.opened() as old, pytest.raises(ReshardError) as error:
        old.fence()
    assert "delayd recover marker" in error.value.remedy


def test_a_look_closes_nothing() -> None:
    site = Old()
    before = site.parts()
    with site.opened() as old:
        assert old.last().record.frontier == joint_frontier([each.frontier for each in before])
    assert site.parts() == before


def test_another_clusters_shards_are_not_closed() -> None:
    site, other = Old(), Old("other")
    before = other.parts()
    old = OldCluster(other.bus, site.settings, TIMEOUT_MS)
    with old, pytest.raises(FrontierError, match="another cluster"):
        old.fence()
    assert other.parts() == before


@pytest.mark.parametrize(
    ("is_read", "why"), [(False, "has opened its shards again"), (True, "took over meanwhile")]
)
def test_shards_that_a_node_opens_meanwhile_are_not_ended(is_read: bool, why: str) -> None:
    site = Old()
    with site.opened() as old:
        old.fence()
        if is_read:
            old.last()
        run = Resharding(site.bus, site.settings, site.clock, TIMEOUT_MS, 0)
        run.to(SHARDS)
        for shard in range(SHARDS):
            site.step(shard)
        if not is_read:
            old.last()
        with pytest.raises(MoveError, match=why):
            old.end(NEW)
    assert [part.moved for part in site.parts()] == [""] * SHARDS
    assert [part.resharding for part in site.parts()] == [0] * SHARDS


def test_shards_that_are_open_are_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may open them before this program takes the first shard's id."""
    site = Old()
    monkeypatch.setattr(Resharding, "close", lambda _: None)
    before = site.parts()
    with site.opened() as old:
        old.fence()
        old.last()
        with pytest.raises(MoveError, match="has opened its shards again"):
            old.end(NEW)
    assert site.parts() == before


@pytest.mark.parametrize("delivers", [False, True])
def test_a_move_that_began_without_the_old_kafka_tells_closing_from_delivering(
    delivers: bool,
) -> None:
    site = Old()
    begun = SimpleNamespace(cut=joint_record(site.parts()))
    move = SimpleNamespace(settings=SimpleNamespace(realm=NEW), takes_doubles=False)
    if delivers:
        site.step(1)
    with site.opened() as old:
        old.fence()
        if delivers:
            with pytest.raises(MoveError, match="has gone on since this move began"):
                _last_meanwhile(move, old, begun)  # type: ignore[arg-type]
        else:
            last = _last_meanwhile(move, old, begun)  # type: ignore[arg-type]
            assert last.frontier != begun.cut.frontier and not last.moved


def test_a_look_tells_that_too_where_the_shards_were_opened_again() -> None:
    site = Old()
    begun: Any = SimpleNamespace(cut=joint_record(site.parts()))
    move: Any = SimpleNamespace(settings=SimpleNamespace(realm=NEW), takes_doubles=False)
    with site.opened() as old:
        old.fence()  # It refuses, and opens them again.
    with site.opened() as old:
        last = _last_meanwhile(move, old, begun)
    assert last.frontier.step > begun.cut.frontier.step and not last.resharding


@pytest.mark.parametrize("is_after", [False, True])
def test_all_shards_are_ended_or_none_wherever_a_run_is_killed(is_after: bool) -> None:
    for at in range(CALLS_MAX):
        site = Old()
        reach = site.reach()
        was_killed = False
        kill = Kill(at, is_after=is_after)
        old = site.opened(kill)  # Its process is gone: nothing of it is closed, or opened again.
        try:
            old.fence()
            old.last()
            old.end(NEW)
        except KilledError:
            was_killed = True
        if not was_killed:
            assert at > SHARDS
            return
        with site.opened() as again:
            again.fence()
            if not again.last().record.moved:
                again.end(NEW)
        assert [part.moved for part in site.parts()] == [NEW] * SHARDS
        assert site.reach() == reach
    raise AssertionError("it was always killed")
