"""The verdict of a cancel marker, rule by rule (docs/design/frontier.md, "Verdicts")."""

from dataclasses import replace

import pytest

from replication.frontier import Frontier, first_frontier
from replication.ids import NOTHING, IdState, KilledMessage, Settlement, kill_all, settle
from replication.rank import Rank
from replication.verdict import CancelMarker, Outcome, judge

HOUR_MS = 60 * 60 * 1000
NOW_MS = 100 * HOUR_MS
LANE = 1


def frontier(cursor_ms: int, offset: int) -> Frontier:
    first = first_frontier(0, partitions=1, lanes=2)
    cursors = (Rank(0, 0, 0), Rank(cursor_ms, 0, 0))
    return replace(first, cursors=cursors, offsets=(offset,))


def message(due_ms: int, offset: int) -> KilledMessage:
    return KilledMessage(due_ms, offset, LANE)


def marker(
    *killed: KilledMessage, before: tuple[KilledMessage, ...] = (), is_replace: bool = False
) -> CancelMarker:
    return CancelMarker(is_replace, 0, 50, NOW_MS, killed, before)


@pytest.mark.parametrize(
    ("is_replace", "outcome"), [(False, Outcome.CANCELLED), (True, Outcome.REPLACED)]
)
def test_what_is_not_done_is_cancelled(is_replace: bool, outcome: Outcome) -> None:
    """Rules: verdict-killed"""
    waiting = message(NOW_MS + 5, 7)
    judged = judge(marker(waiting, is_replace=is_replace), frontier(NOW_MS, 40), (), HOUR_MS)
    assert judged == (outcome, (waiting,), ())


def test_a_late_arrival_that_o_has_not_passed_is_cancelled() -> None:
    """Below K but not below O: it has not been delivered.

    Rules: verdict-killed
    """
    waiting = message(NOW_MS - 5, 45)
    judged = judge(marker(waiting), frontier(NOW_MS, 40), (), HOUR_MS)
    assert judged.outcome is Outcome.CANCELLED


@pytest.mark.parametrize("is_replace", [False, True])
def test_what_is_done_is_too_late(is_replace: bool) -> None:
    """Rules: verdict-too-late"""
    done = message(NOW_MS - 5, 7)
    judged = judge(marker(done, is_replace=is_replace), frontier(NOW_MS, 40), (), HOUR_MS)
    assert judged == (Outcome.TOO_LATE, (), (done,))


def test_one_of_several_that_is_not_done_makes_it_cancelled_and_only_it_is_listed() -> None:
    """Rules: verdict-killed"""
    done, waiting = message(NOW_MS - 5, 7), message(NOW_MS + 5, 9)
    judged = judge(marker(done, waiting), frontier(NOW_MS, 40), (), HOUR_MS)
    assert judged == (Outcome.CANCELLED, (waiting,), (done,))


def test_a_done_message_whose_continuation_was_refused_is_cancelled() -> None:
    """Rules: verdict-refused"""
    done = message(NOW_MS - 5, 7)
    judged = judge(marker(done), frontier(NOW_MS, 40), {7}, HOUR_MS)
    assert judged == (Outcome.CANCELLED, (done,), ())


def test_a_message_done_longer_ago_than_ids_are_kept_does_not_count() -> None:
    """Other nodes may have dropped it: the verdict must be the same.

    Rules: verdict-ignores-old
    """
    old = message(NOW_MS - HOUR_MS - 1, 7)
    judged = judge(marker(old), frontier(NOW_MS, 40), (), HOUR_MS)
    assert judged.outcome is Outcome.NOT_FOUND
    kept = message(NOW_MS - HOUR_MS, 7)
    assert judge(marker(kept), frontier(NOW_MS, 40), (), HOUR_MS).outcome is Outcome.TOO_LATE


def test_an_old_message_that_is_not_done_counts() -> None:
    """Nobody can have dropped it, however long no master was there.

    Rules: verdict-ignores-old
    """
    old = message(NOW_MS - HOUR_MS - 1, 7)
    judged = judge(marker(old), frontier(NOW_MS - 2 * HOUR_MS, 40), (), HOUR_MS)
    assert judged == (Outcome.CANCELLED, (old,), ())


