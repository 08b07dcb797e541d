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


class Place(NamedTuple):
    """A range of some topic."""

    topic: str
    range: Range


def tasks_of(
    topics: Sequence[tuple[str, Sequence[int], Sequence[int]]],
    cores: int,
    offsets_max: int = RANGE_OFFSETS_MAX,
) -> list[list[Place]]:
    """What each task reads of (topic, starts, ends), the longest first. Short ranges share a task:
    thousands of small partitions would be as many tasks."""
    tasks: list[list[Place]] = []
    filled = RANGE_OFFSETS_MIN
    for place in _places(topics, cores, offsets_max):
        size = place.range.end - place.range.start
        if filled + size > RANGE_OFFSETS_MIN:
            tasks.append([])
            filled = 0
        tasks[-1].append(place)
        filled += size
    return tasks


def _places(
    topics: Sequence[tuple[str, Sequence[int], Sequence[int]]], cores: int, offsets_max: int
) -> list[Place]:
    total = 0
    for _, starts, ends in topics:
        assert len(starts) == len(ends), "a start and an end for each partition"
        total += sum(max(0, end - start) for start, end in zip(starts, ends, strict=True))
    wanted = total // max(1, cores * RANGES_PER_CORE)
    wanted = min(offsets_max, max(RANGE_OFFSETS_MIN, wanted))
    places = []
    for topic, starts, ends in topics:
        for partition, (first, end) in enumerate(zip(starts, ends, strict=True)):
            count = -(-(end - first) // wanted)
            for number in range(count):
                start = first + (end - first) * number // count
                stop = first + (end - first) * (number + 1) // count
                places.append(Place(topic, Range(partition, first, start, stop)))
    return sorted(places, key=lambda p: (p.range.start - p.range.end, p.topic, p.range))
