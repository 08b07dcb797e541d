"""The delivery queue, rule by rule; `test_delivery_queue_model.py` is the same against sets, with
any schedule."""

from dataclasses import replace

import pytest

from replication.delivery_queue import (
    LATE_GRACE_MS,
    DeliveryQueue,
    OpenLimits,
    Plan,
    StepLimits,
    Wanted,
)
from replication.entry import Entry
from replication.frontier import Frontier, first_frontier
from replication.rank import START, Rank

LANES, PARTITIONS = 4, 2
NOW_MS = 10_000
PLENTY = StepLimits(records_max=1_000, bytes_max=1_000_000)


def message(
    offset: int, due_ms: int, *, partition: int = 0, lane: int = 0, length: int = 10
) -> Entry:
    return Entry(due_ms, partition, offset, lane, 0, 0, length)


def reply(offset: int, *, partition: int = 0, length: int = 10) -> Entry:
    return Entry(0, partition, offset, 0, 1, 0, length)


def queue_of(*entries: Entry, frontier: Frontier | None = None) -> DeliveryQueue:
    """A delivery queue as at a takeover, with all opened that may be due."""
    frontier = frontier or first_frontier(0, PARTITIONS, LANES)
    queue = DeliveryQueue(frontier, [e for e in entries if e.kind == 1])
    stored = sorted(e for e in entries if e.kind == 0)
    for entry in stored:
        if (
            entry < frontier.cursors[entry.lane]
            and entry.offset >= frontier.offsets[entry.partition]
        ):
            queue.arrived(entry)
    open_to(queue, stored, Rank(1_000_000, 0, 0))
    return queue


def open_to(queue: DeliveryQueue, stored: list[Entry], until: Rank) -> None:
    """Open all that is wanted below a rank, in one run."""
    wanted = queue.wanted(until)
    assert wanted is not None
    queue.open(wanted, [e for e in stored if wanted.since <= e < until], until)


def step(
    queue: DeliveryQueue,
    now_ms: int = NOW_MS,
    ingested: tuple[int, ...] = (100, 100),
    limits: StepLimits = PLENTY,
) -> Plan:
    plan = queue.plan(now_ms, ingested, limits)
    queue.begin(plan)
    return plan


def test_what_is_due_is_delivered_in_rank_order_and_the_rest_stays() -> None:
    """docs/design/frontier.md, Step: in rank order within a lane, and K' at most now + 1 ms.

    Rules: never-early, order
    """
    first, second, tie = message(9, 5_000), message(1, 9_000), message(2, 9_000)
    due_now, later = message(3, NOW_MS), message(4, NOW_MS + 1)
    queue = queue_of(later, due_now, tie, second, first)
    plan = step(queue)
    assert plan.deliveries == (first, second, tie, due_now)
    assert plan.frontier.cursors[0] == Rank(NOW_MS + 1, 0, 0)
    assert step(queue, NOW_MS + 1).deliveries == (later,)


def test_lanes_with_nothing_due_stand_just_beyond_now() -> None:
    """docs/design/frontier.md, Full steps: lanes with nothing due stand at (now + 1, 0, 0).

    Rules: k-within-now
    """
    plan = step(queue_of())
    assert set(plan.frontier.cursors) == {Rank(NOW_MS + 1, 0, 0)}
    assert plan.frontier.offsets == (100, 100)
    assert plan.is_empty


def test_a_full_lane_is_cut_at_its_next_message_and_others_go_on() -> None:
    """docs/design/frontier.md, Full steps: cut per lane at K', lanes sharing the budget fairly.

    Rules: full-step
    """
    hot = [message(n, 5_000, lane=1) for n in range(20)]
    quiet = message(50, 6_000, lane=2)
    queue = queue_of(*hot, quiet)
    plan = step(queue, limits=StepLimits(records_max=5, bytes_max=1_000_000))
    assert plan.deliveries == (*hot[:4], quiet)
    assert plan.frontier.cursors[1] == Rank(5_000, 0, 4)
    assert plan.frontier.cursors[2] == Rank(NOW_MS + 1, 0, 0)
    assert plan.frontier.offsets == (100, 100), "a full lane cuts K', never O'"
    assert step(queue).deliveries == tuple(hot[4:])


