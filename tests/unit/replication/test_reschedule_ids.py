"""What reschedules change in the state of an id: docs/design/rescheduling.md."""

from dataclasses import replace

import pytest

from replication.frontier import first_frontier
from replication.ids import (
    IdState,
    KilledMessage,
    LiveMessage,
    Reservation,
    Settlement,
    reserve,
    settle,
)
from replication.ingest import Asked, Decision, Known, LogState, Op, PendingReply, ingest
from replication.rank import Rank
from replication.verdict import CancelMarker, Move, Outcome, judge

NOW_MS = 1_000_000_000
HOUR_MS = 3_600_000
TRAIL_MS = HOUR_MS // 6
AHEAD_MS = NOW_MS + 3 * HOUR_MS
"""By a broker's clock that is ahead."""
LONG_AGO_MS = NOW_MS - 2 * HOUR_MS
DUE_MS = NOW_MS + 5_000
MESSAGE = LiveMessage(DUE_MS, 3, 0, b"m" * 16)
OTHER = LiveMessage(DUE_MS, 4, 0, b"o" * 16)
TO_MS = NOW_MS + 60_000
RESCHEDULE = Asked(Op.RESCHEDULE, TO_MS, has_id=True, latest_ms=NOW_MS + 100 * HOUR_MS)


def taken(state: LogState, append_ms: int, asked: Asked, known: Known) -> Decision:
    return ingest(state, 0, state.next_offset, append_ms, asked, known, HOUR_MS, TRAIL_MS)


def continued(message: LiveMessage | KilledMessage, moved_by: int) -> Asked:
    return Asked(
        Op.CONTINUE,
        TO_MS,
        has_id=True,
        continued_offset=message.offset,
        continued_due_ms=message.due_ms,
        moved_by=moved_by,
    )


def held_by(marker_offset: int, *messages: LiveMessage) -> IdState:
    return reserve(IdState(messages), marker_offset, tuple((m.due_ms, TO_MS) for m in messages))


@pytest.mark.parametrize("stamps_ms", [(AHEAD_MS,), (NOW_MS, AHEAD_MS)], ids=["one", "two"])
def test_what_a_marker_stamped_ahead_has_killed_goes_on(stamps_ms: tuple[int, ...]) -> None:
    """It is refused as of the time of its own record, which is earlier.

    Rules: reschedule-moves
    """
    state, id = LogState(50, NOW_MS - TRAIL_MS), IdState((MESSAGE,))
    for append_ms in stamps_ms:
        marked = taken(state, append_ms, RESCHEDULE, Known(id))
        assert marked.id is not None and [m.offset for m in marked.killed] == [MESSAGE.offset]
        state, id = marked.state, marked.id
    last = state.next_offset - 1
    moved = taken(state, NOW_MS + 10, continued(MESSAGE, last), Known(id, killed_by=50))
    assert moved.rank == Rank(TO_MS, 0, last + 1) and not moved.is_refused
    assert moved.id is not None and moved.id.reserved is None
    assert [m.offset for m in moved.id.live] == [last + 1]


def test_a_settlement_frees_what_was_done_and_does_not_count() -> None:
    """Rules: reschedule-settled"""
    earlier = Settlement(40, (KilledMessage(NOW_MS, 2, 0),), (), False, NOW_MS)
    id = held_by(50, MESSAGE)._replace(settled=earlier)
    killed = (KilledMessage(DUE_MS, MESSAGE.offset, 0),)
    move = Move(False, ((DUE_MS, TO_MS),))
    marker = CancelMarker(False, 0, 50, AHEAD_MS, killed, (), move=move)
    first = first_frontier(0, partitions=1, lanes=1)
    before = replace(first, cursors=(Rank(DUE_MS + 1, 0, 0),), offsets=(49,))
    judged = judge(marker, before, (), HOUR_MS)
    assert judged.outcome is Outcome.NOT_FOUND
    settlement = judged.settlement(marker, DUE_MS + 1)
    assert settlement == Settlement(50, (), (), False, DUE_MS + 1)
    after = settle(id, settlement)
    assert after.reserved is None
    assert after.settled == earlier, "it says no more than that the id is free"


def test_what_was_due_long_ago_is_held_and_takes_no_id() -> None:
    """Other nodes may have dropped it.

    Rules: reschedule-reserves, reschedule-unmovable, reschedule-too-far
    """
    old = MESSAGE._replace(due_ms=LONG_AGO_MS, goes_on=True)
    id, state = held_by(40, old, OTHER), LogState(50, NOW_MS - TRAIL_MS)
    same = Asked(Op.SCHEDULE, TO_MS, has_id=True, digest=old.digest)
    assert taken(state, NOW_MS, same, Known(id)).reply is PendingReply.CONFLICT
    assert taken(state, NOW_MS, same, Known(held_by(40, old))).rank is not None
    assert taken(state, NOW_MS, RESCHEDULE, Known(id)).reply is PendingReply.CANCEL_MARKER
    far = reserve(IdState((old,)), 40, ((LONG_AGO_MS, RESCHEDULE.latest_ms),))
    put_off = RESCHEDULE._replace(by_ms=HOUR_MS)
    assert taken(state, NOW_MS, put_off, Known(far)).reply is PendingReply.CANCEL_MARKER
    recent = held_by(40, old._replace(due_ms=NOW_MS))
    assert taken(state, NOW_MS, RESCHEDULE, Known(recent)).reply is PendingReply.UNMOVABLE


def test_what_is_moved_to_before_now_is_due_now() -> None:
    """A wish that counts from the due time would be passed else, and the id forgotten.

    Rules: reschedule-moves
    """
    state = LogState(50, NOW_MS - TRAIL_MS)
    for by_ms, due_ms in ((-2 * HOUR_MS, NOW_MS), (-HOUR_MS + 1, NOW_MS + 1)):
        message = MESSAGE._replace(due_ms=NOW_MS + HOUR_MS)
        asked = RESCHEDULE._replace(by_ms=by_ms)
        told = taken(state, NOW_MS, asked, Known(IdState((message,))))
        assert told.dues_ms == ((message.due_ms, due_ms),)


def test_of_a_reservation_in_part_each_known_message_goes_on() -> None:
    """Rules: reschedule-moves"""
    whole = held_by(50, MESSAGE, OTHER)
    assert whole.reserved is not None
    id = whole._replace(reserved=whole.reserved._replace(is_whole=False))
    state = LogState(51, NOW_MS - TRAIL_MS)
    first = taken(state, NOW_MS, continued(MESSAGE, 50), Known(id, killed_by=50))
    assert first.rank is not None and first.id is not None
    second = taken(first.state, NOW_MS, continued(OTHER, 50), Known(first.id, killed_by=50))
    assert second.rank is not None and second.id is not None
    assert second.id.reserved is None
    unknown = IdState(reserved=Reservation(50, (), is_whole=False))
    only = taken(state, NOW_MS, continued(MESSAGE, 50), Known(unknown))
    assert only.id is not None and only.id.reserved is None
