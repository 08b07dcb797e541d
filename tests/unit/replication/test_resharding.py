"""More shards, or fewer: nothing is covered that was not, and no number falls.

Source: docs/design/shards.md, "More or fewer".
"""

from dataclasses import replace

import pytest
from cluster_settings import SETTINGS as OF_ONE
from hypothesis import given
from hypothesis import strategies as st

from replication.frontier import Frontier, first_frontier
from replication.holds import Hold
from replication.quotas import AGAIN_MS, PENDING, Quota, Quotas
from replication.rank import Rank
from replication.record import FrontierRecord, StepCounts, decode, encode
from replication.resharding import (
    Standstill,
    can_become,
    closed,
    is_at_rest,
    resharded,
    resharding_problem,
    rest_end_ms,
    resting,
    sources_of,
    stand_together,
)
from replication.rules import Barrier
from replication.settings import AT_LEAST_ONCE, Settings
from replication.shards import joint_frontier
from replication.smoothing import SHIFTS_MAX, Queue

PARTITIONS, LANES = 12, 3
COUNTS = (1, 2, 3, 4, 6, 12)
T_MS = 40
ALL = [
    (lane, Rank(due_ms, partition, offset))
    for lane in range(LANES)
    for due_ms in (9, 39, 40, 41)
    for partition in range(PARTITIONS)
    for offset in (0, 3, 7)
]


def settings_of(shards: int) -> Settings:
    return replace(OF_ONE, partitions=PARTITIONS, lanes=LANES, shards=shards)


def record_of(frontier: Frontier, **more: object) -> FrontierRecord:
    settings = settings_of(frontier.shards)
    return FrontierRecord(frontier, f"n/{frontier.shard}", 30, StepCounts(1), 7, settings, **more)  # type: ignore[arg-type]


@st.composite
def frontiers(draw: st.DrawFn, shards: int, *, at_rest: bool) -> list[FrontierRecord]:
    """The newest records of a cluster; `at_rest`: all lanes of all stand at T."""
    number = st.integers(0, 9)
    ranks = st.builds(Rank, st.integers(0, 45), st.integers(0, PARTITIONS - 1), number)
    found = []
    for shard in range(shards):
        owned = [p % shards == shard for p in range(PARTITIONS)]
        cursors = (
            (Rank(T_MS, 0, 0),) * LANES if at_rest else tuple(draw(ranks) for _ in range(LANES))
        )
        frontier = Frontier(
            shard=shard,
            cursors=cursors,
            offsets=tuple(draw(number) if mine else 0 for mine in owned),
            own_writes=tuple(draw(number) - 1 if mine else -1 for mine in owned),
            term=draw(number),
            step=draw(number),
            shards=shards,
        )
        barriers = tuple(Barrier(p, 0, 7) for p in range(shard, PARTITIONS, shards))
        found.append(record_of(frontier, barriers=barriers))
    return found


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[FrontierRecord], int]:
    """The newest records of all shards, and how many there shall be."""
    before = draw(st.sampled_from(COUNTS))
    after = draw(st.sampled_from([n for n in COUNTS if not (n % before and before % n)]))
    return draw(frontiers(before, at_rest=after < before)), after


def done(parts: list[FrontierRecord]) -> set[tuple[int, Rank]]:
    joint = joint_frontier([part.frontier for part in parts])
    return {(lane, rank) for lane, rank in ALL if joint.covers(lane, rank)}


@given(changes())
def test_what_is_done_stays_the_same(change: tuple[list[FrontierRecord], int]) -> None:
    """Rules: resharded"""
    parts, shards = change
    ends = [closed(part, shards, "me") for part in parts]
    assert stand_together(ends, shards)
    after = resharded(ends, shards, {}, "me")
    assert done(after[:shards]) == done(parts)
    before, now = (joint_frontier([p.frontier for p in of]) for of in (parts, after[:shards]))
    assert before.precedes(now) and before.is_within(now) and now.is_within(before)
    assert (before.offsets, before.own_writes) == (now.offsets, now.own_writes)


@given(changes())
def test_no_number_falls_in_any_partition(change: tuple[list[FrontierRecord], int]) -> None:
    parts, shards = change
    ends = [closed(part, shards, "me") for part in parts]
    others = {
        n: record_of(replace(first_frontier(n, PARTITIONS, LANES), term=50, step=60, shards=1))
        for n in range(len(parts), PARTITIONS)
    }
    after = resharded(ends, shards, others, "me")
    assert len(after) == max(shards, len(parts))
    for n, record in enumerate(after):
        last = ends[n] if n < len(ends) else others[n]
        assert record.frontier.shard == n and record.settings.shards == shards
        assert record.frontier.term > last.frontier.term
        assert record.frontier.step > last.frontier.step
        assert not record.resharding and not record.rest_ms
        assert record.counts == StepCounts() and record.digest == 0
        assert decode(encode(record)) == record
        for p in range(PARTITIONS):
            if p % shards != n:
                assert (record.frontier.offsets[p], record.frontier.own_writes[p]) == (0, -1)
                assert all(barrier.partition != p for barrier in record.barriers)
    names = [barrier for record in after for barrier in record.barriers]
    assert sorted(names) == [Barrier(p, 0, 7) for p in range(PARTITIONS)]