def test_a_step_full_of_bytes_is_cut_but_always_takes_one() -> None:
    """docs/design/frontier.md, Full steps: records, bytes; nobody stands still.

    Rules: full-step
    """
    large = [message(n, 5_000, length=700) for n in range(3)]
    queue = queue_of(*large)
    limits = StepLimits(records_max=100, bytes_max=1_000)
    assert [len(step(queue, limits=limits).deliveries) for _ in range(3)] == [1, 1, 1]
    queue = queue_of(message(0, 5_000, length=5_000))
    assert len(step(queue, limits=limits).deliveries) == 1


def test_a_lane_that_is_first_gets_the_step_and_each_other_one_a_record() -> None:
    """docs/design/pauses.md, The end."""
    first = [message(n, 5_000, lane=1, length=90) for n in range(8)]
    others = [message(20 + n, 5_000, lane=2 + n % 2) for n in range(8)]
    queue = queue_of(*first, *others)
    limits = StepLimits(10, 1_000, lanes_first=frozenset({1}))
    assert step(queue, limits=limits).deliveries == (*first, *others[:2])
    assert len(step(queue, limits=limits).deliveries) == 6, "if it has nothing, others share"


def test_a_late_arrival_is_delivered_by_the_step_that_moves_o_over_it() -> None:
    """docs/design/frontier.md, Step: a late arrival has rank < K when O moves over it.

    Rules: late-arrival
    """
    queue = queue_of()
    step(queue, ingested=(5, 5))
    late = message(5, NOW_MS - 3_000)
    queue.arrived(late)
    assert queue.next_due_ms() == NOW_MS - 3_000
    plan = step(queue, ingested=(6, 5))
    assert (plan.deliveries, plan.late, plan.frontier.offsets) == ((late,), 1, (6, 5))
    assert plan.frontier.cursors[0] == Rank(NOW_MS + 1, 0, 0), "it moves no cursor"


def test_a_late_arrival_that_is_not_yet_due_holds_o_below_it() -> None:
    """docs/design/frontier.md, Step: one not yet due on this master holds O' below it.

    Rules: late-not-due
    """
    queue = queue_of()
    step(queue, NOW_MS, ingested=(5, 5))
    queue.arrived(message(7, NOW_MS))
    queue.arrived(message(8, 3_000))
    plan = step(queue, NOW_MS - 1, ingested=(9, 9))
    assert (plan.deliveries, plan.frontier.offsets) == ((), (7, 9))
    plan = step(queue, NOW_MS, ingested=(9, 9))
    assert [e.offset for e in plan.deliveries] == [8, 7]
    assert plan.frontier.offsets == (9, 9)


def test_k_waits_for_a_message_that_o_cannot_pass_and_then_passes_it() -> None:
    """docs/design/frontier.md, Step: K' stops before a stored message with offset >= O' and
    rank >= K until 100 ms after its due, then passes it (it becomes late).

    Rules: late-grace
    """
    queue = queue_of()
    step(queue, NOW_MS, ingested=(0, 0))
    # A late burst that fills steps of one record, and a message behind it in another lane.
    burst = [message(offset, 2_000) for offset in range(4)]
    behind = message(9, NOW_MS + 10, lane=3)
    for entry in [*burst, behind]:
        queue.arrived(entry)
    one = StepLimits(records_max=1, bytes_max=1_000)

    waits = step(queue, NOW_MS + 10 + LATE_GRACE_MS - 1, ingested=(10, 0), limits=one)
    assert waits.deliveries == (burst[0],)
    assert waits.frontier.cursors[3] == Rank(NOW_MS + 10, 0, 9)
    assert waits.frontier.cursors[2] == Rank(NOW_MS + 10 + LATE_GRACE_MS, 0, 0)

    passes = step(queue, NOW_MS + 10 + LATE_GRACE_MS, ingested=(10, 0), limits=one)
    assert (passes.deliveries, passes.passed_over) == ((burst[1],), (behind,))
    assert passes.frontier.cursors[3] == Rank(NOW_MS + 11 + LATE_GRACE_MS, 0, 0)

    last = [step(queue, NOW_MS + 200, (10, 0), one).deliveries for _ in range(3)]
    assert last == [(burst[2],), (burst[3],), (behind,)]


def test_replies_are_written_by_the_step_that_passes_their_offsets() -> None:
    """docs/design/frontier.md, Step: all pending replies with offsets in [O, O').

    Rules: reply-waits
    """
    first, second, third = reply(2), reply(4), reply(7)
    queue = queue_of(first)
    queue.reply_arrived(second)
    assert queue.next_due_ms() == 0
    assert step(queue, ingested=(5, 0)).replies == (first, second)
    assert step(queue, ingested=(7, 0)).replies == ()
    queue.reply_arrived(third)
    assert step(queue, ingested=(8, 0)).replies == (third,)
    assert queue.next_due_ms() is None


