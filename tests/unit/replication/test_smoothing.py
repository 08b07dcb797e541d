"""Smoothing: turns, who waits for one, what a stall and a successor make of them."""

from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from replication.frontier import Frontier, first_frontier
from replication.rank import Rank, lane_of, passed_by
from replication.smoothing import (
    BURST_MS,
    CATCH_UP_MS,
    DEFER_MS,
    KEEP_MS,
    RATE_MAX,
    SHIFTS_MAX,
    STALL_MS,
    Deferral,
    Queue,
    Smoothing,
)

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
TOPIC = "orders"
LANES = 4


def smoothing_of(rate: int, queues: dict[str, Queue] | None = None) -> Smoothing:
    return Smoothing({TOPIC: rate}, queues or {}, 30 * DAY_MS)


def decide(smoothing: Smoothing, now_ms: int = NOW_MS, **changed: Any) -> Deferral | None:
    """About a message that became due now."""
    asked = {"rank_ms": now_ms, "partition": 0, "turn_ms": None, "cursor_ms": 0, **changed}
    return smoothing.decide(TOPIC, now_ms=now_ms, **asked)


def deferred(smoothing: Smoothing, count: int, partition: int = 0) -> list[Deferral]:
    """What became of so many messages that are due now: those that did not go out."""
    outcomes = [decide(smoothing, partition=partition) for _ in range(count)]
    return [outcome for outcome in outcomes if outcome is not None]


def frontier_at(cursor_ms: int) -> Frontier:
    first = first_frontier(0, 1, LANES)
    cursors = [Rank(NOW_MS + DAY_MS, 0, 0)] * LANES
    cursors[lane_of(TOPIC, LANES)] = Rank(cursor_ms, 0, 0)
    return Frontier(0, tuple(cursors), first.offsets, first.own_writes, 0, 0)


def test_below_the_rate_nothing_changes() -> None:
    """Rules: smoothing-rate"""
    smoothing = smoothing_of(100)
    assert [decide(smoothing, NOW_MS + 10 * n) for n in range(50)] == [None] * 50
    assert smoothing.delays_ms(NOW_MS + 500) == {TOPIC: 0}


def test_a_quarter_of_a_second_goes_out_at_once_and_the_rest_takes_turns() -> None:
    """Rules: smoothing-rate"""
    rest = deferred(smoothing_of(100), 30)
    assert len(rest) == 30 - 26
    assert [deferral.due_ms for deferral in rest] == [
        NOW_MS + DEFER_MS + 10 * n for n in range(len(rest))
    ]


def test_who_is_due_while_somebody_waits_for_a_turn_waits_behind_him() -> None:
    """However much of the rate is free again.

    Rules: smoothing-order
    """
    smoothing = smoothing_of(100)
    tail_ms = deferred(smoothing, 30)[-1].due_ms
    behind = decide(smoothing, tail_ms)
    assert behind is not None and behind.due_ms == tail_ms + DEFER_MS
    assert decide(smoothing, behind.due_ms + 1, cursor_ms=behind.due_ms + 1) is None


def test_a_late_arrival_waits_only_for_what_is_still_to_come() -> None:
    """Rules: smoothing-order"""
    smoothing = smoothing_of(100)
    tail_ms = deferred(smoothing, 30)[-1].due_ms
    after = {"rank_ms": NOW_MS, "cursor_ms": tail_ms + 1}
    assert decide(smoothing, tail_ms + 5, **after) is None
    assert decide(smoothing, tail_ms + 5, **{**after, "cursor_ms": tail_ms}) is not None


def test_a_message_whose_turn_has_come_goes_out() -> None:
    smoothing = smoothing_of(100)
    for deferral in deferred(smoothing, 30):
        due = {"rank_ms": deferral.due_ms, "turn_ms": deferral.turn_ms}
        assert decide(smoothing, deferral.due_ms + STALL_MS, **due) is None


