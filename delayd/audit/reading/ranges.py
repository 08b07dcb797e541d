"""The offsets of each task: partitions cut so that all cores stay busy to the end. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from delayd.audit.spans import Span

OFFSETS_MIN: Final = 50_000
"""Of a task: a shorter one would spend its time on connecting."""

OFFSETS_MAX: Final = 500_000
"""Of a task: what is read again if it fails, some seconds."""

TASKS_PER_CORE: Final = 6
"""So that the last one to finish leaves little of the machine idle."""

RANGES_MAX: Final = 256
"""Of a task: many small topics take their time too."""


class Range(NamedTuple):
    """Offsets [start, end) of a partition whose first offset to be read is `first`."""

    topic: str
    partition: int
    first: int
    start: int
    end: int


def tasks_of(
    spans: Sequence[Span], cores: int, offsets_max: int = OFFSETS_MAX
) -> list[tuple[Range, ...]]:
    """Return all of the spans in tasks of nearly one size: parts of a large partition, several
    small ones. The longest come first."""
    total = sum(
        end - start
        for span in spans
        for start, end in zip(span.starts, span.ends, strict=True)
        if start < end
    )
    wanted = total // max(1, cores * TASKS_PER_CORE)
    wanted = min(offsets_max, max(OFFSETS_MIN, wanted))
    ranges = sorted(_cut(spans, wanted), key=lambda r: (r.start - r.end, r))
    tasks: list[tuple[Range, ...]] = []
    several: list[Range] = []
    offsets = 0
    for one in ranges:
        length = one.end - one.start
        if several and (offsets + length > wanted or len(several) == RANGES_MAX):
            tasks.append(tuple(several))
            several, offsets = [], 0
        several.append(one)
        offsets += length
    if several:
        tasks.append(tuple(several))
    return tasks


def _cut(spans: Iterable[Span], wanted: int) -> Iterable[Range]:
    for span in spans:
        for partition, (first, end) in enumerate(zip(span.starts, span.ends, strict=True)):
            count = -(-(end - first) // wanted)
            for number in range(count):
                start = first + (end - first) * number // count
                stop = first + (end - first) * (number + 1) // count
                yield Range(span.topic, partition, first, start, stop)
