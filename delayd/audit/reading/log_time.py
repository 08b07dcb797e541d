"""The time as of which each record of the buffer is judged, from the append times of its partition.

    rules 2, 3   log time, which is the largest append time so far
    rules 4      its append time, or log time if that is later: log time trails the append times,
                 and follows one that is further ahead only when the log has stayed beyond it for
                 12 trails

For both a range needs the largest append time before its first offset. Ranges of a partition are
read side by side, and none waits for those before it. Kafka's index by time answers instead:

    1. the largest timestamp of the last few records before the offset is a first guess
    2. which is the first offset with a later timestamp? if it is not before, the guess is right
    3. else what is there may raise the guess, and the question is asked again
    4. what is there may also be a marker or aborted: then everything from there on is read

With the broker's own timestamps, which hardly ever step back, it ends at 2.

Where a partition was switched to rules 4, log time goes on from what it was by the rules before:
the largest append time up to the barrier.

By rules 4 that is enough as long as no append time is further behind the largest than log time
trails. Where one is, all times before are read, because nothing shorter says which leaps were
followed. It shares nothing with `replication/` but the cluster's settings.
Source: docs/design/frontier.md, "Log time".
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
TimesBefore = Callable[[int], Iterable[int]]
"""Returns the append times of the committed records before an offset, from where rules 4 begin."""

PROOF_TRAILS: Final = 12

TAIL_OFFSETS: Final = 256
QUESTIONS_MAX: Final = 32


class TimedLog(Protocol):
    """A partition, for its times; partition.py says what each returns."""

    def largest_ms(self, start: int, end: int) -> int | None: ...
    def first_ms(self, start: int, end: int) -> int | None: ...
    def first_since(self, timestamp_ms: int) -> int | None: ...


def newest_before(log: TimedLog, first: int, offset: int, tail_offsets: int = TAIL_OFFSETS) -> int:
    """Return the largest append time, Unix ms, over [first, offset); 0 if there is nothing."""
    tail = offset
    known: int | None = None
    step = tail_offsets
    while known is None and tail > first:
        end, tail = tail, max(first, tail - step)
        known = log.largest_ms(tail, end)
        step *= 16
    if known is None:
        return 0
    for _ in range(QUESTIONS_MAX):
        later = log.first_since(known + 1)
        if later is None or later >= tail:
            return known
        seen = log.first_ms(max(first, later), tail)
        if seen is None or seen <= known:
            break
        known = seen
    else:
        later = first
    return max(known, log.largest_ms(max(first, later), tail) or 0)


@dataclass(slots=True)
class LogTimes:
    """The times of one range, batch by batch."""

    _newest_ms: int
    _trail_ms: int
    _steady_from: int | None
    """The first offset by rules 4; None if there is none."""
    _times_before: TimesBefore
    _floor_ms: int | None = None
    """Log time where rules 4 begin; None in a range that begins there or before."""
    _replay: "Replay | None" = None
    """From the first append time on that is far behind the largest."""

    def take(self, times: Ints, offsets: Ints) -> Ints:
        """Return the time as of which each record of the next batch is judged."""
        before_ms = self._newest_ms
        newest = np.maximum(np.maximum.accumulate(times), before_ms)
        self._newest_ms = int(newest[-1])
        if self._steady_from is None:
            return newest
        old = int(np.searchsorted(offsets, self._steady_from))
        if old == len(times):
            return newest
        if self._floor_ms is None:
            at_barrier_ms = int(newest[old - 1]) if old else before_ms
            self._floor_ms = at_barrier_ms if self._steady_from else 0
        steady = self._steady(times[old:], newest[old:], int(offsets[old]), self._floor_ms)
        return np.concatenate((newest[:old], steady))

    def _steady(self, times: Ints, newest: Ints, offset: int, floor_ms: int) -> Ints:
        """Return the times by rules 4 of the records from this offset on."""
        if self._replay is None:
            if bool(np.all(times >= newest - self._trail_ms)):
                return np.maximum(times, floor_ms)
            self._replay = Replay(self._trail_ms, floor_ms)
            for time_ms in self._times_before(offset):
                self._replay.take(time_ms)
        return np.fromiter(map(self._replay.take, map(int, times)), np.int64, len(times))


@dataclass(slots=True)
class Replay:
    """Log time by rules 4, record by record."""

    trail_ms: int
    log_ms: int = 0
    leap_ms: int | None = None
    """The first append time of a leap that log time has not followed."""

    def take(self, time_ms: int) -> int:
        """Return the time as of which the next record is judged."""
        if time_ms - self.log_ms <= 2 * self.trail_ms:
            self._follow(time_ms)
        elif self.leap_ms is None or time_ms < self.leap_ms:
            self.leap_ms = time_ms
        elif (trails := (time_ms - self.leap_ms) / self.trail_ms) > PROOF_TRAILS + 1:
            self.log_ms = self.leap_ms - self.trail_ms
            self.leap_ms = time_ms
        elif trails >= PROOF_TRAILS:
            self._follow(time_ms)
        return max(time_ms, self.log_ms)

    def _follow(self, time_ms: int) -> None:
        self.log_ms = max(self.log_ms, time_ms - self.trail_ms)
        self.leap_ms = None
