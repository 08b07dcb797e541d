"""Scales and ticks: the place of a value on an axis, and the values written beside it. Pure.

A scale maps its values from `low` to `high` onto the places from `start` to `end`; what lies
outside is put to the nearer end, so that nothing is ever drawn outside of a figure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from delayd.audit.showing.words import duration_text, moment_of, short_count

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000

TIME_STEPS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(n * SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR for n in (1, 2, 3, 6, 12)),
    *(n * DAY for n in (1, 2, 5, 10, 30, 60, 100, 365, 1000, 3650)),
)
"""Distances between ticks of a time axis, ms, that people can count in."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis and what is written there."""

    value: float
    label: str


Scale: TypeAlias = Callable[[float], float]
"""A value's place."""


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """Return a scale with equal distances for equal differences."""

    def place(value: float) -> float:
        if high <= low:
            return start
        share = (min(max(value, low), high) - low) / (high - low)
        return start + share * (end - start)

    return place


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Return a scale with equal distances for equal ratios; `low` is above 0, and what is below it
    stands there."""
    exponents = linear(math.log(low), math.log(high), start, end)
    return lambda value: exponents(math.log(max(value, low)))


def count_ticks(high: float, most: int = 5) -> list[Tick]:
    """Return 0 and at most `most` round values, the last of them at `high` or above."""
    if high <= 0:
        return [Tick(0, "0"), Tick(1, "1")]
    rough = high / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= rough)
    if high >= 1:
        step = max(1.0, step) if step < 1 or step == int(step) else float(math.ceil(step))
    ticks = min(math.ceil(high / step), most)
    return [Tick(n * step, short_count(n * step)) for n in range(ticks + 1)]


def time_ticks(low_ms: int, high_ms: int, most: int) -> list[Tick]:
    """Return at most `most` times between the two, on whole minutes, hours or days where that
    fits."""
    span = max(high_ms - low_ms, 1)
    step = next((step for step in TIME_STEPS if span / step <= most), None)
    if step is None:
        step = TIME_STEPS[-1] * math.ceil(span / most / TIME_STEPS[-1])
    first = -(-low_ms // step) * step
    return [Tick(at, clock_text(at, step)) for at in range(first, high_ms + 1, step)][:most]


def clock_text(at_ms: int, step_ms: int) -> str:
    """Return a time of day as precise as the distance between ticks asks for; at midnight the
    date."""
    moment = moment_of(at_ms)
    if moment is None:
        return f"{at_ms} ms"
    if step_ms >= DAY or at_ms % DAY == 0:
        return moment.strftime("%b %d") if step_ms < 365 * DAY else moment.strftime("%Y")
    if step_ms >= MINUTE:
        return moment.strftime("%H:%M")
    if step_ms >= SECOND:
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


LATE_EDGES: Final = (
    *(1, 10, 100, SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR, 10 * HOUR),
    *(10**n * DAY for n in range(6)),
)
"""Where a logarithmic axis of lateness has its ticks, ms."""


def late_ticks(high_ms: float) -> list[Tick]:
    """Return 1 ms, 10 ms, 100 ms, 1 s, ... up to the first at or above `high_ms`."""
    top = next((n for n, edge in enumerate(LATE_EDGES) if edge >= high_ms), len(LATE_EDGES) - 1)
    return [Tick(edge, duration_text(edge)) for edge in LATE_EDGES[: max(top, 1) + 1]]


def interval_of(times: Sequence[int], most: int) -> int:
    """Return how long equal intervals are whose starts, in order, are `times`; there were to be at
    most `most`. Their distances tell, unless there are few of them with nothing in between."""
    span = times[-1] - times[0]
    usual = next((step for step in TIME_STEPS if step >= SECOND and span < step * most), DAY)
    apart = math.gcd(*(time - times[0] for time in times))
    return apart if 0 < apart <= 3 * usual else usual


def intervals(times: Sequence[int], usual: int, most: int) -> tuple[int, int]:
    """Return how long the intervals are whose starts, in order, are `times`, and how long those of
    at most `most`: as many of them as make the first of TIME_STEPS that is long enough."""
    interval = interval_of(times, usual)
    span = times[-1] - times[0] + interval
    if span <= interval * most:
        return interval, interval
    fits = (step for step in TIME_STEPS if step % interval == 0 and span <= step * most)
    return interval, next(fits, -(-span // (interval * most)) * interval)
