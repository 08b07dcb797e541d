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
from delayd.wheel.segment import DIGEST_MODULO, Segment, Slot

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
        end = slot.end
        position = digest = 0
        wanted_bytes = SCAN_BYTES
        try:
            while position < end:
                data = self.bytes_at(slot, position, min(position + wanted_bytes, end))
                used, crcs = scan(data, position, entries)
                if used == 0 and position + len(data) == end:
                    raise BrokenFrameError(position, end - position, "ends too early")
                wanted_bytes = SCAN_BYTES if used else 2 * wanted_bytes
                position += used
                digest += crcs
        except BrokenFrameError as error:
            raise corruption(slot, error, slot.count - len(entries)) from error
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
            assert 0 <= start < end <= slot.end, (
                f"{last} is in its hour's file, or of a forgotten slot"
            )
            data = self.bytes_at(slot, start, end)
            try:
                for place in run:
                    entry = entries[place]
                    position = entry.position
                    frame = decode(data, position - start, entry.length, position)
                    if frame[:5] != entry[:5]:
                        raise BrokenFrameError(position, entry.length, "is another frame")
                    frames[place] = frame
            except BrokenFrameError as error:
                raise corruption(slot, error, 1) from error

    def bytes_at(self, segment: Segment, start: int, end: int) -> bytes:
        """These bytes, of the file or of the tail or of both. Raises CorruptionError."""
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


def corruption(segment: Segment, error: BrokenFrameError, count: int) -> CorruptionError:
    """What a reader found broken, with its segment and bytes; `count` frames cannot be read."""
    return CorruptionError(
        f"{segment.name}: the frame at bytes {error.position} to "
        f"{error.position + error.length} {error.why}; frames that cannot be read: {count}",
        remedy=REBUILD,
    )
