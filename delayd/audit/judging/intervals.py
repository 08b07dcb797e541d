"""The width of the intervals of a figure over time: few and round ones."""

from typing import Final

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000

WIDTHS_MS: Final = (
    *(_SECOND * n for n in (1, 2, 5, 10, 20, 30)),
    *(_MINUTE * n for n in (1, 2, 5, 10, 20, 30)),
    *(_HOUR * n for n in (1, 2, 4, 6, 12, 24)),
)


def width_of(least_ms: int, most_ms: int, count_max: int) -> int:
    """Return a round width, ms, by which at most `count_max` intervals, aligned to it, hold both
    ends."""
    assert count_max > 1, "two ends may lie in two intervals"
    for width_ms in WIDTHS_MS:
        if most_ms // width_ms - least_ms // width_ms < count_max:
            return width_ms
    return _DAY * -(-(most_ms - least_ms) // (_DAY * (count_max - 1)))