def after_a_stall(smoothing: Smoothing, rest: list[Deferral]) -> tuple[int, list[Deferral]]:
    """Let delivery stand still for 5 s; return the time, and the messages deferred again."""
    now_ms = rest[0].due_ms + 5_000
    again = [
        decide(smoothing, now_ms, rank_ms=d.due_ms, turn_ms=d.turn_ms, cursor_ms=rest[0].due_ms)
        for d in rest
        if d.due_ms <= now_ms
    ]
    return now_ms, [deferral for deferral in again if deferral is not None]


def test_after_a_stall_what_the_rate_has_room_for_goes_out_and_all_other_turns_shift() -> None:
    """They keep their order and their distance.

    Rules: smoothing-shift
    """
    smoothing = smoothing_of(100)
    rest = deferred(smoothing, 1_000)
    now_ms, again = after_a_stall(smoothing, rest)
    room = 1 + (STALL_MS + BURST_MS) // 10
    assert [deferral.turn_ms for deferral in again] == [d.turn_ms for d in rest[room:501]]
    shift_ms = again[0].due_ms - rest[room].due_ms
    assert DEFER_MS <= again[0].due_ms - now_ms < DEFER_MS + 50
    assert {a.due_ms - (a.turn_ms or 0) for a in again} == {shift_ms}
    last = rest[-1]
    moved = Deferral(last.due_ms + shift_ms, last.turn_ms)
    assert decide(smoothing, last.due_ms, rank_ms=last.due_ms, turn_ms=last.turn_ms) == moved
    behind = decide(smoothing, last.due_ms)
    assert behind is not None and behind.due_ms == moved.due_ms + 10
    assert behind.turn_ms == behind.due_ms - shift_ms


def test_one_that_could_not_come_back_in_time_for_its_shifted_turn_shifts_the_others_too() -> None:
    """Rules: smoothing-shift"""
    smoothing = smoothing_of(100)
    rest = deferred(smoothing, 1_000)
    _, again = after_a_stall(smoothing, rest)
    next_one = rest[501]
    later_ms = again[-1].due_ms + 10
    moved = decide(smoothing, later_ms, rank_ms=later_ms, turn_ms=next_one.turn_ms)
    assert moved is None, "its place is its rank"
    moved = decide(smoothing, later_ms, rank_ms=later_ms - 1, turn_ms=next_one.turn_ms)
    assert moved == Deferral(later_ms + DEFER_MS, next_one.turn_ms)
    first = decide(smoothing, again[0].due_ms, rank_ms=again[0].due_ms, turn_ms=again[0].turn_ms)
    assert first is not None and first.due_ms >= again[0].due_ms + DEFER_MS


def test_nothing_new_shares_a_ms_with_what_has_yet_to_follow_the_shift() -> None:
    """What follows would be written behind it, and so rank behind it.

    Rules: smoothing-order
    """
    smoothing = smoothing_of(5_000)
    rest = deferred(smoothing, 40_000)
    _, again = after_a_stall(smoothing, rest)
    shift_ms = again[-1].due_ms - (again[-1].turn_ms or 0)
    behind = decide(smoothing, rest[-1].due_ms)
    assert behind is not None and behind.due_ms > rest[-1].due_ms + shift_ms


def test_the_more_is_overdue_the_longer_it_is_deferred() -> None:
    """Requeuing takes time, and the first of it must not be overdue again by then.

    Rules: smoothing-shift
    """
    waits_ms = []
    for rate in (100, 10_000):
        smoothing = smoothing_of(rate)
        rest = deferred(smoothing, 8 * rate)
        now_ms, again = after_a_stall(smoothing, rest)
        waits_ms.append(again[0].due_ms - now_ms)
    assert waits_ms[0] < DEFER_MS + 50 < 2 * DEFER_MS < waits_ms[1]


