"""Reading a slot back: its headers into entries, its entries into frames.

Frames that are still in the slot's tail are read from there, so reading never writes.
"""

from collections.abc import Iterator, Sequence

from delayd.errors import CorruptionError
from delayd.wheel import Entry, Frame
from delayd.wheel.catalogue import REBUILD
from delayd.wheel.descriptors import Descriptors
from delayd.wheel.disk import Disk
from delayd.wheel.frame import BrokenFrameError, decode, scan
from delayd.wheel.layout import Layout
from delayd.wheel.slot import DIGEST_MODULO, Slot

SCAN_BYTES = 4 * 1024 * 1024
"""How much of a slot's file is in memory while it is scanned; a longer frame takes its length."""
READ_RUN_BYTES_MAX = 1024 * 1024
"""The longest stretch of a file that is read at once for several frames."""
READ_GAP_BYTES_MAX = 16 * 1024
"""Frames nearer than this are read in one go: copying the gap costs less than another call
(10,000 of 200,000 frames by rank, file in the page cache: a fifth faster than 1 or 4 KiB)."""


class Reader:
    """Reads slots; changes nothing but which files are open. Not thread safe."""

    def __init__(self, layout: Layout, disk: Disk, descriptors: Descriptors) -> None:
        self._layout = layout
        self._disk = disk
        self._descriptors = descriptors

    def entries(self, slot: Slot) -> list[Entry]:
        """All entries of the slot, by rank; see `Wheel.entries`."""
        entries: list[Entry] = []
        end = slot.written + len(slot.tail)
        position = digest = 0
        wanted_bytes = SCAN_BYTES
        try:
            while position < end:
                data = self._bytes_at(slot, position, min(position + wanted_bytes, end))
                used, crcs = scan(data, position, entries)
                if used == 0 and position + len(data) == end:
                    raise BrokenFrameError(position, end - position, "ends too early")
                wanted_bytes = SCAN_BYTES if used else 2 * wanted_bytes
                position += used
                digest += crcs
        except BrokenFrameError as error:
            raise _corruption(slot, error, slot.count - len(entries)) from error
        if len(entries) != slot.count or (digest - slot.digest) % DIGEST_MODULO != 0:
            raise CorruptionError(
                f"slot {slot.number}: bytes 0 to {end} hold {len(entries)} frames, "
                f"which are not the {slot.count} frames of its catalogue line",
                remedy=REBUILD,
            )
        entries.sort()
        return entries

    def read(
        self, slot: Slot, entries: Sequence[Entry], places: list[int], frames: list[Frame]
    ) -> None:
        """Read `entries[place]`, all of this slot, into `frames[place]` for every place."""
        places.sort(key=lambda place: entries[place].position)
        for run in _runs(entries, places):
            last = entries[run[-1]]
            start = entries[run[0]].position
            end = last.position + last.length
            assert end <= slot.written + len(slot.tail), f"{last} is of a forgotten slot"
            data = self._bytes_at(slot, start, end)
            try:
                for place in run:
                    entry = entries[place]
                    position = entry.position
                    frame = decode(data, position - start, entry.length, position)
                    if frame[:5] != entry[:5]:
                        raise BrokenFrameError(position, entry.length, "is another frame")
                    frames[place] = frame
            except BrokenFrameError as error:
                raise _corruption(slot, error, 1) from error

    def _bytes_at(self, slot: Slot, start: int, end: int) -> bytes:
        written = slot.written
        if start >= written:
            return bytes(slot.tail[start - written : end - written])
        path = self._layout.slot_file(slot.number, slot.generation)
        in_file = min(end, written) - start
        data = self._disk.pread(self._descriptors.get(path), in_file, start)
        if len(data) < in_file:
            missing = BrokenFrameError(start + len(data), in_file - len(data), "is cut off")
            raise _corruption(slot, missing, slot.count)
        return data if end <= written else data + slot.tail[: end - written]


def _runs(entries: Sequence[Entry], places: list[int]) -> Iterator[list[int]]:
    """Places by position, cut where one read for both neighbours would be a waste."""
    first = start = end = 0
    for index, place in enumerate(places):
        position = entries[place].position
        after = position + entries[place].length
        if position - end > READ_GAP_BYTES_MAX or after - start > READ_RUN_BYTES_MAX:
            if index > first:
                yield places[first:index]
            first, start = index, position
        end = after
    if places:
        yield places[first:]


def _corruption(slot: Slot, error: BrokenFrameError, count: int) -> CorruptionError:
    return CorruptionError(
        f"slot {slot.number}: the frame at bytes {error.position} to "
        f"{error.position + error.length} {error.why}; frames that cannot be read: {count}",
        remedy=REBUILD,
    )
