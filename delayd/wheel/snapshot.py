"""Snapshots: one checkpoint of a running node's wheel, as another node copies it.

    lines     those of the catalogue, in the order of their keys; progress is the last one
    stream    the bytes of all files that they name, one after the other: hours, then slots,
              each from its start up to the end in its line

Slot and hour files only grow, so their lines say which bytes belong to the checkpoint. LevelDB
keeps the lines as they were. The wheel holds the files meanwhile (`Snapshots.hold`): it unlinks,
cuts and punches none. So a snapshot takes no room at first, and none of it has to be written.

Not here: where a copy goes (`draft.py`), and who may ask for one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from threading import Lock
from typing import NamedTuple

import msgpack

from delayd.errors import CorruptionError, DiskError
from delayd.wheel import Progress, SegmentLine
from delayd.wheel.catalogue import REBUILD, Catalogue
from delayd.wheel.disk import Disk
from delayd.wheel.files import Files
from delayd.wheel.layout import Layout, SegmentName

Line = tuple[bytes, bytes]
"""A line of the catalogue: its key and its value."""


def packed(lines: Iterable[Line]) -> bytes:
    """Return lines as one string of bytes."""
    data: bytes = msgpack.packb([*chain.from_iterable(lines)])
    return data


def unpacked(data: bytes) -> list[Line]:
    """Return the lines in such a string: the inverse of `packed`."""
    values = msgpack.unpackb(data)
    return list(zip(values[::2], values[1::2], strict=True))


class Piece(NamedTuple):
    """A part of one file."""

    name: SegmentName
    start: int
    """The first byte of the file that is part of the stream."""
    position: int
    """The part's first byte, in the file."""
    size_bytes: int


class FileStream:
    """The order of all files' bytes in the stream; 100 bytes of memory a file."""

    def __init__(self, lines: Iterable[SegmentLine]) -> None:
        self._files: list[tuple[SegmentName, int]] = []
        self._firsts: list[int] = []
        self.size_bytes = 0
        for line in lines:
            self._files.append((line.name, line.start))
            self._firsts.append(self.size_bytes)
            self.size_bytes += line.info.bytes - line.start

    def __len__(self) -> int:
        return len(self._files)

    def pieces(self, position: int, size_bytes: int) -> Iterator[Piece]:
        """Yield the parts of files that lie in these bytes of the stream."""
        stop = min(position + size_bytes, self.size_bytes)
        number = max(0, bisect_right(self._firsts, position) - 1)
        while position < stop:
            (name, start), first = self._files[number], self._firsts[number]
            number += 1
            after = self._firsts[number] if number < len(self) else self.size_bytes
            end = min(after, stop)
            if position < end:
                yield Piece(name, start, start + position - first, end - position)
                position = end

    def files(self) -> Iterator[Piece]:
        """Yield all files, each as one piece, also those of which no byte is in the stream."""
        ends = (*self._firsts[1:], self.size_bytes)
        for (name, start), first, end in zip(self._files, self._firsts, ends, strict=True):
            yield Piece(name, start, start, end - first)


class Snapshots:
    """Snapshots of one wheel that is open to write. Part of the wheel, under its lock, but for
    `open`."""

    def __init__(self, layout: Layout, disk: Disk, catalogue: Catalogue, files: Files) -> None:
        self._layout = layout
        self._disk = disk
        self._catalogue = catalogue
        self._files = files

    def hold(self) -> None:
        """Give no byte of any file back to the disk until `release`, once for each call."""
        self._files.holds += 1

    def release(self) -> None:
        """Undo one `hold`: the next checkpoints unlink what was forgotten meanwhile."""
        assert self._files.holds > 0, "nothing is held"
        self._files.holds -= 1

    def open(self) -> "Snapshot":
        """Return the last checkpoint as it lies on the disk, while `hold` holds it. Needs no lock;
        close it before the wheel. DiskError if there is no checkpoint yet."""
        return Snapshot(self._layout, self._disk, self._catalogue)

    def peek(self) -> "Peek":
        """Return the last checkpoint likewise, for a moment: without the order of all its bytes,
        so that it costs the same however many files there are."""
        return Peek(self._layout, self._catalogue.snapshot())


class Peek(NamedTuple):
    """One checkpoint, to read lines and files from. For one thread; close its catalogue."""

    layout: Layout
    catalogue: Catalogue


class Snapshot:
    """One checkpoint, to read from. Thread safe."""

    def __init__(self, layout: Layout, disk: Disk, catalogue: Catalogue) -> None:
        """Take the catalogue's last checkpoint. DiskError if there is none, CorruptionError if the
        catalogue is damaged."""
        self._layout = layout
        self._disk = disk
        self._lock = Lock()
        self.catalogue_bytes = catalogue.about_bytes()
        """The size of the catalogue, roughly."""
        self._catalogue: Catalogue | None = catalogue.snapshot()
        try:
            self.progress: Progress = self._first_progress()
            self.stream = FileStream(self._catalogue.counted_lines())
        except BaseException:
            self.close()
            raise

    def _first_progress(self) -> Progress:
        progress = self._read_from().progress()
        if progress is None:
            raise DiskError(
                f"the wheel in {self._layout.root} has no checkpoint yet",
                remedy="ask again in a second",
            )
        return progress

    @property
    def layout(self) -> Layout:
        """Where its files are."""
        return self._layout

    @property
    def catalogue(self) -> Catalogue:
        """Its lines, for one thread at a time. DiskError if the snapshot is closed."""
        return self._read_from()

    def lines_after(self, key: bytes, bytes_max: int) -> list[Line]:
        """Return the lines after this key until they have so many bytes; the last one is progress.

        Raises DiskError, also if the snapshot is closed, and CorruptionError.
        """
        with self._lock:
            return self._read_from().lines_after(key, bytes_max)

    def bytes_at(self, position: int, bytes_max: int) -> bytes:
        """Return these bytes of the stream, fewer at its end. Raises as `lines_after` does."""
        data = bytearray()
        with self._lock:
            self._read_from()
            for piece in self.stream.pieces(position, bytes_max):
                data += self._read(piece)
        return bytes(data)

    def _read(self, piece: Piece) -> bytes:
        path = self._layout.segment_file(piece.name)
        file = self._disk.open(path, create=False)
        try:
            data = self._disk.pread(file, piece.size_bytes, piece.position)
        finally:
            self._disk.close(file)
        if len(data) < piece.size_bytes:
            raise CorruptionError(f"{piece.name}: {path} is cut off", remedy=REBUILD)
        return data

    def _read_from(self) -> Catalogue:
        if self._catalogue is None:
            raise DiskError("the snapshot is closed", remedy="ask for another one")
        return self._catalogue

    def close(self) -> None:
        """Let go of LevelDB; idempotent. The caller releases the wheel's files."""
        with self._lock:
            if self._catalogue is not None:
                self._catalogue.close()
                self._catalogue = None
