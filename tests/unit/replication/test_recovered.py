"""The rules of docs/design/recovering.md: the floor, the fates, what is blind."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from replication.frontier import Frontier, first_frontier
from replication.rank import Rank
from replication.recovered import (
    FOREVER_MS,
    SKEW_MS,
    Facts,
    Fate,
    Kept,
    Trace,
    beyond,
    blind_until_ms,
    fate_of,
    floor_of,
    lowered,
)

LANES, PARTITIONS = 3, 2
FIRST = first_frontier(0, PARTITIONS, LANES)
PLACES = st.tuples(st.integers(0, LANES - 1), st.integers(0, 20), st.integers(0, PARTITIONS - 1))


def facts(lane: int = 0, due_ms: int = 10, offset: int = 5, **known: object) -> Facts:
    return Facts(lane, Rank(due_ms, 0, offset), False, **known)  # type: ignore[arg-type]


def at(due_ms: int, offset: int) -> Frontier:
    """Everything due before and below an offset is done."""
    rank = Rank(due_ms, 0, 0)
    return replace(FIRST, cursors=(rank,) * LANES, offsets=(offset,) * PARTITIONS)


@given(st.lists(PLACES, max_size=30), st.integers(0, 21), st.lists(st.integers(0, 31), min_size=2))
def test_with_all_traces_floor_and_frontier_cover_the_same(
    places: list[tuple[int, int, int]], now_ms: int, ends: list[int]
) -> None:
    # Offsets are the messages' numbers; a frontier that is a box has delivered what it covers.
    stored = [(lane, Rank(due, p, n)) for n, (lane, due, p) in enumerate(places)]
    last = replace(FIRST, cursors=(Rank(now_ms, 0, 0),) * LANES, offsets=tuple(ends[:PARTITIONS]))
    traces = [
        Trace(rank.partition, rank.offset, rank, lane)
        for lane, rank in stored
        if last.covers(lane, rank)
    ]
    floor = floor_of(FIRST, traces, [])
    assert floor.is_within(last)
    assert all(floor.covers(*each) == last.covers(*each) for each in stored)


def test_the_floor_is_never_before_what_is_known() -> None:
    known = replace(at(100, 50), own_writes=(7, 7))
    floor = floor_of(known, [Trace(0, 3, Rank(5, 0, 3), 1)], [Trace(0, 4)])
    assert floor == known


def test_a_request_that_is_no_message_moves_no_cursor() -> None:
    floor = floor_of(FIRST, [Trace(1, 8)], [Trace(0, 9)])
    assert (floor.cursors, floor.offsets) == (FIRST.cursors, (0, 9))
    assert floor.own_writes == (9, -1)


def test_what_has_a_trace_is_over_wherever_the_floor_is() -> None:
    assert fate_of(facts()._replace(is_over=True), FIRST, 0) is Fate.OVER


def test_what_the_floor_does_not_cover_is_pending() -> None:
    assert fate_of(facts(), at(10, 9), FOREVER_MS) is Fate.PENDING
    assert fate_of(facts(), at(99, 5), FOREVER_MS) is Fate.PENDING


def test_what_the_floor_covers_and_nobody_has_seen_is_missing() -> None:
    assert fate_of(facts(), at(11, 6), FOREVER_MS) is Fate.MISSING


def test_what_a_blind_target_received_is_unseen_or_in_doubt() -> None:
    blind = facts(blind_ms=10)
    assert fate_of(blind, at(11, 6), FOREVER_MS) is Fate.UNSEEN
    assert fate_of(blind, at(11, 5), FOREVER_MS) is Fate.DOUBTFUL
    assert fate_of(blind, at(11, 5), 9) is Fate.PENDING, "no master was there when it was due"
    assert fate_of(facts(blind_ms=9), at(11, 5), FOREVER_MS) is Fate.PENDING
    assert fate_of(facts(blind_ms=9), at(11, 6), FOREVER_MS) is Fate.MISSING


def test_a_kill_counts_for_the_floor_only_if_its_marker_is_passed() -> None:
    assert fate_of(facts(killed_by=8), at(11, 9), 0) is Fate.KILLED
    assert fate_of(facts(killed_by=9), at(11, 9), 0) is Fate.MISSING
    assert fate_of(facts(killed_by=9), at(9, 9), 0) is Fate.KILLED
    blind = facts(killed_by=9, blind_ms=10)
    assert fate_of(blind, at(9, 9), FOREVER_MS) is Fate.DOUBTFUL, "it may be too late"
    assert fate_of(blind, at(9, 10), FOREVER_MS) is Fate.KILLED, "that was answered"


def test_a_lowered_floor_covers_nothing_that_is_missing() -> None:
    floor = at(100, 50)
    missing = [facts(lane=1, due_ms=30), facts(lane=1, due_ms=20), facts(lane=2, due_ms=200)]
    low = lowered(floor, missing)
    assert not any(low.covers(each.lane, each.rank) for each in missing)
    assert low.cursors == (Rank(100, 0, 0), Rank(20, 0, 5), Rank(100, 0, 0))


def test_a_target_is_blind_where_it_may_have_lost_what_came_since() -> None:
    old, young, trimmed = Kept(0, 50), Kept(0, 150), Kept(7, 150)
    assert blind_until_ms([old, old], 100) == -1
    assert blind_until_ms([old, young, Kept(0, None)], 100) == -1, "not made again"
    assert blind_until_ms([old, trimmed], 100) == 150 + SKEW_MS
    assert blind_until_ms([old, Kept(7, None)], 100) == FOREVER_MS
    assert blind_until_ms([young], 100) == 150 + SKEW_MS, "it may have been made again"
    assert blind_until_ms([young, Kept(0, None)], 100) == FOREVER_MS
    assert blind_until_ms([], 100) == FOREVER_MS, "it is not there"


def test_term_and_step_are_beyond_what_time_allows() -> None:
    floor = replace(FIRST, term=3, step=40)
    other = replace(FIRST, term=5, step=20)
    new = beyond(floor, 1_000, 5_000, [other])
    assert new.term > 5 + 4_000 and new.step > 40 + 4_000
    assert floor.precedes(new) and other.precedes(new)
    assert floor.precedes(beyond(floor, 5_000, 1_000, [])), "a clock that went back"
