"""What series change in the state of an id: docs/design/series.md, "Ids"."""

import pytest

from replication.ids import (
    LIVE_MAX,
    NEVER_MS,
    REDRIVES_MAX,
    IdState,
    LiveMessage,
    kill_all,
    with_live,
    without_live,
)
from replication.ingest import Asked, Known, LogState, Op, PendingReply, ingest

NOW_MS = 1_000_000
HOUR_MS = 3_600_000
SERIES = LiveMessage(10, 3, 0, b"s" * 16, goes_on=True)


def decided(asked: Asked, known: Known, append_ms: int = NOW_MS) -> PendingReply:
    return ingest(LogState(50, 0), 0, 50, append_ms, asked, known, HOUR_MS, 1).reply


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_series_is_pending_as_long_as_it_goes_on(goes_on: bool) -> None:
    """Rules: series-pending"""
    known = Known(IdState((SERIES._replace(goes_on=goes_on),)))
    same = Asked(Op.SCHEDULE, NOW_MS, has_id=True, digest=SERIES.digest)
    other = same._replace(digest=b"o" * 16)
    wanted = (
        (PendingReply.DUPLICATE, PendingReply.CONFLICT) if goes_on else (PendingReply.NONE,) * 2
    )
    assert (decided(same, known), decided(other, known)) == wanted


def test_it_counts_among_those_that_leave_no_room_for_a_redrive() -> None:
    full = (SERIES, *(LiveMessage(NOW_MS + n, 10 + n, 0, b"x") for n in range(1, REDRIVES_MAX)))
    redrive = Asked(Op.REDRIVE, NOW_MS, has_id=True)
    assert decided(redrive, Known(IdState(full))) is PendingReply.CONFLICT
    ended = (SERIES._replace(goes_on=False), *full[1:])
    assert decided(redrive, Known(IdState(ended))) is PendingReply.SCHEDULED


def test_an_id_is_not_forgotten_while_its_series_goes_on() -> None:
    """Rules: series-pending"""
    assert IdState((SERIES,)).last_due_ms == NEVER_MS
    assert IdState((SERIES._replace(goes_on=False),)).last_due_ms == SERIES.due_ms
    killed, _ = kill_all(IdState((SERIES,)), 60, NOW_MS, HOUR_MS)
    assert killed.last_due_ms == SERIES.due_ms


def test_a_series_that_goes_on_is_not_dropped_from_the_live_messages() -> None:
    """Rules: series-pending, live-limit"""
    state = IdState((SERIES,))
    for number in range(LIVE_MAX):
        state = with_live(state, LiveMessage(100 + number, 10 + number, 0, b"x"))
    assert len(state.live) == LIVE_MAX and state.live[0] is SERIES
    assert state.live[1].due_ms == 101, "the first that is of no series was dropped"


def test_its_continuation_takes_its_place_and_a_kill_refuses_it() -> None:
    """Rules: series-killed"""
    again = LiveMessage(99, 7, 0, SERIES.digest, 3, goes_on=True)
    assert with_live(without_live(IdState((SERIES,)), 3), again).live == (again,)
    asked = Asked(
        Op.CONTINUE, NOW_MS, has_id=True, continued_offset=3, continued_due_ms=NOW_MS, goes_on=True
    )
    decision = ingest(
        LogState(50, 0), 0, 50, NOW_MS, asked, Known(IdState(), killed_by=40), HOUR_MS, 1
    )
    assert decision.is_refused and decision.rank is None