@given(st.data())
def test_a_split_that_is_merged_is_what_it_was(data: st.DataObject) -> None:
    parts = data.draw(frontiers(2, at_rest=True))
    split = resharded([closed(p, 6, "me") for p in parts], 6, {}, "me")
    merged = resharded([closed(p, 2, "me") for p in split], 2, {}, "me")
    for before, after in zip(parts, merged[:2], strict=True):
        same = replace(after.frontier, term=before.frontier.term, step=before.frontier.step)
        assert same == before.frontier


def test_steps_and_terms_grow_by_what_is_written_however_often_shards_change() -> None:
    parts = [record_of(replace(first_frontier(0, PARTITIONS, LANES), step=1_000, term=3))]
    others: dict[int, FrontierRecord] = {}
    for shards in (12, 1) * 20:
        made = resharded([closed(p, shards, "me") for p in parts], shards, others, "me")
        parts, others = made[:shards], dict(enumerate(made))
    assert 1_000 < parts[0].frontier.step < 20_000 and parts[0].frontier.term < 20_000


def test_limits_go_along_and_their_gates_are_written_anew() -> None:
    """Rules: quota-shards, resharded"""
    open_, full = Quota(5, 1, 2, 0, 0, 3, 7, 0, 90), Quota(4, 6, 9, 70, 80, 0, 9, PENDING, 95)
    there = first_frontier(0, PARTITIONS, LANES)
    one = [closed(record_of(there, quotas={"t": full}), 2, "me")]
    assert can_become(one, 2)
    begun = full._replace(offset=-1, written_ms=0)
    assert [r.quotas for r in resharded(one, 2, {}, "me")] == [{"t": begun}] * 2
    two = [record_of(replace(there, shard=n, shards=2)) for n in range(2)]
    two[0] = closed(replace(two[0], quotas={"t": open_, "u": open_}), 1, "me")
    two[1] = closed(replace(two[1], quotas={"t": full}), 1, "me")
    assert can_become(two, 1) and can_become(two, 4)
    merged = resharded(two, 1, {}, "me")[0].quotas
    assert merged["t"] == begun._replace(at_ms=0), "the newest order, and shut somewhere"
    assert merged["u"] == open_._replace(offset=-1, at_ms=0), "what others do not have stays"
    older = closed(replace(two[1], quotas={"t": full._replace(at_ms=80)}), 1, "me")
    merged = resharded([two[0], older], 1, {}, "me")[0].quotas
    assert (merged["t"].max_pending, merged["t"].rate) == (5, 3) and merged["t"].is_full
    of = Quotas(merged)
    gates = of.count({"t": 0, "u": 0}, {}, 99)
    assert [(gate.topic, gate.shut) for gate in gates] == [("t", None)], "what is shut is opened"
    of = Quotas(merged)
    gates = of.count({"t": 5, "u": 4}, {}, AGAIN_MS)
    assert [(gate.topic, gate.is_full) for gate in gates] == [("t", True)], "or it is said again"


def test_shards_that_go_on_as_they_were_have_the_limits_that_they_had() -> None:
    """Rules: quota-shards, resharded"""
    there, full = first_frontier(0, PARTITIONS, LANES), Quota(4, 6, 9, 70, 80, 0, 9, PENDING, 95)
    closing = [
        closed(record_of(replace(there, shard=n, shards=2), quotas={f"t-{n}": full}), 2, "me")
        for n in range(2)
    ]
    again = [r.quotas for r in resharded(closing, 2, {}, "me")]
    assert again == [{"t-0": full}, {"t-1": full}], "whose orders stand where they stood"


def test_shards_that_stand_apart_cannot_become_one() -> None:
    there = first_frontier(0, PARTITIONS, LANES)
    parts = [record_of(replace(there, shard=n, shards=4)) for n in range(4)]
    ahead = replace(parts[3].frontier, cursors=(Rank(0, 0, 1),) * LANES)
    parts[3] = replace(parts[3], frontier=ahead)
    assert not stand_together(parts, 2) and not stand_together(parts, 1)
    assert stand_together(parts, 4) and stand_together(parts, 8)
    assert [*sources_of(1, 4, 2)] == [1, 3] and [*sources_of(5, 4, 8)] == [1]


