"""Which occurrence of a series comes next.

    a request, occurrence 0     the first occurrence after its append time
    an occurrence that is done  the first one after it
    where others are due too    once: the latest of them; all: each, of the last CATCHUP_MS_MAX, or
                                the latest of them if none of these is so young

The step of a master that comes to a record asks here, and writes the answer into the buffer. It is
true from then on, whoever is master, and whatever the libraries say later.

Source: docs/design/series.md.
"""

from typing import Final, NamedTuple

from delayd.request.recurrence.expressions import BadSeriesError, latest_between, next_after
from delayd.request.request import Series, SeriesState

CATCHUP_MS_MAX: Final = 24 * 60 * 60 * 1000
"""How far back occurrences are caught up with `delayd-catchup: all`: each costs a step."""


class Found(NamedTuple):
    """What stands next in the buffer for a series."""

    series: Series
    due_ms: int
    """When it is due; of one that is over, when that was found. Unix ms."""


def first(series: Series, asked_ms: int, now_ms: int) -> Found:
    """Return the first occurrence after the append time of the request; the series is over if there
    is none."""
    return _after(series, 1, asked_ms, now_ms)


def following(series: Series, due_ms: int, now_ms: int) -> Found:
    """Return the occurrence after one that is done. The series is over if it was not the last by
    its record, and there is none all the same: the libraries have changed."""
    return _after(series, series.occurrence + 1, due_ms, now_ms)


def later(series: Series, due_ms: int, now_ms: int) -> Found | None:
    """Return the occurrence to deliver in place of one, if that is not to be caught up with: the
    same number, another due time. None if it is to be delivered itself."""
    if not series.goes_on:
        return None
    end_ms = now_ms if series.until_ms is None else min(now_ms, series.until_ms)
    try:
        latest_ms = latest_between(series.cron, series.zone, due_ms, end_ms)
    except BadSeriesError:
        return None
    if latest_ms is None:
        return None
    if series.catches_up:
        if due_ms >= now_ms - CATCHUP_MS_MAX:
            return None
        bounded_ms = _bounded(series, due_ms, now_ms)
        if bounded_ms is not None and bounded_ms <= end_ms:
            latest_ms = bounded_ms
    return Found(series._replace(state=_state(series, latest_ms)), latest_ms)


def problem_of(series: Series, after_ms: int) -> str | None:
    """Return why a series has no occurrence after a time (Unix ms), in words; None if it has."""
    try:
        next_ms = next_after(series.cron, series.zone, after_ms)
    except BadSeriesError as error:
        return str(error)
    if next_ms is None:
        return f"{series.cron!r} in {series.zone} never comes: no day within 50 years is one"
    if series.until_ms is not None and next_ms > series.until_ms:
        return (
            f"{series.cron!r} in {series.zone} comes at {next_ms} next, after the end of the"
            f" series at {series.until_ms}"
        )
    return None


def _after(series: Series, number: int, after_ms: int, now_ms: int) -> Found:
    try:
        due_ms = next_after(series.cron, series.zone, after_ms)
        if due_ms is not None and due_ms <= now_ms:
            due_ms = _missed(series, after_ms, now_ms) or due_ms
    except BadSeriesError:
        due_ms = None
    if due_ms is None or (series.until_ms is not None and due_ms > series.until_ms):
        number = number if series.occurrence else 0
        return Found(series._replace(occurrence=number, state=SeriesState.OVER), now_ms)
    return Found(series._replace(occurrence=number, state=_state(series, due_ms)), due_ms)


def _missed(series: Series, after_ms: int, now_ms: int) -> int | None:
    """Return the occurrence to catch up with, where one after `after_ms` is due by now."""
    end_ms = now_ms if series.until_ms is None else min(now_ms, series.until_ms)
    if series.catches_up:
        found_ms = _bounded(series, after_ms, now_ms)
        if found_ms is not None and found_ms <= end_ms:
            return found_ms
    return latest_between(series.cron, series.zone, after_ms, end_ms)


def _bounded(series: Series, after_ms: int, now_ms: int) -> int | None:
    """Return the first occurrence after a time that is not too old to be caught up with."""
    return next_after(series.cron, series.zone, max(after_ms, now_ms - CATCHUP_MS_MAX - 1))


def _state(series: Series, due_ms: int) -> SeriesState:
    """Return whether another occurrence follows the one that is due at `due_ms`."""
    next_ms = next_after(series.cron, series.zone, due_ms)
    is_last = next_ms is None or (series.until_ms is not None and next_ms > series.until_ms)
    return SeriesState.LAST if is_last else SeriesState.GOES_ON