def test_one_that_arrives_after_its_turn_shifts_nobody_and_asks_again() -> None:
    """It was hidden, perhaps behind a user's open transaction: delivery did not stand still.

    Rules: smoothing-shift
    """
    smoothing = smoothing_of(100)
    rest = deferred(smoothing, 300)
    now_ms = rest[0].due_ms + STALL_MS + 1
    late = {"rank_ms": rest[0].due_ms, "turn_ms": rest[0].turn_ms, "cursor_ms": now_ms}
    asked = decide(smoothing, now_ms, **late)
    assert asked is not None and asked.due_ms == rest[-1].due_ms + 10
    in_time = {"rank_ms": now_ms, "turn_ms": rest[100].turn_ms, "cursor_ms": now_ms}
    assert decide(smoothing, now_ms, **in_time) is None


def test_one_that_arrives_late_but_before_its_shifted_turn_keeps_that() -> None:
    """Rules: smoothing-shift"""
    smoothing = smoothing_of(100)
    rest = deferred(smoothing, 1_000)
    _, again = after_a_stall(smoothing, rest)
    last = rest[-1]
    late = {"rank_ms": last.due_ms, "turn_ms": last.turn_ms, "cursor_ms": last.due_ms + 1}
    kept = decide(smoothing, last.due_ms + 1, **late)
    assert kept == Deferral(last.due_ms + again[0].due_ms - (again[0].turn_ms or 0), last.turn_ms)


def test_a_successor_goes_on_with_the_turns_of_its_predecessor() -> None:
    """Rules: smoothing-handed-on"""
    smoothing = smoothing_of(100)
    rest = deferred(smoothing, 130)
    queues = smoothing.queues(frontier_at(NOW_MS + 1), NOW_MS)
    successor = smoothing_of(100, queues)
    now_ms = NOW_MS + 10
    assert decide(successor, now_ms) == decide(smoothing, now_ms)
    due = {"rank_ms": rest[0].due_ms, "turn_ms": rest[0].turn_ms}
    assert decide(successor, rest[0].due_ms, **due) is None


def test_a_successor_counts_what_its_predecessor_let_out_at_once() -> None:
    """Rules: smoothing-handed-on"""
    smoothing = smoothing_of(100)
    assert not deferred(smoothing, 26)
    successor = smoothing_of(100, smoothing.queues(frontier_at(NOW_MS + 1), NOW_MS))
    assert decide(successor, NOW_MS) is not None


def test_a_queue_is_forgotten_some_time_after_its_end() -> None:
    smoothing = smoothing_of(100)
    tail_ms = deferred(smoothing, 30)[-1].due_ms
    kept = smoothing.queues(frontier_at(tail_ms + DAY_MS), tail_ms + KEEP_MS)
    assert set(kept) == {TOPIC}
    assert smoothing.queues(frontier_at(tail_ms + DAY_MS), tail_ms + KEEP_MS + 11) == {}


def test_a_queue_is_kept_as_long_as_its_lane_has_not_passed_its_end() -> None:
    """Rules: smoothing-handed-on"""
    smoothing = smoothing_of(100)
    tail_ms = deferred(smoothing, 30)[-1].due_ms
    assert smoothing.queues(frontier_at(tail_ms), tail_ms + DAY_MS) != {}
    assert smoothing.queues(frontier_at(tail_ms + 1), tail_ms + DAY_MS) == {}


def test_a_topic_that_lost_its_rate_is_let_go() -> None:
    smoothing = smoothing_of(100)
    deferred(smoothing, 30)
    queues = smoothing.queues(frontier_at(NOW_MS), NOW_MS)
    assert Smoothing({}, queues, DAY_MS).queues(frontier_at(NOW_MS), NOW_MS) == {}
    assert not Smoothing({}, queues, DAY_MS).limits(TOPIC)


