"""The overview of a wheel, from its catalogue alone: it reads no frame.

The newest frontier that the wheel remembers tells which slots and hour files are delivered but
still kept. Those that it has passed in part are *mixed*.
"""

import heapq
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from delayd.commands.examine.frontiers import frontier_if_known
from delayd.wheel import Progress, SegmentLine, SlotInfo
from delayd.wheel.layout import HOUR_SLOTS, SegmentName
from delayd.wheel.stopped import locked, open_stopped
from replication.frontier import Frontier
from replication.rank import slot_of

LARGEST_SHOWN = 10


class SlotSize(NamedTuple):
    """One slot's line."""

    bytes: int
    frames: int
    slot: int


@dataclass(slots=True)
class Share:
    """Slots, hour files, frames and bytes of a kind."""

    slots: int = 0
    hour_files: int = 0
    frames: int = 0
    bytes: int = 0

    def add(self, file: SegmentLine) -> None:
        """Count a slot, or the rest of an hour file."""
        self.slots += not file.name.is_hour
        self.hour_files += file.name.is_hour
        self.frames += file.info.count
        self.bytes += file.info.bytes - file.start


@dataclass(slots=True)
class Overview:
    """A wheel in figures."""

    directory: str
    format: int | None
    """Format version of the directory; a node that starts takes over an older one."""
    partitions: int | None
    progress: Progress | None
    frontier: Frontier | None
    """The newest frontier that the wheel remembers; None if it has seen none."""
    total: Share = field(default_factory=Share)
    pending: Share = field(default_factory=Share)
    """Slots and hour files that the frontier has not reached."""
    mixed: Share = field(default_factory=Share)
    """Slots and hour files that the frontier has passed in part."""
    kept: Share = field(default_factory=Share)
    """Slots and hour files that the frontier has passed: delivered, and not forgotten yet."""
    by_hour: dict[int, Share] = field(default_factory=dict)
    largest: list[SlotSize] = field(default_factory=list)
    """The largest slots, ascending."""
    lines: Counter[bytes] = field(default_factory=Counter)
    """Of the catalogue, by kind."""

    def take(self, file: SegmentLine) -> None:
        """Count a slot's or an hour's file."""
        name, info, _ = file
        of_hour = self.by_hour.setdefault(name.hour, Share())
        for share in (self.total, self._share_of(name, info), of_hour):
            share.add(file)
        if not name.is_hour:
            heapq.heappush(self.largest, SlotSize(info.bytes, info.count, name.number))
            if len(self.largest) > LARGEST_SHOWN:
                heapq.heappop(self.largest)

    def _share_of(self, name: SegmentName, info: SlotInfo) -> Share:
        frontier = self.frontier
        slots = HOUR_SLOTS if name.is_hour else 1
        first = name.number * slots
        last = first + slots - 1
        if frontier is None or first > slot_of(frontier.highest_cursor.due_ms):
            return self.pending
        is_passed = last < slot_of(frontier.lowest_cursor.due_ms) and all(
            highest < offset
            for highest, offset in zip(info.highest_offsets, frontier.offsets, strict=True)
        )
        return self.kept if is_passed else self.mixed


def inspect(directory: Path) -> Overview:
    """Read the catalogue in this data directory.

    Raises ConfigError if it holds no wheel, DiskError if a node runs on it or it is of another
    format, CorruptionError if the catalogue is damaged.
    """
    with locked(directory) as layout, open_stopped(layout) as wheel:
        frontier = frontier_of(wheel.progress)
        overview = Overview(layout.root, wheel.format, wheel.partitions, wheel.progress, frontier)
        overview.lines = wheel.catalogue.lines_by_kind()
        for file in wheel.catalogue.lines_by_hour():
            overview.take(file)
        overview.largest.sort()
        return overview


def frontier_of(progress: Progress | None) -> Frontier | None:
    """Return the newest frontier that a checkpoint remembers; None if there is none."""
    return None if progress is None else frontier_if_known(progress.frontier)
