"""The wheel's segments: which slots and hours there are, their tails in memory, their totals.

A frame first waits in the tail of its segment, and a tail is written to the end of the segment's
file when the tails are too large together, or by the next checkpoint; nothing here syncs.

Not here: the catalogue (`catalogue.py`), and when an hour is split (`near_hours.py`).
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from delayd.errors import DiskFullError
from delayd.runtime.native.packing import Run
from delayd.wheel import Entry, Frame, FrameKind, SegmentLine
from delayd.wheel.catalogue import Totals
from delayd.wheel.disk import Descriptors, Disk
from delayd.wheel.files import Files
from delayd.wheel.frame import PackedFrame, packed
from delayd.wheel.hours import Hours
from delayd.wheel.layout import HOUR_SLOTS, Layout, hour_of
from delayd.wheel.recovery import Recovered
from delayd.wheel.segment import HourFile, Segment, Slot
from replication.rank import SLOT_MS

TAIL_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of frames that wait in memory; beyond it all tails are written to their files, unsynced."""
TAILS_PER_CALL = 64
"""Tails that one call of `write_some` writes: about 3 ms if their files are new."""
NO_PLACE = -1
"""The position of a frame that waits in the file of its hour."""
_made = tuple.__new__


class Appended(NamedTuple):
    """What one call of `append` stored."""

    entries: list[Entry]
    """In the order of the frames; without a place (NO_PLACE) if filed under an hour."""
    replies: list[Entry]
    """Of `entries`, the pending replies."""
    messages: list[tuple[int, str]]
    """Slot and target of each message."""
    near_slot: int
    """Messages of earlier slots were filed under their slot, the others under their hour."""


