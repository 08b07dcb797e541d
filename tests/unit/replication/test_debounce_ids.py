"""What debounces change in the state of an id: docs/design/debounce.md."""

import pytest

from replication.asked import Asked, Op
from replication.debounce import run_of, supersede
from replication.frontier import first_frontier
from replication.ids import (
    LIVE_MAX,
    SERIES,
    WAITS,
    IdState,
    LiveMessage,
    Reservation,
    killed_from,
    reserve,
)
from replication.ingest import Decision, Known, LogState, PendingReply, ingest
from replication.verdict import CancelMarker, Outcome, judge

NOW_MS = 1_000_000_000
HOUR_MS = 3_600_000
TRAIL_MS = HOUR_MS // 6
DELAY_MS, WAIT_MS = 2_000, 5_000
PLAIN = LiveMessage(NOW_MS + 9_000, 3, 0, b"p" * 16)
OPEN = LiveMessage(NOW_MS + 1_000, 4, 0, b"d" * 16, since_ms=NOW_MS - 3_500)


def debounced(id: IdState, *, append_ms: int = NOW_MS, log_ms: int = 0) -> Decision:
    state = LogState(50, log_ms)
    asked = Asked(
        Op.DEBOUNCE, append_ms + DELAY_MS, has_id=True, digest=b"n" * 16, max_wait_ms=WAIT_MS
    )
    return ingest(state, 0, 50, append_ms, asked, Known(id), HOUR_MS, TRAIL_MS)


def live_of(decision: Decision) -> tuple[LiveMessage, ...]:
    assert decision.id is not None, "a debounce is remembered"
    return decision.id.live


def test_the_first_one_is_due_after_its_delay_and_nobody_is_told() -> None:
    """Rules: debounce-due, debounce-told"""
    decision = debounced(IdState())
    assert decision.rank == (NOW_MS + DELAY_MS, 0, 50)
    assert (decision.reply, decision.killed) == (PendingReply.NONE, ())
    assert live_of(decision) == (LiveMessage(NOW_MS + DELAY_MS, 50, 0, b"n" * 16, since_ms=NOW_MS),)


def test_one_that_joins_a_run_is_due_by_the_first_of_it_at_the_latest() -> None:
    """Rules: debounce-due, debounce-run, debounce-replaces, debounce-told"""
    decision = debounced(IdState((OPEN,)))
    assert decision.rank is not None and decision.rank.due_ms == OPEN.since_ms + WAIT_MS
    assert decision.killed == killed_from((OPEN,)) and decision.reply is PendingReply.NONE
    [after] = live_of(decision)
    assert (after.offset, after.since_ms) == (50, OPEN.since_ms)


def test_the_longest_wait_never_makes_one_due_before_it_is_asked_for() -> None:
    """Rules: debounce-due"""
    long_ago = replace_since(OPEN, NOW_MS - 60_000)
    decision = debounced(IdState((long_ago,)))
    assert decision.rank is not None and decision.rank.due_ms == NOW_MS


@pytest.mark.parametrize("due_ms", [NOW_MS, NOW_MS - 1], ids=["now", "before"])
def test_what_is_due_goes_out_beside_the_new_one_which_begins_a_run(due_ms: int) -> None:
    """Rules: debounce-closed, debounce-run"""
    due = OPEN._replace(due_ms=due_ms)
    decision = debounced(IdState((due,)))
    assert decision.killed == () and decision.reply is PendingReply.NONE
    assert [(m.offset, m.since_ms) for m in live_of(decision)] == [(4, due.since_ms), (50, NOW_MS)]
    assert decision.rank is not None and decision.rank.due_ms == NOW_MS + DELAY_MS


def test_requests_that_never_cease_keep_no_message_from_going_out() -> None:
    """At each time some request is the last one, and its message is due within the longest wait.

    Rules: debounce-closed, debounce-due
    """
    state, id, dues_ms = LogState(0, 0), IdState(), []
    for number in range(20_000):
        append_ms = NOW_MS + number
        asked = Asked(Op.DEBOUNCE, append_ms + DELAY_MS, has_id=True, max_wait_ms=WAIT_MS)
        decision = ingest(state, 0, number, append_ms, asked, Known(id), HOUR_MS, TRAIL_MS)
        assert decision.id is not None and len(decision.id.live) <= 20_000 // WAIT_MS + 1
        state, id = decision.state, decision.id
    dues_ms = [message.due_ms for message in id.live]
    assert dues_ms[:3] == [NOW_MS + WAIT_MS * n for n in (1, 2, 3)]
    assert dues_ms[3] == NOW_MS + 4 * WAIT_MS


def test_what_only_waits_for_its_turn_goes_out() -> None:
    """Rules: debounce-closed"""
    waiting = PLAIN._replace(since_ms=WAITS)
    decision = debounced(IdState((waiting,)))
    assert decision.killed == () and waiting in live_of(decision)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (PLAIN, "a plain message, or one that is retried"),
        (PLAIN._replace(due_ms=NOW_MS - 5, goes_on=SERIES), "a series"),
    ],
)
def test_whoever_takes_the_place_of_anything_else_is_answered(
    message: LiveMessage, says: str
) -> None:
    """Rules: debounce-replaces, debounce-told"""
    decision = debounced(IdState((message,)))
    assert decision.killed == killed_from((message,)), says
    assert decision.reply is PendingReply.CANCEL_MARKER
    both = debounced(IdState((OPEN, message)))
    assert len(both.killed) == 2 and both.reply is PendingReply.CANCEL_MARKER


