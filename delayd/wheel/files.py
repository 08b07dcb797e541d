"""The files of slots and hours: their folders, their generations, and the removal of old files.

A forgotten file is unlinked after the checkpoint that forgot it, a bounded number of files with
each checkpoint. A long file is cut piece by piece, and a folder goes with its last file.
"""

from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from delayd.errors import DiskError, DiskFullError
from delayd.wheel.disk import Descriptors, Disk
from delayd.wheel.layout import Layout, SegmentName
from delayd.wheel.segment import HourFile, Segment

UNLINKS_MAX = 2000
"""Files unlinked per checkpoint, about 0.1 s; the rest waits for the next one."""
CUT_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of one file that a checkpoint frees, about 0.1 s; a longer file is cut, and goes later."""
PUNCH_BYTES_MIN = 8 * 1024 * 1024
"""Bytes of an hour file that a punch frees at least, once they have been split."""
_PAGE_BYTES = 4096


class Files:
    """Not thread safe: part of the wheel."""

    def __init__(
        self, layout: Layout, disk: Disk, descriptors: Descriptors, per_folder: dict[int, int]
    ) -> None:
        """`per_folder`: files in the folder of each hour."""
        self._layout = layout
        self._disk = disk
        self._descriptors = descriptors
        self._per_folder = per_folder
        """Files to be unlinked included. No entry: no folder."""
        self._new_names: set[str] = set()
        """Folders with new names since the last `take_new_names`."""
        self._forgotten: list[SegmentName] = []
        """Forgotten since the last `take_forgotten`."""
        self._unlinkable: deque[SegmentName] = deque()
        """No durable catalogue names them any more."""
        self._long: dict[SegmentName, int] = {}
        """Bytes of the files that are too long to be unlinked at once."""
        self.holds = 0
        """While above 0, no byte of any file is given back to the disk: snapshots read them."""
        self._last_generations: dict[tuple[bool, int], int] = {}
        """Of segments with a file still to be unlinked: the generation of the newest such file."""

    def next_generation(self, is_hour: bool, number: int) -> int:
        """Return the generation of the next file of a slot or an hour."""
        return self._last_generations.get((is_hour, number), -1) + 1

    def append(self, name: SegmentName, written: int, data: bytes | bytearray) -> None:
        """Write to the end of a file of `written` bytes, unsynced; it is new if there are none.

        DiskFullError: file and folder are as they were before.
        """
        path, is_new = self._layout.segment_file(name), written == 0
        if is_new:
            self._prepare_folder(name.hour)
        try:
            file = self._descriptors.get(path, create=is_new)
        except DiskFullError:
            self._count_out(name.hour)
            raise
        try:
            self._disk.append(file, data)
        except DiskFullError as error:
            self._take_back(name, written, error)
            raise

    def _take_back(self, name: SegmentName, written: int, full: DiskFullError) -> None:
        path = self._layout.segment_file(name)
        try:
            if written:
                self._disk.truncate(path, written)
                return
            self._descriptors.drop(path)
            self._disk.unlink(path)
            self._count_out(name.hour)
        except DiskFullError as error:
            # Half a frame is left in the file: what came after it could not be read.
            raise DiskError(error.message, remedy=error.remedy) from full

    def _prepare_folder(self, hour: int) -> None:
        folder = self._layout.hour_folder(hour)
        if hour not in self._per_folder:
            self._disk.make_folder(folder)
            self._new_names.add(self._layout.slots)
            self._per_folder[hour] = 0
        self._per_folder[hour] += 1
        self._new_names.add(folder)

    def take_new_names(self) -> list[str]:
        """Return the folders with names that are not durable; the caller makes them durable."""
        names = sorted(self._new_names)
        self._new_names = set()
        return names

    def forget(self, segment: Segment) -> None:
        """Schedule the segment's file, if there is one, for removal after the next checkpoint."""
        if segment.written == 0:
            return
        name = segment.name
        self._forgotten.append(name)
        if segment.written > CUT_BYTES_MAX:
            self._long[name] = segment.written
        self._last_generations[name[:2]] = name.generation

    def take_forgotten(self) -> list[SegmentName]:
        """Hand the forgotten files to a checkpoint; once it is durable, `release` gets them."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    @property
    def left_count(self) -> int:
        """Files that are still to be unlinked."""
        return len(self._forgotten) + len(self._unlinkable)

    def release(self, names: Iterable[SegmentName]) -> None:
        """Allow these to be unlinked: no durable catalogue names them any more."""
        self._unlinkable.extend(names)

    def unlink_some(self) -> None:
        """Unlink a bounded number of the released files. A file system that needs room for that,
        and has none, keeps them until the next checkpoint."""
        if self.holds:
            return
        with suppress(DiskFullError):
            self._unlink_some()

    def _unlink_some(self) -> None:
        for _ in range(min(UNLINKS_MAX, len(self._unlinkable))):
            name = self._unlinkable[0]
            path = self._layout.segment_file(name)
            self._descriptors.drop(path)
            rest = self._long.get(name, 0) - CUT_BYTES_MAX
            if rest > 0:
                self._disk.truncate(path, rest)
                self._long[name] = rest
                return
            self._disk.unlink(path)
            self._unlinkable.popleft()
            self._long.pop(name, None)
            if self._last_generations[name[:2]] == name.generation:
                del self._last_generations[name[:2]]
            self._count_out(name.hour)

    def _count_out(self, hour: int) -> None:
        self._per_folder[hour] -= 1
        if self._per_folder[hour] == 0:
            del self._per_folder[hour]
            folder = self._layout.hour_folder(hour)
            self._new_names.discard(folder)
            self._disk.remove_folder(folder)

    def punch(self, hour: HourFile, start: int) -> None:
        """Free the bytes of an hour file before `start`, which were durably split."""
        if self.holds or start - hour.punched < PUNCH_BYTES_MIN:
            return
        hour.punched = start // _PAGE_BYTES * _PAGE_BYTES
        file = self._descriptors.get(self._layout.segment_file(hour.name))
        self._disk.punch(file, hour.punched)
