"""Shards: their frontiers, and the joint one, against sets of messages.

Source: docs/design/shards.md.
"""

from dataclasses import replace

import pytest
from cluster_settings import SETTINGS as CLUSTER
from hypothesis import given
from hypothesis import strategies as st

from replication.frontier import ALL_SHARDS, Frontier
from replication.holds import Hold, home_of
from replication.quotas import PENDING, Quota
from replication.rank import Rank
from replication.record import FrontierFormatError, FrontierRecord, StepCounts, decode, encode
from replication.rules import Barrier
from replication.settings import AT_LEAST_ONCE, SHARDS_MAX, Settings, shards_problem
from replication.shards import (
    first_of_shard,
    home_in,
    joint_frontier,
    joint_record,
    lowest_cursors,
    shard_of,
    shared_out,
)

SHARDS, LANES, PARTITIONS = 3, 2, 6
DUE_MAX, OFFSET_MAX = 4, 3
SETTINGS = replace(CLUSTER, lanes=LANES, partitions=PARTITIONS, shards=SHARDS)

ALL = [
    (lane, Rank(due_ms, partition, offset))
    for lane in range(LANES)
    for due_ms in range(DUE_MAX)
    for partition in range(PARTITIONS)
    for offset in range(OFFSET_MAX)
]
ranks = st.builds(
    Rank, st.integers(0, DUE_MAX), st.integers(0, PARTITIONS - 1), st.integers(0, OFFSET_MAX)
)


@st.composite
def parts(draw: st.DrawFn) -> list[Frontier]:
    """A frontier of each shard, anywhere."""
    found = []
    for shard in range(SHARDS):
        first = first_of_shard(shard, SHARDS, PARTITIONS, LANES)
        own = range(shard, PARTITIONS, SHARDS)
        offsets, writes = list(first.offsets), list(first.own_writes)
        for partition in own:
            offsets[partition] = draw(st.integers(0, OFFSET_MAX))
            writes[partition] = draw(st.integers(-1, OFFSET_MAX))
        found.append(
            replace(
                first,
                cursors=tuple(draw(ranks) for _ in range(LANES)),
                offsets=tuple(offsets),
                own_writes=tuple(writes),
                term=draw(st.integers(0, 9)),
                step=draw(st.integers(0, 9)),
            )
        )
    return found


def done(frontier: Frontier) -> set[tuple[int, Rank]]:
    return {(lane, rank) for lane, rank in ALL if frontier.covers(lane, rank)}


@given(parts())
def test_the_joint_frontier_covers_what_any_shard_covers(found: list[Frontier]) -> None:
    """Rules: joint-covers"""
    joint = joint_frontier(found)
    assert done(joint) == set().union(*map(done, found))
    for shard, part in enumerate(found):
        mine = {p for p in range(PARTITIONS) if part.owns(p)}
        assert mine == {p for p in range(PARTITIONS) if shard_of(p, SHARDS) == shard}
        assert {rank.partition for _, rank in done(part)} <= mine
        for p in mine:
            assert joint.cursors_of(p) == part.cursors == part.cursors_of(p)
            assert (joint.offsets[p], joint.own_writes[p]) == (part.offsets[p], part.own_writes[p])
    assert joint.lowest_cursor == min(part.lowest_cursor for part in found)
    assert all(map(joint.owns, range(PARTITIONS)))


@given(parts(), st.integers(0, SHARDS - 1), st.booleans())
def test_a_step_of_a_shard_is_one_of_all(found: list[Frontier], shard: int, moves: bool) -> None:
    before = joint_frontier(found)
    part = found[shard]
    offsets = list(part.offsets)
    offsets[shard] += moves
    found[shard] = replace(part, offsets=tuple(offsets), step=part.step + 1)
    after = joint_frontier(found)
    assert before.precedes(after) and not after.precedes(before)
    assert part.precedes(found[shard])


@given(parts())
def test_a_node_has_reached_all_when_it_has_reached_each(found: list[Frontier]) -> None:
    joint = joint_frontier(found)
    for offsets in ((OFFSET_MAX,) * PARTITIONS, (1,) * PARTITIONS, (2, 0, 1, 3, 3, 3)):
        assert joint.reached_by(offsets) == all(part.reached_by(offsets) for part in found)


def record_of(part: Frontier, **more: object) -> FrontierRecord:
    return FrontierRecord(part, f"n/{part.shard}", 5, StepCounts(1), 7, SETTINGS, **more)  # type: ignore[arg-type]


@given(parts())
def test_records_of_shards_are_read_as_they_were_written(found: list[Frontier]) -> None:
    records = [record_of(part) for part in found]
    for record in (*records, joint_record(records)):
        assert decode(encode(record)) == record
        assert record.needs == {"shards": "0.2.0"}
    assert joint_record(records).frontier.shard == ALL_SHARDS