def test_a_queue_as_long_as_the_longest_delay_gives_no_turn() -> None:
    """The buffer need not keep it for longer; the message asks again then.

    Rules: smoothing-limit
    """
    smoothing = Smoothing({TOPIC: 1}, {}, 3_000)
    outcomes = [decide(smoothing) for _ in range(6)]
    assert [outcome and outcome.due_ms - NOW_MS for outcome in outcomes] == [
        *(None, 1_000, 2_000, 3_000),
        *(3_000, 3_000),
    ]
    assert [outcome and outcome.turn_ms for outcome in outcomes[4:]] == [None, None]


@pytest.mark.parametrize("rate", [0, RATE_MAX + 1])
def test_a_rate_out_of_range_is_a_bug(rate: int) -> None:
    with pytest.raises(AssertionError, match="rate"):
        smoothing_of(rate)


def test_beyond_a_thousand_a_second_the_turns_of_one_ms_are_in_the_order_of_partitions() -> None:
    """Rules: smoothing-order"""
    smoothing = smoothing_of(5_000)
    deferred(smoothing, 1_251)
    placed = [
        (deferral.due_ms, partition)
        for partition in [0, 1, 2, 0, 1, 2] * 20
        for deferral in deferred(smoothing, 1, partition)
    ]
    assert placed == sorted(placed)
    took_ms = placed[-1][0] - placed[0][0]
    assert len(placed) / 5 <= took_ms <= len(placed) / 5 + CATCH_UP_MS + 30


class Lane:
    """A lane with one topic, all of whose messages are ingested at once: what steps do with it."""

    def __init__(self, rate: int, dues: list[tuple[int, int]]) -> None:
        self.rate = rate
        self.smoothing = smoothing_of(rate)
        self.next_offset = 0
        self.waiting: list[tuple[Rank, int, int | None]] = []
        """By rank: number of the user's request, turn."""
        for due_ms, partition in dues:
            self._store(due_ms, partition, self.next_offset, None)
        self.original = {number: rank for rank, number, _ in self.waiting}
        self.cursor = Rank(0, 0, 0)
        self.out: list[tuple[int, int]] = []
        """When, and which."""

    def _store(self, due_ms: int, partition: int, number: int, turn_ms: int | None) -> None:
        heappush(self.waiting, (Rank(due_ms, partition, self.next_offset), number, turn_ms))
        self.next_offset += 1

    def step(self, now_ms: int, records_max: int) -> None:
        """Deal with what is due, up to so many."""
        requeued = []
        for _ in range(records_max):
            if not self.waiting or self.waiting[0][0].due_ms > now_ms:
                break
            rank, number, turn_ms = heappop(self.waiting)
            asked = {"rank_ms": rank.due_ms, "turn_ms": turn_ms, "cursor_ms": self.cursor.due_ms}
            deferral = decide(self.smoothing, now_ms, partition=rank.partition, **asked)
            if deferral is None:
                self.out.append((now_ms, number))
            else:
                assert deferral.due_ms >= now_ms + DEFER_MS, "it could not be ingested in time"
                requeued.append((deferral.due_ms, rank.partition, number, deferral.turn_ms))
        passed = passed_by(now_ms)
        self.cursor = min(passed, self.waiting[0][0]) if self.waiting else passed
        for each in requeued:
            self._store(*each)

    def hand_over(self, now_ms: int) -> None:
        """Another master goes on."""
        cursors = (self.cursor,) * LANES
        frontier = Frontier(0, cursors, (0,), (-1,), 0, 0)
        self.smoothing = smoothing_of(self.rate, self.smoothing.queues(frontier, now_ms))


