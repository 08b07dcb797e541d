"""Reading segments: bytes for an index, and the frames of entries.

Frames that are still in the tail are read from there, so reading never writes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import NamedTuple
from weakref import ref

from delayd.errors import CorruptionError
from delayd.runtime.bounded_dict import BoundedDict
from delayd.runtime.native.unpacking import Frames
from delayd.wheel import Entry, Frame, FrameKind
from delayd.wheel.catalogue import REBUILD
from delayd.wheel.decoding import decode_all
from delayd.wheel.disk import Descriptors, Disk
from delayd.wheel.frame import (
    HEADER_BYTES,
    PREFIX,
    BrokenFrameError,
    header_of,
    walk,
)
from delayd.wheel.layout import Layout, SegmentName
from delayd.wheel.place import IN_HOUR
from delayd.wheel.segment import Segment, Slot
from replication.rank import SLOT_MS, Rank

SCAN_BYTES = 4 * 1024 * 1024
"""Bytes of a file in memory while it is scanned; a longer frame takes its length."""

FIND_BYTES = 32 * 1024
"""Read first to find one message; then twice as many, up to SCAN_BYTES."""

FOUND_MAX = 4_096
"""Places where messages were found: of some hours, and all partitions."""


_read_length = Struct("<I").unpack_from


class FoundFrame(NamedTuple):
    """A whole frame of a file."""

    due_ms: int
    partition: int
    offset: int
    lane: int
    kind: int
    crc: int
    position: int
    body: bytes

    def broken(self, why: str) -> BrokenFrameError:
        """Return the error for a frame that is whole, and wrong."""
        return BrokenFrameError(self.position, HEADER_BYTES + len(self.body), why)


def read_frames(
    read: Callable[[int, int], bytes], position: int, end: int, scan_bytes: int = SCAN_BYTES
) -> Iterator[FoundFrame]:
    """Yield the frames from a position of a file up to an end, where one must end. `read` returns
    so many bytes from a position on. Raise BrokenFrameError."""
    wanted_bytes = scan_bytes
    while position < end:
        size = min(wanted_bytes, end - position)
        data = read(size, position)
        if len(data) < size:
            raise BrokenFrameError(position, size, "is cut off")
        used = 0
        for due_ms, partition, offset, lane, kind, _, body, used, crc in walk(data, position):
            at = position + body - HEADER_BYTES
            yield FoundFrame(due_ms, partition, offset, lane, kind, crc, at, data[body:used])
        if used == 0 and position + size == end:
            raise BrokenFrameError(position, size, "ends too early")
        wanted_bytes = scan_bytes if used else 2 * wanted_bytes
        position += used


class Reader:
    """The reader of one wheel. It changes only which files are open. Not thread safe."""

    def __init__(self, layout: Layout, disk: Disk, descriptors: Descriptors) -> None:
        self._layout = layout
        self._disk = disk
        self._descriptors = descriptors
        self._found: BoundedDict[tuple[SegmentName, int], tuple[ref[Segment], int]]
        self._found = BoundedDict(FOUND_MAX)
        """Behind the message of a file and a partition that was found last. With the segment: a
        name is used again when its file is gone."""

    def frames(self, slot: Slot, entries: Sequence[Entry]) -> list[Frame]:
        """Return the frames of these entries of the slot, in the order given; see `Wheel.read`."""
        if slot.tail or slot.part is not None:
            return self._decoded(slot, entries, lambda size, start: self._stored(slot, size, start))
        file = self._descriptors.get(self._layout.segment_file(slot.name))
        return self._decoded(slot, entries, partial(self._disk.pread, file))

    def gather(self, slots: Mapping[int, Slot], entries: Sequence[Entry]) -> Frames | None:
        """Return the frames of these entries, unread; see `Wheel.gather`."""
        frames = Frames.room_for(entries)
        first = at = 0
        for number, entries_of_slot in by_slot(entries):
            slot = slots[number]
            segment: Segment = slot
            base = 0
            if slot.part is not None and entries_of_slot[0].position >= IN_HOUR:
                segment, base = slot.part.hour, IN_HOUR
            if not segment.written:
                return None
            file = self._descriptors.get(self._layout.segment_file(segment.name))
            some = range(first, first + len(entries_of_slot))
            after = self._disk.gather(file, frames, some, at, base, base + segment.written)
            if after is None:
                return None
            first, at = some.stop, after
        return frames

    def _decoded(
        self, slot: Slot, entries: Sequence[Entry], fetch: Callable[[int, int], bytes]
    ) -> list[Frame]:
        try:
            return decode_all(entries, fetch)
        except BrokenFrameError as error:
            raise corruption(*_where(slot, error), 1) from error

    def _stored(self, slot: Slot, size_bytes: int, start: int) -> bytes:
        if start >= IN_HOUR:
            assert slot.part is not None, f"slot {slot.number} has no part in an hour's file"
            start -= IN_HOUR
            return self.bytes_at(slot.part.hour, start, start + size_bytes)
        assert 0 <= start < start + size_bytes <= slot.end, (
            f"bytes {start} to {start + size_bytes} are in an hour's file, or of a forgotten slot"
        )
        return self.bytes_at(slot, start, start + size_bytes)

    def find(self, segment: Segment, lane: int, rank: Rank) -> Frame | None:
        """Return the message of this lane and rank in a segment; None if it is not there.

        Walks from frame to frame by their lengths, because a value may look like a frame: a quarter
        of a second for a million of them. It begins where the last message of the partition was
        found, and then at the start: whoever asks for many asks in the order of the file, as a job
        does that has listed them. Raise CorruptionError.
        """
        place = (segment.name, rank.partition)
        found_in, begin = self._found.get(place, (ref(segment), segment.start))
        if found_in() is not segment or not segment.start <= begin <= segment.end:
            begin = segment.start
        for start, end in ((begin, segment.end), (segment.start, begin)):
            at = self._walked_to(segment, lane, rank, start, end)
            if at is not None:
                self._found[place] = (ref(segment), at[0] + at[1])
                return self._frame_at(segment, *at, lane, rank)
        return None

    def _walked_to(
        self, segment: Segment, lane: int, rank: Rank, start: int, end: int
    ) -> tuple[int, int] | None:
        """Return position and length of the message, between two frames; None if it is not
        there."""
        wanted, scan_bytes = header_of(lane, rank), FIND_BYTES
        while start + HEADER_BYTES <= end:
            data = self.bytes_at(segment, start, min(start + scan_bytes, end))
            at, last = 0, len(data) - HEADER_BYTES
            while at <= last:
                [length] = _read_length(data, at)
                if not HEADER_BYTES < length <= end - start - at:
                    why = f"says it is {length} bytes long"
                    raise corruption(segment, BrokenFrameError(start + at, HEADER_BYTES, why), 1)
                if data.startswith(wanted, at + PREFIX.size):
                    return start + at, length
                at += length
            start += at
            scan_bytes = min(2 * scan_bytes, SCAN_BYTES)
        return None

    def _frame_at(self, segment: Segment, at: int, length: int, lane: int, rank: Rank) -> Frame:
        entry = Entry(*rank, lane, int(FrameKind.MESSAGE), at, length)
        try:
            [frame] = decode_all(
                [entry], lambda size, start: self.bytes_at(segment, start, start + size)
            )
        except BrokenFrameError as error:
            raise corruption(segment, error, 1) from error
        return frame

    def bytes_at(self, segment: Segment, start: int, end: int) -> bytes:
        """Return these bytes, from the file, the tail, or both. Raise CorruptionError."""
        written = segment.written
        if start >= written:
            return bytes(segment.tail[start - written : end - written])
        path = self._layout.segment_file(segment.name)
        in_file = min(end, written) - start
        data = self._disk.pread(self._descriptors.get(path), in_file, start)
        if len(data) < in_file:
            missing = BrokenFrameError(start + len(data), in_file - len(data), "is cut off")
            raise corruption(segment, missing, segment.count)
        return data if end <= written else data + segment.tail[: end - written]


def _where(slot: Slot, error: BrokenFrameError) -> tuple[Segment, BrokenFrameError]:
    """Return the file that is broken, and the error with positions in that file."""
    if error.position < IN_HOUR:
        return slot, error
    assert slot.part is not None, f"slot {slot.number} has no part in an hour's file"
    there = BrokenFrameError(error.position - IN_HOUR, error.length, error.why, error.passed)
    return slot.part.hour, there


def corruption(segment: Segment, error: BrokenFrameError, count: int) -> CorruptionError:
    """Return the error for a broken frame, with its segment and bytes; `count` frames are
    unreadable."""
    return CorruptionError(
        f"{segment.name}: the frame at bytes {error.position} to "
        f"{error.position + error.length} {error.why}; frames that cannot be read: {count}",
        remedy=REBUILD,
    )


def by_slot(entries: Sequence[Entry]) -> Iterator[tuple[int, Sequence[Entry]]]:
    """Yield the entries of each slot."""
    first = 0
    after_ms = number = -1
    for index, entry in enumerate(entries):
        due_ms = entry[0]
        if due_ms >= after_ms or due_ms < after_ms - SLOT_MS:
            if index:
                yield number, entries[first:index]
            first, number = index, due_ms // SLOT_MS
            after_ms = (number + 1) * SLOT_MS
    if entries:
        yield number, entries[first:]
