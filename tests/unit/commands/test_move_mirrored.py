"""`delayd move --mirrored`: the new Kafka has copies of the old targets, but perhaps not of the
last deliveries.

Source: docs/design/moving.md, "Copies".
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from moves import HOUR_MS, Kill, KilledError, Site, site_in
from one_node import Maker, ShardedNode

from delayd.commands.move import moving
from delayd.commands.move.mirrored import _looked_back, blind_until_ms
from delayd.commands.move.moving import Moved
from delayd.commands.move.showing import is_fine, moved_json, moved_lines
from delayd.errors import MoveError
from replication.recovered import FOREVER_MS, SKEW_MS
from replication.shards import joint_record, shared_out

HOLD_MS = 900_000
SHARDS = 2


@pytest.fixture(params=[1, SHARDS], ids=["one shard", "two shards"])
def site(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Site:
    """Two records a step; one retry. The old wheel keeps what was delivered, as wheels do."""
    monkeypatch.setattr(moving, "STEP_RECORDS", 2)
    made = site_in(tmp_path, make, retry_delays_ms=(1_000,), shards=request.param)
    made.old.replica.retention.hold_ms = HOLD_MS
    return made


def deliver(site: Site, *values: bytes, topic: str = "orders") -> None:
    """Send messages that are due, and let the old masters deliver them a second later."""
    for number, value in enumerate(values):
        site.old.send(topic, site.old.clock.now_ms, value=value, partition=number % SHARDS)
    later(site, 1_000)


def later(site: Site, by_ms: int) -> None:
    """Let time pass on both sites, and the old master work."""
    site.old.ingest()
    site.old.clock.now_ms += by_ms
    site.new.clock.now_ms = site.old.clock.now_ms
    for _ in range(3):
        site.old.step()


def mirror(site: Site, *values: bytes, topic: str = "orders") -> None:
    """Copy these records of a topic, as MirrorMaker does."""
    for record in site.old.read(topic):
        if record.value in values:
            site.new.kafka.append(topic, 0, record.key, record.value, record.headers)


def half_mirrored(site: Site, folder: Path) -> Path:
    """`a` and `b` were delivered by what the wheel knows, `c` and `d` after that; only `a` and `c`
    were mirrored, as was `old` before. Return a copy of the wheel."""
    deliver(site, b"old")
    site.old.clock.now_ms += 1
    for partition, value in ((1, b"c"), (0, b"d")):
        site.old.send("orders", site.old.clock.now_ms + 5_000, value=value, partition=partition)
    site.old.send("orders", site.old.clock.now_ms + HOUR_MS, value=b"later")
    deliver(site, b"a", b"b")
    copy = site.copied(folder)
    later(site, 10_000)
    seen = sorted(each.value or b"" for each in site.old.read("orders"))
    assert seen == [b"a", b"b", b"c", b"d", b"old"]
    mirror(site, b"old", b"a", b"c")
    return copy


def moved(site: Site, folder: Path, kill: Kill | None = None, **options: bool) -> Moved:
    """Run the command with --mirrored, as of now."""
    options = {"is_mirrored": True, "takes_doubles": True, **options}
    return site.move(
        folder=folder,
        kill=kill,
        knows_frontier=False,
        stopped_ms=site.old.clock.now_ms,
        **options,
    )


def test_each_message_is_delivered_once_by_both_kafkas_together(site: Site, tmp_path: Path) -> None:
    copy = half_mirrored(site, tmp_path / "copy")
    assert moved(site, copy).plan.pending == 3
    assert site.moved_values() == [b"b", b"d", b"later"]


def test_what_was_delivered_and_not_mirrored_is_named_and_refused(
    site: Site, tmp_path: Path
) -> None:
    copy = half_mirrored(site, tmp_path / "copy")
    dry = moved(site, copy, is_dry=True, takes_doubles=False)
    assert (dry.plan.unmirrored.count, dry.plan.doubtful.count) == (1, 1)
    assert not is_fine(dry)
    assert any("not mirrored: 1" in line for line in moved_lines(dry))
    assert moved_json(dry)["not_mirrored"]["count"] == 1
    later(site, 1_000)
    mirror(site, b"d")  # What is left is known to have been delivered.
    with pytest.raises(MoveError, match=r"1 messages were delivered .* were not mirrored"):
        moved(site, copy, takes_doubles=False)
    assert site.moved_values() == []


def test_a_copy_of_another_message_under_the_same_source_does_not_count(
    site: Site, tmp_path: Path
) -> None:
    copy = half_mirrored(site, tmp_path / "copy")
    [record] = [each for each in site.old.read("orders") if each.value == b"b"]
    site.new.kafka.append("orders", 0, record.key, b"of another cluster", record.headers)
    moved(site, copy)
    assert site.moved_values() == [b"b", b"d", b"later"]


def test_a_topic_that_is_not_mirrored_goes_by_the_frontier(site: Site, tmp_path: Path) -> None:
    deliver(site, b"by the cut", topic="late")
    copy = half_mirrored(site, tmp_path / "copy")
    deliver(site, b"not there", topic="late")
    moved(site, copy)
    assert site.moved_values() == [b"b", b"d", b"later"]


def test_what_was_delivered_long_ago_goes_by_the_frontier(site: Site, tmp_path: Path) -> None:
    deliver(site, b"old")
    deliver(site, b"long ago", b"and not mirrored")
    later(site, 2 * HOLD_MS)
    copy = site.copied(tmp_path / "copy")
    mirror(site, b"old")
    moved(site, copy)
    assert site.moved_values() == []


def test_what_was_due_long_ago_and_delivered_lately_goes_by_the_copies(
    site: Site, tmp_path: Path
) -> None:
    """All nodes were down for long: what waited was delivered in the last moment."""
    deliver(site, b"old", b"old, too")
    site.old.clock.now_ms += 1
    for partition, value in ((0, b"a"), (1, b"b"), (0, b"c"), (1, b"d")):
        site.old.send("orders", site.old.clock.now_ms, value=value, partition=partition)
    later(site, 2 * HOLD_MS)
    copy = site.copied(tmp_path / "copy")
    mirror(site, b"old", b"a", b"b")
    moved(site, copy)
    assert site.moved_values() == [b"c", b"d"]


@pytest.mark.parametrize("is_back", [False, True])
def test_a_shard_that_was_long_without_a_master_goes_by_the_copies(
    tmp_path: Path, make: Maker, is_back: bool
) -> None:
    site = site_in(tmp_path, make, shards=SHARDS)
    old = site.old
    assert isinstance(old, ShardedNode)
    old.replica.retention.hold_ms = HOLD_MS
    deliver(site, b"old", b"old, too")
    old.clock.now_ms += 1
    old.without_master = {1}
    for value in (b"waits", b"waits, too"):
        old.send("orders", old.clock.now_ms, value=value, partition=1)
    for _ in range(3):
        later(site, HOLD_MS)
        deliver(site, b"of the other one")
    if is_back:
        old.without_master = set()
        later(site, 1_000)
    copy = site.copied(tmp_path / "copy")
    mirror(site, b"old", b"old, too", b"of the other one", b"waits")
    moved(site, copy)
    assert site.moved_values() == ([b"waits, too"] if is_back else [b"waits", b"waits, too"])


def test_deliveries_are_looked_for_since_the_last_step_of_the_shard_that_is_furthest_behind(
    tmp_path: Path, make: Maker
) -> None:
    """A node may have read the steps of one shard later than those of another."""
    node = make(shards=SHARDS, partitions=SHARDS)
    node.lead()
    newest = node.replica.newest
    assert newest is not None
    now_ms = newest.record.now_ms
    parts = [
        replace(newest.record, frontier=each, now_ms=now_ms - late_ms, last_steps=())
        for late_ms, each in zip((0, HOUR_MS), shared_out(newest.record.frontier, 2), strict=True)
    ]
    joint = joint_record(parts)
    floor, since_ms = _looked_back(joint, joint)
    assert floor == joint.frontier
    assert since_ms <= now_ms - HOUR_MS


def test_a_dead_letter_that_was_mirrored_is_not_sent_again(site: Site, tmp_path: Path) -> None:
    half_mirrored(site, tmp_path / "copy")
    deliver(site, b"dead", topic="missing")
    later(site, 2_000)
    again = site.copied(tmp_path / "again")
    assert moved(site, again, is_dry=True).plan.topics["missing"] == 0, "no copies: by the cut"
    site.new.kafka.create_topic("missing", 1, {})
    for record in site.old.read("orders"):
        site.new.kafka.append("missing", 0, record.key, record.value, record.headers)
    assert moved(site, again, is_dry=True).plan.topics["missing"] == 1
    [letter] = site.old.read("delayd-dead")
    site.new.kafka.append("delayd-dead", 0, letter.key, letter.value, letter.headers)
    assert moved(site, again, is_dry=True).plan.topics["missing"] == 0


@pytest.mark.parametrize("is_mirrored", [True, False])
def test_a_run_that_goes_on_counts_the_copies_of_the_first_one(
    site: Site, tmp_path: Path, is_mirrored: bool
) -> None:
    """MirrorMaker was not stopped, and the new nodes deliver."""
    copy = half_mirrored(site, tmp_path / "copy")
    with pytest.raises(KilledError):
        moved(site, copy, Kill(15))
    assert 0 < len(site.moved_values()) < 3
    mirror(site, b"b", b"d")
    moved(site, copy, is_mirrored=is_mirrored)
    assert site.moved_values() == [b"b", b"d", b"later"]


def test_copies_behind_an_open_transaction_are_waited_for(site: Site, tmp_path: Path) -> None:
    copy = half_mirrored(site, tmp_path / "copy")
    with closing(site.new.bus.transactional_producer("mirror")) as producer:
        producer.init_transactions(1_000)
        producer.begin()
        producer.send("orders", key=None, value=b"x", headers=[], partition=0, on_ack=None)
        producer.flush(1_000)
        with pytest.raises(MoveError, match="a transaction is open in orders/0"):
            moved(site, copy)
        producer.commit(1_000)
    moved(site, copy)
    assert site.moved_values() == [b"b", b"d", b"later"]


@pytest.mark.parametrize(
    ("first", "oldest", "blind_ms"),
    [
        ({0: 0}, {}, FOREVER_MS),
        ({0: 0, 1: 0}, {0: 50}, -1),
        ({0: 0, 1: 0}, {0: 150, 1: 170}, 150),
        ({0: 9, 1: 0}, {0: 50, 1: 170}, -1),
        ({0: 9, 1: 0}, {0: 150, 1: 50}, 150 + SKEW_MS),
        ({0: 9, 1: 0}, {1: 50}, FOREVER_MS + SKEW_MS),
    ],
    ids=["empty", "from before", "begun late", "trimmed", "trimmed late", "all trimmed"],
)
def test_a_target_shows_what_came_after_its_oldest_delivery(
    first: dict[int, int], oldest: dict[int, int], blind_ms: int
) -> None:
    assert blind_until_ms(first, oldest, 100) == blind_ms