class Segments:
    """Slots and hour files as they are now. Not thread safe: part of the wheel."""

    def __init__(
        self,
        layout: Layout,
        disk: Disk,
        descriptors: Descriptors,
        recovered: Recovered,
        partitions: int,
        hours: Hours,
    ) -> None:
        self._layout = layout
        self._disk = disk
        self._descriptors = descriptors
        self._partitions = partitions
        self.files = Files(layout, disk, descriptors, recovered.files)
        self.slots = {
            line.name.number: Slot.from_line(line)
            for line in recovered.lines
            if not line.name.is_hour
        }
        self._numbers = sorted(self.slots)
        self._slot_lines = len(self.slots)
        """Slots with frames of their own."""
        self.hours = hours
        if self._numbers:
            hours.make_near(hour_of(self._numbers[-1]))
        self.tail_bytes = 0
        self.frame_count = sum(segment.count for segment in self.all())
        self.bytes = sum(segment.written - segment.start for segment in self.all())
        self.with_tail: dict[Segment, None] = {}
        """Segments with frames that are in memory only, in the order in which they got them."""
        self.is_refused = False
        """A full disk refused the last write of a tail: it waits in memory."""
        self.dirty: set[Segment] = set()
        """Segments whose file or line has changed since the last `take_changes`."""
        self._dropped: set[tuple[bool, int]] = set()
        """Segments forgotten since then: their catalogue lines go."""

    def all(self) -> Iterable[Segment]:
        """Return every slot and hour file."""
        return (*self.slots.values(), *self.hours.files.values())

    def numbers(self, first: int = 0, last: int | None = None) -> list[int]:
        """Return the slots from `first` to `last`, both included, ascending."""
        end = len(self._numbers) if last is None else bisect_left(self._numbers, last + 1)
        return self._numbers[bisect_left(self._numbers, first) : end]

    def next_number(self, at_or_after: int) -> int | None:
        """Return the first slot from `at_or_after` on."""
        index = bisect_left(self._numbers, at_or_after)
        return self._numbers[index] if index < len(self._numbers) else None

    @property
    def totals(self) -> Totals:
        """What the catalogue keeps of all lines together."""
        return Totals(len(self.hours.files), self._slot_lines, self.frame_count)

    # Frames in.

    def append(self, frames: Sequence[Frame | PackedFrame]) -> Appended:
        """Add frames to the tails of their slots and hours.

        The hot path of ingest: the loop looks up nothing that can be looked up before it.
        """
        entries: list[Entry] = []
        replies: list[Entry] = []
        messages: list[tuple[int, str]] = []
        slots, hours, with_tail = self.slots, self.hours.files, self.with_tail
        stored_bytes, tail_bytes = 0, self.tail_bytes
        near_slot = self.hours.near_slot
        for frame in frames:
            if type(frame) is not PackedFrame:
                frame = packed(frame)
            due_ms, partition, offset, lane, kind, _, topic, data, crc = frame
            number = due_ms // SLOT_MS
            segment: Segment
            if number < near_slot or kind:
                segment = slots.get(number) or self.create_slot(number)
                if not segment.count:
                    self._slot_lines += 1
                tail = segment.tail
                position = segment.written + len(tail)
            else:
                segment = hours.get(number // HOUR_SLOTS) or self._create_hour(number // HOUR_SLOTS)
                tail = segment.tail
                position = NO_PLACE
            length = len(data)
            if not tail:
                with_tail[segment] = None
            tail += data
            segment.count += 1
            segment.digest += crc
            highest = segment.highest_offsets
            if offset > highest[partition]:
                highest[partition] = offset
            entry: Entry = _made(Entry, (due_ms, partition, offset, lane, kind, position, length))
            if kind:
                replies.append(entry)
            else:
                messages.append((number, topic))
            entries.append(entry)
            stored_bytes += length
            tail_bytes += length
            if tail_bytes > TAIL_BYTES_MAX and not self.is_refused:
                self.tail_bytes = tail_bytes
                self._write_early(0)
                tail_bytes = self.tail_bytes
        self.frame_count += len(frames)
        self.bytes += stored_bytes
        self.tail_bytes = tail_bytes
        self._write_share(stored_bytes)
        return Appended(entries, replies, messages, near_slot)

    def append_run(self, run: Run, partition: int, told_ms: int) -> list[Entry]:
        """Add the frames of a run to the tails of their slots and hours, group by group. Return the
        entries of those that are due by `told_ms`."""
        begins: list[int] = []
        stored_bytes = 0
        for number, is_hour, count, crcs, last_offset, frames in run.groups:
            segment: Segment
            if is_hour:
                segment = self.hours.files.get(number) or self._create_hour(number)
                begins.append(NO_PLACE)
            else:
                segment = self.slots.get(number) or self.create_slot(number)
                if not segment.count:
                    self._slot_lines += 1
                begins.append(segment.end)
            if not segment.tail:
                self.with_tail[segment] = None
            segment.tail += frames
            segment.count += count
            segment.digest += crcs
            highest = segment.highest_offsets
            highest[partition] = max(highest[partition], last_offset)
            stored_bytes += len(frames)
            self.tail_bytes += len(frames)
            if self.tail_bytes > TAIL_BYTES_MAX and not self.is_refused:
                self._write_early(0)
        self.frame_count += run.stored
        self.bytes += stored_bytes
        self._write_share(stored_bytes)
        if not run.stored or run.first_due_ms > told_ms:
            return []
        entries: list[Entry] = []
        for due_ms, offset, lane, length, group, position in run.placed:
            if due_ms <= told_ms:
                begin = begins[group]
                at = NO_PLACE if begin == NO_PLACE else begin + position
                entry = (due_ms, partition, offset, lane, FrameKind.MESSAGE, at, length)
                entries.append(_made(Entry, entry))
        return entries

    def move(
        self, hour: HourFile, number: int, partition: int, offset: int, crc: int, data: bytes
    ) -> None:
        """Move the hour's next frame to the tail of its slot."""
        slot = self.slots.get(number) or self.create_slot(number)
        if not slot.count:
            self._slot_lines += 1
        if not slot.tail:
            self.with_tail[slot] = None
        slot.tail += data
        slot.count += 1
        slot.digest += crc
        if offset > slot.highest_offsets[partition]:
            slot.highest_offsets[partition] = offset
        self.tail_bytes += len(data)
        hour.start += len(data)
        hour.count -= 1
        hour.digest -= crc

    def create_slot(self, number: int) -> Slot:
        """Create this slot, without frames; its hour is near from now on."""
        self.hours.make_near(hour_of(number))
        slot = Slot(number, self.files.next_generation(False, number), self._partitions)
        self.slots[number] = slot
        insort(self._numbers, number)
        return slot

    def _create_hour(self, number: int) -> HourFile:
        hour = HourFile(number, self.files.next_generation(True, number), self._partitions)
        self.hours.add(hour)
        return hour

    # Tails out to their files.

    @property
    def has_large_tails(self) -> bool:
        """Is half of TAIL_BYTES_MAX in use?"""
        return self.tail_bytes > TAIL_BYTES_MAX // 2

    def write_some(self) -> None:
        """Write a bounded number of tails, unless the disk is full."""
        self._write_early(0, TAILS_PER_CALL)

    def _write_share(self, stored_bytes: int) -> None:
        """Write twice as much as was stored, so that no later batch has to write all tails."""
        if self.has_large_tails:
            self._write_early(self.tail_bytes - 2 * stored_bytes)

    def write_too_large_tails(self) -> None:
        """Write all tails if they are larger together than TAIL_BYTES_MAX."""
        if self.tail_bytes > TAIL_BYTES_MAX:
            self._write_early(0)

    def _write_early(self, enough_bytes: int, tails_max: int | None = None) -> None:
        """Write tails until they are no larger than this together. A full disk leaves them in
        memory: the next checkpoint tries again."""
        with suppress(DiskFullError):
            for segment in list(islice(self.with_tail, tails_max)):
                if self.tail_bytes <= enough_bytes:
                    return
                self.write_tail(segment)

    def write_tails(self) -> None:
        """Write all tails. A DiskFullError leaves in memory what could not be written."""
        for segment in sorted(self.with_tail, key=lambda segment: segment.name):
            self.write_tail(segment)
        assert self.tail_bytes == 0, f"{self.tail_bytes} tail bytes are in no segment"
        self.is_refused = False

    def write_tail(self, segment: Segment) -> None:
        """Write the segment's tail to the end of its file, unsynced. DiskFullError: the file is as
        it was before."""
        name, length = segment.name, len(segment.tail)
        try:
            self.files.append(name, segment.written, segment.tail)
        except DiskFullError:
            self.is_refused = True
            raise
        segment.written += length
        segment.tail = bytearray()
        self.tail_bytes -= length
        self.with_tail.pop(segment, None)
        self.dirty.add(segment)

    def freeze(self, names: Sequence[tuple[bool, int]]) -> list[SegmentLine]:
        """Write the tails of these segments, and return their lines; see `Wheel`."""
        frozen = []
        for is_hour, number in names:
            held = self.hours.files if is_hour else self.slots
            segment: Segment | None = held.get(number)
            if segment is None or not segment.end:
                continue
            if segment.tail:
                self.write_tail(segment)
            frozen.append(segment.line())
        return frozen

    # Forgetting.

    def forget(self, segment: Segment) -> None:
        """Drop a slot, or an hour file with the parts of slots in it."""
        if isinstance(segment, HourFile):
            self.hours.remove(segment)
            self._forget_parts(segment)
            self.bytes += segment.start
        else:
            self._remove_slot(segment.number)
            if not segment.end:
                return
            self._slot_lines -= 1
        self.with_tail.pop(segment, None)
        self.dirty.discard(segment)
        self._dropped.add(segment.name[:2])
        self.frame_count -= segment.count
        self.bytes -= segment.end
        self.tail_bytes -= len(segment.tail)
        self.files.forget(segment)

    def _remove_slot(self, number: int) -> None:
        del self.slots[number]
        del self._numbers[bisect_left(self._numbers, number)]

    def _forget_parts(self, hour: HourFile) -> None:
        first = hour.number * HOUR_SLOTS
        for number in self.numbers(first, first + HOUR_SLOTS - 1):
            slot = self.slots[number]
            slot.part = None
            if not slot.end:
                self._remove_slot(number)

    def take_changes(self) -> tuple[list[Segment], tuple[tuple[bool, int], ...]]:
        """Hand the changes to a checkpoint: segments whose file or line has changed, by name, and
        what was forgotten."""
        dirty = sorted(self.dirty, key=lambda segment: segment.name)
        dropped = tuple(self._dropped)
        self.dirty, self._dropped = set(), set()
        return dirty, dropped