def test_a_joint_record_has_what_each_says() -> None:
    found = [first_of_shard(shard, SHARDS, PARTITIONS, LANES) for shard in range(SHARDS)]
    barriers = [Barrier(shard, 9, 7) for shard in range(SHARDS)]
    records = [
        replace(
            record_of(part, barriers=(barriers[part.shard],), holds={"t": Hold(1, 2, 3, n)}),
            now_ms=10 + n,
        )
        for n, part in enumerate(found)
    ]
    joint = joint_record(records)
    assert joint.barriers == tuple(barriers)
    assert (joint.now_ms, joint.owner) == (12, "n/2")
    assert (joint.counts.delivered, joint.digest) == (3, 21)
    assert joint.holds == {"t": Hold(1, 2, 9, 0)}


def test_a_joint_record_has_the_newest_limits_and_the_highest_counts() -> None:
    """Rules: quota-shards"""
    found = [first_of_shard(shard, SHARDS, PARTITIONS, LANES) for shard in range(SHARDS)]
    quotas = [
        Quota(5, 7, 1, 60, 80, 0, 1, PENDING, 30),
        Quota(9, 6, 2, 0, 0, 2, 3, 0, 40),
        Quota(5, 8, 3, 50, 70, 0, 2, PENDING, 30),
    ]
    records = [
        record_of(part, quotas={"t": quota, f"u{part.shard}": quota})
        for part, quota in zip(found, quotas, strict=True)
    ]
    joint = joint_record(records).quotas
    assert joint["t"] == Quota(9, 8, 2, 50, 80, 2, 3, PENDING, 40)
    assert [joint[f"u{n}"] for n in range(SHARDS)] == quotas


def test_a_lane_stands_where_its_lowest_shard_does() -> None:
    """Rules: quota-shards"""
    found = [
        replace(part, cursors=tuple(Rank(10 * part.shard + lane, 0, 0) for lane in range(LANES)))
        for part in (first_of_shard(n, SHARDS, PARTITIONS, LANES) for n in range(SHARDS))
    ]
    joint = joint_frontier(found)
    assert lowest_cursors(found[1], joint) == found[0].cursors
    ahead = replace(found[0], cursors=(Rank(15, 0, 0),) * LANES)
    expected = tuple(min(Rank(15, 0, 0), Rank(10 + lane, 0, 0)) for lane in range(LANES))
    assert lowest_cursors(ahead, joint) == expected, "its own as its step has it"
    assert lowest_cursors(found[1], None) == (Rank(0, 0, 0),) * LANES
    alone = first_of_shard(0, 1, PARTITIONS, LANES)
    assert lowest_cursors(alone, None) is alone.cursors


def test_of_one_shard_all_is_as_it_was() -> None:
    part = first_of_shard(0, 1, PARTITIONS, LANES)
    record = replace(record_of(part), settings=replace(SETTINGS, shards=1))
    assert joint_frontier([part]) is part and joint_record([record]) is record
    assert "shards" not in record.settings.to_json() and record.needs == {}
    assert b"needs" not in encode(record)
    topics = [f"t{n}" for n in range(50)]
    assert all(home_in(t, 0, 1, PARTITIONS) == home_of(t, PARTITIONS) for t in topics)


def test_a_topic_has_a_home_in_each_shard() -> None:
    for topic in (f"t{n}" for n in range(50)):
        homes = [home_in(topic, shard, SHARDS, PARTITIONS) for shard in range(SHARDS)]
        assert [shard_of(home, SHARDS) for home in homes] == list(range(SHARDS))
        assert max(homes) < PARTITIONS


@pytest.mark.parametrize(
    ("shards", "partitions", "guarantee", "said"),
    [
        (0, 4, "exactly-once", "1 to 64"),
        (SHARDS_MAX + 1, 4, "exactly-once", "1 to 64"),
        (3, 4, "exactly-once", "multiple of the number of shards"),
        (2, 4, AT_LEAST_ONCE, "exactly-once"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(
    shards: int, partitions: int, guarantee: str, said: str
) -> None:
    assert said in (shards_problem(shards, partitions, guarantee) or "")
    fields = {**SETTINGS.to_json(), "shards": shards, "partitions": partitions}
    with pytest.raises(ValueError, match="settings: "):
        Settings.from_json({**fields, "guarantee": guarantee})
    assert shards_problem(4, 8, "exactly-once") is None


def test_a_release_that_knows_no_shards_stops_at_their_records() -> None:
    value = encode(record_of(first_of_shard(1, SHARDS, PARTITIONS, LANES)))
    with pytest.raises(FrontierFormatError, match="what of it must be known"):
        decode(value.replace(b'"needs":{"shards":"0.2.0"},', b"").replace(b't":3', b't":2'))


@given(parts())
def test_what_all_have_done_is_shared_out_as_it_was(found: list[Frontier]) -> None:
    joint = joint_frontier(found)
    again = shared_out(joint, len(found))
    assert [replace(part, term=0, step=0) for part in again] == [
        replace(part, term=0, step=0) for part in found
    ]


@given(parts(), st.sampled_from([1, 2]))
def test_of_fewer_shards_each_stands_as_far_as_any_that_it_is_made_of(
    found: list[Frontier], shards: int
) -> None:
    joint = joint_frontier(found)
    for part in shared_out(joint, shards):
        for partition in range(len(joint.offsets)):
            if part.owns(partition):
                cursors = joint.cursors_of(partition)
                assert all(k <= j for k, j in zip(cursors, part.cursors, strict=True))
                assert part.offsets[partition] == joint.offsets[partition]
