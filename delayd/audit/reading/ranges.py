"""Which offsets one task reads: partitions cut so that all cores stay busy to the end. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

RANGE_OFFSETS_MIN: Final = 50_000
"""Shorter ones would spend their time on connecting."""

RANGE_OFFSETS_MAX: Final = 500_000
"""What a task that failed reads again: some seconds."""

RANGES_PER_CORE: Final = 6
"""So that the last ones to finish leave little of the machine idle."""


class Range(NamedTuple):
    """Offsets [start, end) of a partition whose first offset to be read is `first`."""

    partition: int
    first: int
    start: int
    end: int


def ranges_of(
    starts: Sequence[int], ends: Sequence[int], cores: int, offsets_max: int = RANGE_OFFSETS_MAX
) -> list[Range]:
    """[starts, ends) of all partitions in ranges of nearly one size, the longest first."""
    assert len(starts) == len(ends), "a start and an end for each partition"
    total = sum(max(0, end - start) for start, end in zip(starts, ends, strict=True))
    wanted = total // max(1, cores * RANGES_PER_CORE)
    wanted = min(offsets_max, max(RANGE_OFFSETS_MIN, wanted))
    ranges = []
    for partition, (first, end) in enumerate(zip(starts, ends, strict=True)):
        count = -(-(end - first) // wanted)
        for number in range(count):
            start = first + (end - first) * number // count
            stop = first + (end - first) * (number + 1) // count
            ranges.append(Range(partition, first, start, stop))
    return sorted(ranges, key=lambda r: (r.start - r.end, r.partition, r.start))