def test_one_that_takes_the_place_of_a_plain_message_begins_a_run() -> None:
    """Rules: debounce-run"""
    decision = debounced(IdState((PLAIN,)))
    assert decision.rank is not None and decision.rank.due_ms == NOW_MS + DELAY_MS


def held(new_due_ms: int) -> IdState:
    return reserve(IdState((PLAIN,)), 40, ((PLAIN.due_ms, new_due_ms),))


def test_what_a_reschedule_holds_for_later_is_taken_over() -> None:
    """Rules: debounce-replaces, debounce-told"""
    decision = debounced(held(NOW_MS + 1))
    assert decision.killed == killed_from((PLAIN,))
    assert decision.reply is PendingReply.CANCEL_MARKER
    assert decision.id is not None and decision.id.reserved is None


def test_what_is_fired_goes_out() -> None:
    """Rules: debounce-closed"""
    before = held(NOW_MS)
    decision = debounced(before)
    assert decision.killed == () and decision.reply is PendingReply.NONE
    assert decision.id is not None and decision.id.reserved == before.reserved
    assert isinstance(before.reserved, Reservation)


def test_a_clock_that_was_ahead_does_not_lengthen_a_run() -> None:
    """Rules: debounce-run"""
    ahead = LiveMessage(NOW_MS + 2 * HOUR_MS, 4, 0, b"d" * 16, since_ms=NOW_MS + 2 * HOUR_MS)
    decision = debounced(IdState((ahead,)))
    assert live_of(decision)[0].since_ms == NOW_MS


def test_two_open_ones_are_one_run_from_the_first_of_both() -> None:
    """Rules: debounce-run"""
    other = OPEN._replace(offset=5, since_ms=NOW_MS - 100)
    assert run_of((other, OPEN), NOW_MS, NOW_MS) == OPEN.since_ms
    decision = debounced(IdState((OPEN, other)))
    assert len(decision.killed) == 2 and len(live_of(decision)) == 1


def test_what_is_due_of_a_time_that_log_time_has_reached_is_closed() -> None:
    """Rules: debounce-closed"""
    decision = debounced(IdState((OPEN,)), log_ms=OPEN.due_ms)
    assert decision.killed == ()


def test_a_run_keeps_one_message_however_many_join_it() -> None:
    """Rules: debounce-replaces"""
    state, id = LogState(0, 0), IdState()
    for number in range(1_000):
        asked = Asked(Op.DEBOUNCE, NOW_MS + DELAY_MS, has_id=True, max_wait_ms=WAIT_MS)
        decision = ingest(state, 0, number, NOW_MS, asked, Known(id), HOUR_MS, TRAIL_MS)
        assert decision.id is not None
        state, id = decision.state, decision.id
    assert len(id.live) == len(id.killed) == 1


def test_an_id_keeps_no_more_than_so_many_that_have_gone_out() -> None:
    state, id = LogState(0, 0), IdState()
    for number in range(3 * LIVE_MAX):
        append_ms = NOW_MS + number * WAIT_MS
        asked = Asked(Op.DEBOUNCE, append_ms, has_id=True, max_wait_ms=0)
        decision = ingest(state, 0, number, append_ms, asked, Known(id), HOUR_MS, TRAIL_MS)
        assert decision.id is not None
        state, id = decision.state, decision.id
    assert len(id.live) == LIVE_MAX and id.killed == ()


def test_what_a_replace_has_stored_is_known_again_although_a_run_began_since() -> None:
    """It is neither killed nor forgotten, so the same replace changes nothing."""
    state = IdState((PLAIN._replace(due_ms=NOW_MS - 1),), replaced_by=3)
    decision = debounced(state)
    assert decision.id is not None and decision.id.replaced_by == 3
    again = Asked(Op.REPLACE, NOW_MS - 1, has_id=True, digest=PLAIN.digest, has_own_time=True)
    repeated = ingest(decision.state, 0, 60, NOW_MS, again, Known(decision.id), HOUR_MS, TRAIL_MS)
    assert repeated.repeats == 3


def test_what_escaped_its_kill_is_not_called_cancelled_later() -> None:
    """Its continuation came so late that nodes may have forgotten the kill."""
    ahead = killed_from((LiveMessage(NOW_MS + 2 * HOUR_MS, 4, 0, b"d" * 16),))
    marker = CancelMarker(False, 0, 60, NOW_MS, (), ahead)
    before = first_frontier(0, 1, 1)
    told = judge(marker, before, set(), HOUR_MS, None, {4})
    assert told.outcome is Outcome.NOT_FOUND
    assert judge(marker, before, {4}, HOUR_MS, None, {4}).outcome is Outcome.CANCELLED


def test_what_is_held_and_was_due_long_ago_is_not_taken_over() -> None:
    """Other nodes may have dropped it: they would say nothing where this one answers."""
    old = LiveMessage(NOW_MS - 2 * HOUR_MS, 3, 0, b"p" * 16)
    state = reserve(IdState((old,), killed_from((OPEN,)), 9), 40, ((old.due_ms, NOW_MS + 5),))
    after, killed = supersede(state, 50, NOW_MS, HOUR_MS)
    assert (after, killed) == (state, ())
    recent = old._replace(due_ms=NOW_MS - HOUR_MS)
    state = reserve(IdState((recent,)), 40, ((recent.due_ms, NOW_MS + 5),))
    assert supersede(state, 50, NOW_MS, HOUR_MS)[1] == killed_from((recent,))


def replace_since(message: LiveMessage, since_ms: int) -> LiveMessage:
    return message._replace(since_ms=since_ms)