def test_what_closes_and_rests_says_so_and_stands_still() -> None:
    record = record_of(first_frontier(0, PARTITIONS, LANES), holds={"t": Hold(1, 2, 3, 4)})
    for after in (resting(record, T_MS, "me"), closed(record, 4, "me")):
        assert record.frontier.precedes(after.frontier)
        assert after.frontier.term == record.frontier.term + 1
        assert after.needs["resharding"] == "0.2.0" and after.holds == record.holds
        assert decode(encode(after)) == after
        assert replace(after.frontier, term=0, step=0) == record.frontier
    assert resting(resting(record, T_MS, "me"), 0, "me").rest_ms == 0
    assert "resharding" not in record.needs


def test_a_shard_is_at_rest_when_all_its_lanes_stand_at_that_time() -> None:
    record = record_of(first_frontier(0, PARTITIONS, LANES))
    at = Rank(T_MS, 0, 0)
    for cursors, is_there in (
        ((at, at, at), True),
        ((at, at, Rank(T_MS - 1, 3, 9)), False),
        ((at, at, Rank(T_MS, 0, 1)), False),
    ):
        told = resting(
            replace(record, frontier=replace(record.frontier, cursors=cursors)), T_MS, "me"
        )
        assert is_at_rest(told) is is_there
        assert not is_at_rest(replace(told, rest_ms=0))


def test_a_rest_holds_steps_back_until_nobody_can_want_it_any_more() -> None:
    """Rules: shards-rest"""
    rest, end_ms = Standstill(1_000, 4), rest_end_ms(1_000, 4)
    assert [rest.now_ms(now_ms) for now_ms in (5, 999, 1_000, 1_001)] == [5, 999, 999, 999]
    assert rest.now_ms(end_ms - 1) == 999 and rest.rest_ms == 1_000
    assert rest.now_ms(end_ms) == end_ms and rest.rest_ms == 0
    assert Standstill(0, 4).now_ms(77) == 77
    assert rest_end_ms(0, 64) > rest_end_ms(0, 4) + 50_000, "as long as it takes to close them"


def test_a_rate_after_a_pause_is_shared_out_and_put_together_again() -> None:
    record = record_of(first_frontier(0, PARTITIONS, LANES), holds={"t": Hold(1, 9, 7, 5)})
    split = resharded([closed(record, 4, "me")], 4, {}, "me")
    assert [r.holds["t"] for r in split] == [Hold(1, 9, rate, -1) for rate in (2, 2, 2, 1)]
    merged = resharded([closed(r, 1, "me") for r in split], 1, {}, "me")
    assert merged[0].holds["t"] == Hold(1, 9, 7, -1)
    assert not any(record.holds for record in merged[1:])
    few = replace(record, holds={"t": Hold(1, 9, 1, 5)})
    split = resharded([closed(few, 4, "me")], 4, {}, "me")
    assert all(r.holds["t"].rate == 1 for r in split), "a hold with no rate would never end"


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=12),
        min_size=2,
        max_size=4,
    )
)
def test_turns_that_were_given_keep_their_place_or_come_later(
    lists: list[list[tuple[int, int]]],
) -> None:
    queues = []
    for shifts in lists:
        kept: list[tuple[int, int]] = []
        for from_ms, by_ms in sorted(shifts):
            if not kept or (from_ms > kept[-1][0] and by_ms > kept[-1][1]):
                kept.append((from_ms, by_ms))
        last_ms = kept[-1][1] if kept else 0
        queues.append(Queue(5_000_000, 60_000_000, 50 + last_ms, 3, tuple(kept)))
    there = first_frontier(0, PARTITIONS, LANES)
    parts = [
        record_of(replace(there, shard=n, shards=len(queues)), smoothing={"t": queue})
        for n, queue in enumerate(queues)
    ]
    [first, *_] = resharded([closed(p, 1, "me") for p in parts], 1, {}, "me")
    joined = first.smoothing["t"]
    assert len(joined.shifts) <= SHIFTS_MAX
    assert joined.shifts == tuple(sorted(joined.shifts))
    for queue in queues:
        places = [joined.place_ms(turn_ms) for turn_ms in range(51)]
        assert all(queue.place_ms(turn) <= place for turn, place in enumerate(places))
        assert places == sorted(places) and places[-1] <= joined.tail_ms
        assert joined.next_ns >= queue.next_ns and joined.served_ns >= queue.served_ns


@pytest.mark.parametrize(
    ("shards", "before", "said"),
    [
        (8, 4, "cannot be shared out"),
        (6, 4, "a multiple"),
        (0, 1, "1 to 64"),
        (4, 2, None),
        (2, 4, None),
        (4, 4, None),
    ],
)
def test_not_every_number_can_be(shards: int, before: int, said: str | None) -> None:
    problem = resharding_problem(settings_of(before), shards)
    assert (said in (problem or "")) if said else problem is None
    assert "exactly-once" in (
        resharding_problem(replace(OF_ONE, guarantee=AT_LEAST_ONCE), OF_ONE.partitions) or ""
    )