def test_too_many_replies_and_late_arrivals_cut_o() -> None:
    """docs/design/frontier.md, Full steps: only late arrivals and pending replies cut O'.

    Rules: o-cut-by-few
    """
    queue = queue_of(*[reply(n) for n in range(6)], reply(3, partition=1))
    plan = step(queue, limits=StepLimits(records_max=4, bytes_max=1_000))
    assert [(e.partition, e.offset) for e in plan.replies] == [(0, 0), (0, 1), (1, 3)]
    assert plan.frontier.offsets == (2, 100)
    plan = step(queue, limits=StepLimits(records_max=100, bytes_max=25))
    assert [e.offset for e in plan.replies] == [2, 3]
    assert plan.frontier.offsets == (4, 100)


def test_o_passes_neither_replies_nor_late_arrivals_that_a_full_step_leaves_out() -> None:
    """docs/design/frontier.md, Full steps. O' once skipped what the budget had left out of one
    queue when it was the other queue that ended the step: messages were lost.

    Rules: o-cut-by-few
    """
    queue = queue_of()
    step(queue, ingested=(0, 0))
    for offset in (0, 1):
        queue.arrived(message(offset, 2_000))
    queue.reply_arrived(reply(5))
    one = StepLimits(records_max=1, bytes_max=1_000)
    plans = [step(queue, ingested=(6, 0), limits=one) for _ in range(3)]
    assert [plan.frontier.offsets[0] for plan in plans] == [1, 5, 6]
    assert [[e.offset for e in (*p.deliveries, *p.replies)] for p in plans] == [[0], [1], [5]]


def test_a_step_of_a_node_that_is_behind_is_a_bug() -> None:
    """docs/design/frontier.md, Takeover: let the own wheel reach O.

    Rules: wheel-reaches-o
    """
    queue = queue_of()
    step(queue, ingested=(5, 5))
    with pytest.raises(AssertionError, match="reached O"):
        queue.plan(NOW_MS, (4, 9), PLENTY)


@pytest.mark.parametrize("entry", [message(5, 1_000), reply(5)])
def test_a_late_arrival_or_reply_beyond_what_was_ingested_is_a_bug(entry: Entry) -> None:
    """docs/design/frontier.md, Step: the snapshot O' is of what is ingested."""
    queue = queue_of()
    step(queue, ingested=(0, 0))
    queue.reply_arrived(entry) if entry.kind else queue.arrived(entry)
    with pytest.raises(AssertionError, match="beyond what was ingested"):
        queue.plan(NOW_MS, (5, 5), PLENTY)


def test_k_never_enters_what_has_not_been_opened() -> None:
    """docs/design/frontier.md, Step: Done is exact over all stored messages, opened or not."""
    queue = DeliveryQueue(first_frontier(0, PARTITIONS, LANES), [])
    everywhere = frozenset(range(LANES))
    assert queue.wanted(Rank(6_000, 0, 0)) == Wanted(START, everywhere)
    open_to(queue, [message(1, 5_500)], Rank(5_700, 1, 8))
    plan = step(queue)
    assert plan.deliveries == (message(1, 5_500),)
    assert set(plan.frontier.cursors) == {Rank(5_700, 1, 8)}
    assert queue.opened_to == Rank(5_700, 1, 8)
    assert queue.wanted(Rank(5_700, 1, 8)) is None
    assert queue.wanted(Rank(6_000, 0, 0)) == Wanted(Rank(5_700, 1, 8), everywhere)


def test_a_lane_begins_open_to_its_cursor() -> None:
    """docs/design/frontier.md, Takeover: a successor opens from the cursors on."""
    first = first_frontier(0, partitions=1, lanes=2)
    frontier = replace(first, cursors=(Rank(5_000, 0, 3), Rank(7_000, 0, 0)))
    queue = DeliveryQueue(frontier, [])
    wanted = queue.wanted(Rank(9_000, 0, 0))
    assert wanted == Wanted(Rank(5_000, 0, 3), frozenset({0, 1}))
    assert queue.wanted(Rank(7_000, 0, 0)) == Wanted(Rank(5_000, 0, 3), frozenset({0}))
    assert queue.wanted(Rank(9_000, 0, 0), since=Rank(6_000, 0, 0)) == Wanted(
        Rank(7_000, 0, 0), frozenset({1})
    )
    done = [message(2, 5_000), message(5, 6_000, lane=1)]
    left = [message(3, 5_000), message(4, 8_000, lane=1)]
    queue.open(wanted, sorted([*done, *left]), Rank(9_000, 0, 0))
    assert step(queue, ingested=(100,)).deliveries == tuple(left)


