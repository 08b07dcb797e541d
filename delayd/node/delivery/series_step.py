"""What a step writes into the buffer for series: the occurrence that stands next.

A record of a series is unresolved (its user's own), an occurrence that is due, or one that is not
due yet: the buffer keeps a record for the longest delay only, so one that is further away is
written again on its way.

Not here: what is delivered, and what becomes of it (`step_writer.py`); when series are due
(`delayd.request.recurrence`).
Source: docs/design/series.md.
"""

from collections.abc import Callable
from typing import Final

from delayd.request import (
    BufferRecord,
    RequestLimits,
    Series,
    SeriesState,
    asked_due_of,
    attempt_of,
    continuation,
    occurrence_body,
    series_of,
)
from delayd.request.recurrence.series import Found, first, following, later, problem_of
from delayd.request.recurrence.zones import is_zone
from delayd.runtime.clock import Clock
from delayd.wheel import Frame

SPENT_MS_MAX: Final = 500
"""Of a step, for occurrences: some thousands, or a dozen that are years apart, which somebody may
send by the thousand."""


def is_first_attempt(frame: Frame) -> bool:
    """Return whether a message of a series has not been requeued since its occurrence was found,
    unless it had been found late: its lateness is delayd's own."""
    return frame.due_ms == asked_due_of(frame.body) and attempt_of(frame.body) == 0


def _series_in(frame: Frame) -> Series:
    series = series_of(frame.body)
    assert series is not None, "it is of a series"
    return series


class SeriesStep:
    """What one step writes for series."""

    def __init__(self, limits: RequestLimits, now_ms: int, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._spent_ns = 0
        self._now_ms = now_ms
        self.followers: list[BufferRecord] = []
        """Occurrences that follow one that this step has delivered or given up. Without a
        transaction they must not be written before that has arrived: they say that it has."""

    def must_wait(self, frame: Frame) -> bool:
        """Return whether the step leaves a series to a later one: it has looked for occurrences for
        long enough, or this node does not know the zone, as another did."""
        series = _series_in(frame)
        is_unknown = series.occurrence > 0 and not is_zone(series.zone)
        return is_unknown or self._spent_ns > SPENT_MS_MAX * 1_000_000

    def in_place_of(self, frame: Frame) -> BufferRecord | None:
        """Return the record that stands for the series from now on; None if that of the frame
        does."""
        began_ns = self._clock.monotonic_ns()
        try:
            return self._in_place_of(frame, _series_in(frame))
        finally:
            self._spent_ns += self._clock.monotonic_ns() - began_ns

    def _in_place_of(self, frame: Frame, series: Series) -> BufferRecord | None:
        due_ms = asked_due_of(frame.body)
        if series.occurrence == 0:
            return self._record(frame, self._first(series, due_ms))
        if due_ms > self._now_ms:
            return self._record(frame, Found(series, due_ms))
        # One that was found late is the one to deliver: else a series that is always behind would
        # never come to any.
        if is_first_attempt(frame) and series.moved_ms is None:
            found = later(series, due_ms, self._now_ms)
            return None if found is None else self._record(frame, found)
        return None

    def _first(self, series: Series, asked_ms: int) -> Found:
        """Return the first occurrence: due as the expression says, unless it was fired before."""
        found = first(series._replace(moved_ms=None), asked_ms, self._now_ms)
        if series.moved_ms is None or found.series.state == SeriesState.OVER:
            return found
        return Found(found.series._replace(moved_ms=found.due_ms), series.moved_ms)

    def follow(self, frame: Frame, series: Series) -> None:
        """Keep the record of the occurrence that follows that of the frame for `hand_over`."""
        began_ns = self._clock.monotonic_ns()
        # One that was fired leaves the series where it was.
        own_ms = asked_due_of(frame.body) if series.moved_ms is None else series.moved_ms
        found = following(series._replace(moved_ms=None), own_ms, self._now_ms)
        self._spent_ns += self._clock.monotonic_ns() - began_ns
        self.followers.append(self._record(frame, found, follows=True))

    def hand_over(self, write: Callable[[BufferRecord], None]) -> None:
        """Write the records that follow."""
        for record in self.followers:
            write(record)

    def problem_of(self, frame: Frame) -> str | None:
        """Return why a series is over; None if it is not."""
        series = _series_in(frame)
        if series.state != SeriesState.OVER:
            return None
        found = problem_of(series, asked_due_of(frame.body))
        return found or "it had no occurrence when a step looked for the next one"

    def _record(self, frame: Frame, found: Found, *, follows: bool = False) -> BufferRecord:
        return continuation(
            occurrence_body(frame.body, *found),
            partition=frame.partition,
            offset=frame.offset,
            rank_due_ms=frame.due_ms,
            next_due_ms=min(found.due_ms, self._now_ms + self._limits.max_delay_ms),
            limits=self._limits,
            is_retry=False,
            follows=follows,
        )
