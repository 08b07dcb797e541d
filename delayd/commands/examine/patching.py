"""The new file of one damaged slot or hour, while a repair writes it.

It takes the whole frames of the damaged file first, then the missing ones from the buffer. Where
the buffer gives more than is missing, `problem` chooses the frames that fit, if few ways are left.
Source: docs/design/storage.md, "Repair".
"""

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from heapq import merge
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from delayd.wheel import Frame, FrameKind, SegmentLine, SlotInfo
from delayd.wheel.checking import WholeFrame
from delayd.wheel.disk import OpenFile, SystemDisk
from delayd.wheel.frame import encode
from delayd.wheel.hours import HORIZON_S
from delayd.wheel.layout import Layout, SegmentName, hour_of, parse_segment_file
from delayd.wheel.segment import DIGEST_MODULO
from replication.rank import SLOT_MS

CANDIDATES_MAX = 64
CHOICES_MAX = 20_000
"""Combinations of frames of the buffer that are tried. A wrong one is chosen only if its bytes and
a digest of 32 bits fit by chance, one in 200,000 at worst."""
WRITE_BYTES = 1024 * 1024
"""Frames of a new file that wait in memory."""


class _Sums(NamedTuple):
    """Count, bytes and digest of frames, as in a line."""

    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    bytes: int = 0
    digest: int = 0

    def with_(self, frame: WholeFrame) -> "_Sums":
        """Return the sums with one more frame."""
        digest = (self.digest + frame.crc) % DIGEST_MODULO
        return _Sums(self.count + 1, self.bytes + len(frame.data), digest)


def _that_fit(
    candidates: list[WholeFrame], salvaged: _Sums, wanted: _Sums
) -> tuple[WholeFrame, ...] | None:
    """Return the candidates that give the wanted sums together with the salvaged frames.

    None if there are none, or too many combinations to try."""
    missing = wanted.count - salvaged.count
    if len(candidates) > CANDIDATES_MAX or not 0 <= missing <= len(candidates):
        return None
    if math.comb(len(candidates), missing) > CHOICES_MAX:
        return None
    for chosen in combinations(candidates, missing):
        if reduce(_Sums.with_, chosen, salvaged) == wanted:
            return chosen
    return None