def test_a_repeated_cancel_is_cancelled_again_while_the_killed_set_proves_it() -> None:
    """Rules: verdict-again"""
    killed = message(NOW_MS + 5, 7)
    again = marker(before=(killed,))
    assert judge(again, frontier(NOW_MS, 49), (), HOUR_MS) == (Outcome.CANCELLED, (killed,), ())
    late = judge(again, frontier(NOW_MS + 6, 49), (), HOUR_MS)
    assert late == (Outcome.NOT_FOUND, (), (killed,))


def test_a_repeated_cancel_of_what_was_to_be_retried_is_cancelled_again() -> None:
    """Rules: verdict-again"""
    refused = message(NOW_MS - 5, 7)
    judged = judge(marker(before=(refused,)), frontier(NOW_MS, 40), {7}, HOUR_MS)
    assert judged == (Outcome.CANCELLED, (refused,), ())


def test_nothing_under_the_id() -> None:
    """Rules: verdict-nothing"""
    assert judge(marker(), frontier(NOW_MS, 40), (), HOUR_MS).outcome is Outcome.NOT_FOUND
    replaced = judge(marker(is_replace=True), frontier(NOW_MS, 40), (), HOUR_MS)
    assert replaced.outcome is Outcome.SCHEDULED


SETTLED = Settlement(40, (), (message(NOW_MS - 5, 7),), False, NOW_MS)


@pytest.mark.parametrize(
    ("killed", "outcome"), [(False, Outcome.TOO_LATE), (True, Outcome.CANCELLED)]
)
def test_a_cancel_that_finds_nothing_gets_the_verdict_of_the_last_settlement(
    killed: bool, outcome: Outcome
) -> None:
    """Rules: verdict-settled"""
    settled = SETTLED._replace(killed=SETTLED.done, done=()) if killed else SETTLED
    judged = judge(marker(), frontier(NOW_MS, 40), (), HOUR_MS, settled)
    assert judged.settlement(marker(), NOW_MS) is None, "the log says it already"
    assert judged == (outcome, settled.killed, settled.done)


def test_a_settlement_counts_as_long_as_ids_are_remembered() -> None:
    """Rules: verdict-settled"""
    due_ms = NOW_MS - HOUR_MS
    for past_ms, outcome in ((0, Outcome.TOO_LATE), (1, Outcome.NOT_FOUND)):
        settled = SETTLED._replace(done=(message(due_ms - past_ms, 7),))
        assert judge(marker(), frontier(NOW_MS, 40), (), HOUR_MS, settled).outcome is outcome


def test_what_is_live_comes_before_what_was_settled() -> None:
    """Rules: verdict-settled"""
    waiting = message(NOW_MS + 5, 42)
    judged = judge(marker(waiting), frontier(NOW_MS, 45), (), HOUR_MS, SETTLED)
    expected = Settlement(50, (waiting,), (), False, NOW_MS)
    assert judged.settlement(marker(waiting), NOW_MS) == expected
    assert judged == (Outcome.CANCELLED, (waiting,), ())
    replaced = judge(marker(is_replace=True), frontier(NOW_MS, 45), (), HOUR_MS, SETTLED)
    assert replaced.outcome is Outcome.SCHEDULED


def test_a_marker_that_finds_nothing_live_holds_what_is_remembered() -> None:
    """Until it is passed the id is not forgotten: it may have to be told what an earlier one was.

    Rules: verdict-settled
    """
    state, _ = kill_all(IdState((), (message(NOW_MS, 7),), 40), 50, NOW_MS, HOUR_MS)
    assert state == IdState((), (message(NOW_MS, 7),), 50)
    assert kill_all(NOTHING, 50, NOW_MS, HOUR_MS) == (NOTHING, ())


def test_the_first_settlement_of_a_marker_stays() -> None:
    """Where the guarantee is at-least-once two masters may settle one.

    Rules: verdict-settled
    """
    once = settle(NOTHING, SETTLED)
    assert once.settled == SETTLED and once.last_due_ms == NOW_MS - 5
    assert settle(once, SETTLED._replace(done=())) == once
    later = SETTLED._replace(marker_offset=41)
    assert settle(once, later).settled == later