def test_who_waits_in_another_order_than_that_of_their_turns_goes_out_in_the_end() -> None:
    """Without a fence a message may come back a second time, at a time of long ago. Each put the
    others off for ever (seed 41 of the simulation, at least once).

    Rules: smoothing-shift
    """
    lane = Lane(15, [(NOW_MS, 0)] * 40)
    lane.step(NOW_MS, 1_000)
    turns = sorted(turn_ms or 0 for _, _, turn_ms in lane.waiting)
    ranks = sorted(rank for rank, _, _ in lane.waiting)
    back_to_front = zip(ranks, reversed(turns), strict=True)
    lane.waiting = [(rank, n, turn_ms) for n, (rank, turn_ms) in enumerate(back_to_front)]
    steps, count = 0, len(lane.waiting) + len(lane.out)
    while lane.waiting:
        lane.step(lane.waiting[0][0].due_ms, 1_000)
        steps += 1
        assert steps < 40 * count, "it never ends"
    assert len(lane.out) == count


def test_a_queue_remembers_so_many_shifts() -> None:
    """Beyond that two become one, the later."""
    queue = Queue(0, 0, NOW_MS, 0, ())
    for number in range(SHIFTS_MAX + 3):
        queue = queue.shifted(NOW_MS + number, NOW_MS + 3 * number + 1)
    assert len(queue.shifts) == SHIFTS_MAX
    assert queue.shift_ms == 2 * (SHIFTS_MAX + 2) + 1
    assert queue.tail_ms == NOW_MS + queue.shift_ms
    placed = [queue.place_ms(NOW_MS + number) for number in range(SHIFTS_MAX + 3)]
    assert placed == sorted(placed)


def test_a_shift_is_remembered_until_all_of_its_turns_are_passed() -> None:
    """Rules: smoothing-handed-on"""
    queue = Queue(0, 0, NOW_MS + 900, 0, ((NOW_MS, 100), (NOW_MS + 50, 200), (NOW_MS + 500, 300)))
    assert queue.without_passed(NOW_MS + 250) == queue
    assert queue.without_passed(NOW_MS + 251).shifts == queue.shifts[1:]
    assert queue.without_passed(NOW_MS + 9_000).shifts == queue.shifts[2:]


@given(st.data())
def test_whatever_happens_the_order_holds_and_the_rate_too(data: st.DataObject) -> None:
    """Stalls, failovers and full steps: each message once, in rank order, and in any time at most
    the rate and what may be borrowed. Without stalls above 1,000 a second, where they may turn the
    order round within a ms.

    Rules: smoothing-rate, smoothing-order, smoothing-shift, smoothing-handed-on
    """
    rate = data.draw(st.sampled_from([1, 7, 100, 999, 2_000, 7_777]))
    spread_ms = data.draw(st.sampled_from([0, 30, 3_000]))
    dues = data.draw(
        st.lists(st.tuples(st.integers(0, spread_ms), st.integers(0, 2)), min_size=1, max_size=60)
    )
    lane = Lane(rate, [(NOW_MS + due_ms, partition) for due_ms, partition in dues])
    stalls_ms = [900, 1_100, 6_000] if rate < 1_000 else []
    pauses_ms = st.sampled_from([1, 5, 40, 40, *stalls_ms])
    now_ms, steps = NOW_MS, 0
    while lane.waiting:
        now_ms = max(now_ms + data.draw(pauses_ms), lane.waiting[0][0].due_ms)
        lane.step(now_ms, data.draw(st.sampled_from([1, 3, 1_000])))
        if data.draw(st.integers(0, 9)) == 0:
            lane.hand_over(now_ms)
        steps += 1
        assert steps < 5_000, "it never ends"
    event(f"{min(steps // 100, 9)} hundred steps")
    numbers = [number for _, number in lane.out]
    assert sorted(numbers) == list(range(len(dues))), "each once"
    ranks = [lane.original[number] for number in numbers]
    assert ranks == sorted(ranks)
    times_ms = [at_ms for at_ms, _ in lane.out]
    borrowed_ms = BURST_MS + STALL_MS
    for first in range(len(times_ms)):
        for last in range(first, len(times_ms)):
            took_ms = times_ms[last] - times_ms[first] + borrowed_ms
            assert last - first <= rate * took_ms / 1000, (first, last)
    assert all(a <= b for a, b in pairwise(times_ms))