class Patch:
    """The new file of one segment, while it is written."""

    def __init__(self, disk: SystemDisk, layout: Layout, old: SegmentLine) -> None:
        self.old = old
        self.name = old.name._replace(generation=_next_generation(disk, layout, old.name))
        self.path = layout.segment_file(self.name)
        disk.make_folder(layout.hour_folder(old.name.hour))
        self._disk = disk
        # Not kept open: there may be more than a process may have open.
        disk.close(disk.open(self.path, create=True))
        self._tail = bytearray()
        self._sums = _Sums()
        self._salvaged_sources = Sources()
        self._salvaged = _Sums()
        self._highest = [-1] * len(old.info.highest_offsets)
        self._salvaged_highest = self._highest
        self._candidates: list[WholeFrame] = []
        """The first frames from the buffer."""
        self.elsewhere = Sources()
        """Whole frames in other files of the same hour."""
        self.pending_replies: dict[tuple[int, int], tuple[int, int]] = {}
        """Place and length of pending replies, by partition and offset."""

    def add(self, frame: Frame) -> None:
        """Add a frame from the buffer, unless it is in a file already."""
        data, crc = encode(frame)
        due_ms, partition, offset, _, kind, _, _ = frame
        made = WholeFrame(partition, offset, due_ms, kind, crc, data)
        # The log has each source once.
        if made in self._salvaged_sources or made in self.elsewhere:
            return
        if not self._was_near(frame):
            self._put(made)
        if len(self._candidates) <= CANDIDATES_MAX:
            self._candidates.append(made)

    def _was_near(self, frame: Frame) -> bool:
        # It went to its slot then, which may be forgotten. A batch goes by the append time of its
        # last record: another one of it may have got into the hour's file and be a candidate only.
        near = hour_of(frame.append_ms // SLOT_MS + HORIZON_S)
        return self.name.is_hour and near >= self.name.number

    def salvage(self, frame: WholeFrame) -> None:
        """Add a whole frame of the damaged file. All of these come before those of the buffer."""
        if frame not in self.elsewhere and self._salvaged_sources.add(frame):
            self._put(frame)
            self._salvaged, self._salvaged_highest = self._sums, list(self._highest)

    @property
    def count(self) -> int:
        """Frames in the new file."""
        return self._sums.count

    @property
    def from_buffer(self) -> int:
        """Frames of these that were not whole in the damaged file."""
        return self._sums.count - self._salvaged.count

    def _put(self, frame: WholeFrame) -> None:
        if frame.kind != FrameKind.MESSAGE:
            self.pending_replies[frame.partition, frame.offset] = (
                self._sums.bytes,
                len(frame.data),
            )
        self._tail += frame.data
        self._highest[frame.partition] = max(self._highest[frame.partition], frame.offset)
        self._sums = self._sums.with_(frame)
        if len(self._tail) >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        with self._opened() as file:
            self._disk.append(file, self._tail)
        self._tail = bytearray()

    def problem(self) -> str | None:
        """Return why it does not match the catalogue; None if it does, or was made to match."""
        _, info, start = self.old
        wanted = _Sums(info.count, info.bytes - start, info.digest)
        if self._sums == wanted:
            return None
        few = _that_fit(self._candidates, self._salvaged, wanted)
        if few is not None:
            self._write()
            self._disk.truncate(self.path, self._salvaged.bytes)
            self._sums, self._highest = self._salvaged, list(self._salvaged_highest)
            for frame in few:
                self._put(frame)
            return None
        told = f"{self.count} frames, which are not the {info.count} of its line"
        return f"{self.name}: the buffer and what is whole of the file give {told}"

    def sync(self) -> None:
        """Make the file durable."""
        self._write()
        with self._opened() as file:
            self._disk.fdatasync(file)

    def line(self) -> SegmentLine:
        """Return its line. The highest offsets leave out frames that were split off the hour."""
        return SegmentLine(self.name, SlotInfo(*self._sums, tuple(self._highest)))

    @contextmanager
    def _opened(self) -> Iterator[OpenFile]:
        file = self._disk.open(self.path, create=False)
        try:
            yield file
        finally:
            self._disk.close(file)


def _next_generation(disk: SystemDisk, layout: Layout, name: SegmentName) -> int:
    """Return a generation that no file of this slot or hour has."""
    folder = layout.hour_folder(name.hour)
    highest = name.generation
    if Path(folder).is_dir():
        for item in disk.list_folder(folder):
            found = parse_segment_file(item.name, name.hour)
            if found is not None and found[:2] == name[:2]:
                highest = max(highest, found.generation)
    return highest + 1


class Sources:
    """A set of the sources of frames, in some eight bytes each. A replace is two frames of one
    record, a message and a cancel marker.

    A damaged hour may hold tens of millions of frames, mostly in the order of their offsets. So the
    set keeps ascending runs of offsets per partition, and merges them like a merge sort: there are
    few runs in any order of frames.
    """

    def __init__(self) -> None:
        self._offsets: defaultdict[tuple[int, int], _Offsets] = defaultdict(_Offsets)
        """By partition and kind."""

    def add(self, frame: WholeFrame) -> bool:
        """Add a frame; return False if it is in the set."""
        return self._offsets[frame.partition, frame.kind].add(frame.offset)

    def __contains__(self, frame: WholeFrame) -> bool:
        return frame.offset in self._offsets[frame.partition, frame.kind]


class _Offsets:
    """Ascending runs; each but the last is at most half as long as the one before."""

    def __init__(self) -> None:
        self._runs: list[array[int]] = []

    def __contains__(self, offset: int) -> bool:
        for run in self._runs:
            place = bisect_left(run, offset)
            if place < len(run) and run[place] == offset:
                return True
        return False

    def add(self, offset: int) -> bool:
        if offset in self:
            return False
        runs = self._runs
        if not runs or offset < runs[-1][-1]:
            while len(runs) > 1 and 2 * len(runs[-1]) > len(runs[-2]):
                runs[-2:] = [array("Q", merge(*runs[-2:]))]
            runs.append(array("Q"))
        runs[-1].append(offset)
        return True