SMALL = OpenLimits(lane_max=2, total_max=100, share=1)


def test_a_lane_that_is_full_waits_alone() -> None:
    """docs/design/frontier.md, Full steps: a hot lane delays only itself; memory is bounded.

    Rules: fair-lanes
    """
    queue = DeliveryQueue(first_frontier(0, PARTITIONS, LANES), [], SMALL)
    hot = [message(n, 1_500, lane=1) for n in range(3)]
    quiet = message(8, 2_500, lane=2)
    end = Rank(11_000, 0, 0)
    open_to(queue, [*hot, quiet], end)
    assert queue.wanted(end) is None
    plan = step(queue)
    assert plan.deliveries == (*hot[:2], quiet)
    assert plan.frontier.cursors[1] == Rank(1_500, 0, 2)
    wanted = Wanted(Rank(1_500, 0, 2), frozenset({1}))
    assert queue.wanted(end) == wanted, "there is room again"
    queue.open(wanted, [hot[2], quiet], end)
    assert step(queue).deliveries == (hot[2],), "and nothing is taken in twice"


def test_a_lane_asks_for_more_when_it_is_half_empty() -> None:
    """docs/design/frontier.md, Full steps: a large slot is not looked through for every little."""
    queue = DeliveryQueue(first_frontier(0, PARTITIONS, LANES), [], OpenLimits(4, 100, 1))
    hot = [message(n, 1_000 + n) for n in range(9)]
    end = Rank(9_000, 0, 0)
    open_to(queue, hot, end)
    one = StepLimits(records_max=1)
    step(queue, limits=one)
    assert queue.wanted(end) is None
    step(queue, limits=one)
    assert queue.wanted(end) == Wanted(Rank(1_004, 0, 4), frozenset({0}))


def test_all_lanes_together_are_bounded_and_each_has_its_share() -> None:
    """docs/design/frontier.md, Full steps: lanes that lag do not stop the others."""
    queue = DeliveryQueue(first_frontier(0, PARTITIONS, LANES), [], OpenLimits(6, 8, 2))
    stored = sorted(
        message(10 * lane + n, 1_000 + n, lane=lane) for lane in range(4) for n in range(9)
    )
    open_to(queue, stored, Rank(9_000, 0, 0))
    plan = step(queue)
    taken = [sum(e.lane == lane for e in plan.deliveries) for lane in range(4)]
    assert taken == [6, 2, 2, 2], "the first takes what there is, the others their share"


def test_what_arrives_in_a_crowded_lane_is_left_to_the_wheel() -> None:
    """docs/design/frontier.md, Full steps: however much arrives, a lane stays bounded."""
    queue = DeliveryQueue(first_frontier(0, PARTITIONS, LANES), [], SMALL)
    end = Rank(20_000, 0, 0)
    open_to(queue, [], end)
    hot = [message(n, 1_000 + n, lane=1) for n in range(9)]
    for entry in hot:
        queue.arrived(entry)
    delivered: list[Entry] = []
    for _ in range(9):
        plan = step(queue)
        assert len(plan.deliveries) <= 4
        delivered += plan.deliveries
        if (wanted := queue.wanted(end)) is not None:
            queue.open(wanted, [e for e in hot if not e < wanted.since], end)
    assert delivered == hot


def test_a_suspect_lane_sends_no_more_than_it_may() -> None:
    """docs/design/frontier.md, Targets: after a refusal less is sent there, elsewhere as much."""
    queue = DeliveryQueue(first_frontier(0, partitions=1, lanes=2), [])
    open_to(queue, [], Rank(2_000, 0, 0))
    for offset in range(10):
        queue.arrived(Entry(1_000, 0, offset, offset % 2, 0, 0, 100))
    plan = queue.plan(1_500, (10,), StepLimits(lanes_max={0: 2}))
    assert [e.lane for e in plan.deliveries] == [0, 0, 1, 1, 1, 1, 1]
