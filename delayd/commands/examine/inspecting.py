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
from delayd.wheel import Progress, SlotInfo
from delayd.wheel.catalogue import HourLine
from delayd.wheel.layout import HOUR_SLOTS, hour_of
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
    hours: int = 0
    """Hour files."""
    frames: int = 0
    bytes: int = 0

    def add(self, info: SlotInfo) -> None:
        """Count a slot."""
        self.slots += 1
        self.frames += info.count
        self.bytes += info.bytes

    def add_hour(self, line: HourLine) -> None:
        """Count the rest of an hour file."""
        self.hours += 1
        self.frames += line.info.count
        self.bytes += line.info.bytes - line.start


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

    def take(self, slot: int, info: SlotInfo) -> None:
        """Count a slot."""
        self.total.add(info)
        self._share_of(slot, info, slot).add(info)
        self.by_hour.setdefault(hour_of(slot), Share()).add(info)
        heapq.heappush(self.largest, SlotSize(info.bytes, info.count, slot))
        if len(self.largest) > LARGEST_SHOWN:
            heapq.heappop(self.largest)

    def take_hour(self, hour: int, line: HourLine) -> None:
        """Count an hour's file."""
        self.total.add_hour(line)
        first = hour * HOUR_SLOTS
        self._share_of(first, line.info, first + HOUR_SLOTS - 1).add_hour(line)
        self.by_hour.setdefault(hour, Share()).add_hour(line)

    def _share_of(self, first: int, info: SlotInfo, last: int) -> Share:
        frontier = self.frontier
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
        for slot, line in wheel.catalogue.slot_lines():
            overview.take(slot, line.info)
        for hour, hour_line in wheel.catalogue.hour_lines():
            overview.take_hour(hour, hour_line)
        overview.largest.sort()
        return overview


def frontier_of(progress: Progress | None) -> Frontier | None:
    """Return the newest frontier that a checkpoint remembers; None if there is none."""
    return None if progress is None else frontier_if_known(progress.frontier)
