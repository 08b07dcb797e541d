"""Log time: docs/design/frontier.md, "Log time"."""

from dataclasses import replace

import pytest
from cluster_settings import SETTINGS
from hypothesis import given
from hypothesis import strategies as st

from replication.ids import NOTHING, IdState
from replication.ingest import Asked, Decision, Known, LogState, Op, PendingReply, ingest
from replication.log_time import log_time_after, trail_ms_of

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
TRAIL_MS = 10 * MINUTE_MS
NOW_MS = 1_700_000_000_000
STEADY = LogState(1, NOW_MS - TRAIL_MS)
"""A log whose last record was stamped NOW_MS."""

times = st.lists(st.integers(0, 30).map(lambda n: NOW_MS + n * 7 * MINUTE_MS), max_size=40)


def after(state: LogState, *append_times: int) -> LogState:
    """Return the state after records with these times."""
    for append_ms in append_times:
        following = log_time_after(state.log_ms, state.leap_ms, append_ms, TRAIL_MS)
        state = LogState(state.next_offset + 1, *following)
    return state


def steps(first_ms: int, last_ms: int) -> range:
    return range(first_ms, last_ms + 1, MINUTE_MS)


def schedule(state: LogState, append_ms: int, due_ms: int, known: IdState) -> Decision:
    """Ask for the same message under the same id."""
    asked = Asked(Op.SCHEDULE, due_ms, 0, True, b"d" * 16)
    offset = state.next_offset
    return ingest(state, 0, offset, append_ms, asked, Known(known), HOUR_MS, TRAIL_MS)


def test_a_record_that_is_stamped_a_day_ahead_moves_no_other() -> None:
    """Rules: log-time, leap-not-followed"""
    due_ms = NOW_MS + HOUR_MS // 2
    first = schedule(STEADY, NOW_MS, due_ms, NOTHING)
    assert first.id is not None
    ahead = after(first.state, NOW_MS + DAY_MS)

    again = schedule(ahead, NOW_MS + 1_000, due_ms, first.id)

    assert again.reply is PendingReply.DUPLICATE
    assert again.state.leap_ms == 0, "the clock is right again"


def test_after_an_idle_time_an_id_is_free_at_once() -> None:
    """Rules: schedule-free"""
    first = schedule(STEADY, NOW_MS, NOW_MS + MINUTE_MS, NOTHING)
    assert first.id is not None
    later_ms = NOW_MS + 3 * DAY_MS
    assert schedule(first.state, later_ms, later_ms + MINUTE_MS, first.id).rank is not None


def test_a_small_step_ahead_is_followed_and_judges_no_other_record_by_it() -> None:
    state = after(STEADY, NOW_MS + TRAIL_MS)
    assert state.log_ms == NOW_MS and state.as_of_ms(NOW_MS + 1) == NOW_MS + 1


def test_an_idle_time_is_believed_when_the_log_has_stayed_beyond_it_for_two_hours() -> None:
    """Rules: leap-not-followed"""
    back_ms = NOW_MS + 3 * DAY_MS
    waiting = after(STEADY, *steps(back_ms, back_ms + 2 * HOUR_MS - 1))
    assert waiting[1:] == (STEADY.log_ms, back_ms)
    assert after(waiting, back_ms + 2 * HOUR_MS)[1:] == (back_ms + 2 * HOUR_MS - TRAIL_MS, 0)


def test_a_clock_that_stays_ahead_for_an_hour_and_comes_back_is_not_believed() -> None:
    wrong = steps(NOW_MS + DAY_MS, NOW_MS + DAY_MS + HOUR_MS)
    assert after(STEADY, *wrong, NOW_MS + HOUR_MS)[1:] == (STEADY.log_ms, NOW_MS + HOUR_MS)


def test_an_outlier_after_an_idle_time_proves_what_came_before_it_and_not_itself() -> None:
    back_ms = NOW_MS + DAY_MS
    state = after(STEADY, back_ms, back_ms + 30 * DAY_MS)
    assert state[1:] == (back_ms - TRAIL_MS, back_ms + 30 * DAY_MS)
    assert after(state, back_ms + MINUTE_MS)[1:] == (back_ms + MINUTE_MS - TRAIL_MS, 0)


def test_a_log_of_a_record_a_day_is_followed_a_record_behind() -> None:
    daily = [NOW_MS + n * DAY_MS for n in range(1, 10)]
    assert after(STEADY, *daily)[1:] == (daily[-2] - TRAIL_MS, daily[-1])


@given(times)
def test_log_time_never_steps_back_and_stays_behind_what_was_stamped(stamped: list[int]) -> None:
    """Rules: log-time"""
    state = STEADY
    for append_ms in stamped:
        before, state = state, after(state, append_ms)
        assert before.log_ms <= state.log_ms
        assert state.log_ms <= max(NOW_MS, *stamped) - TRAIL_MS
        assert state.leap_ms == 0 or state.leap_ms > state.log_ms + 2 * TRAIL_MS


@given(times)
def test_by_old_rules_it_is_the_largest_time(stamped: list[int]) -> None:
    state = (0, 0)
    for append_ms in stamped:
        state = log_time_after(*state, append_ms, 0)
    assert state == (max(stamped, default=0), 0)


@pytest.mark.parametrize(("version", "trail_ms"), [(2, 0), (3, 0), (4, TRAIL_MS)])
def test_log_time_trails_by_a_sixth_of_the_id_memory_since_version_4(
    version: int, trail_ms: int
) -> None:
    """Rules: rules-version"""
    settings = replace(SETTINGS, id_memory_ms=HOUR_MS, rules_version=version)
    assert trail_ms_of(settings, settings.rules_version) == trail_ms
