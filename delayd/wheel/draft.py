"""Drafts: a copy of another node's wheel, from its first byte to its place in the data directory.

    DIR/fetch/LOCK           locked by the process that copies or installs
    DIR/fetch/source.json    whose snapshot it is, and whether all of it was copied
    DIR/fetch/wheel/         the copy: catalogue, slots, and format.json once it is verified
    DIR/fetch/verified       from here on it takes its place, whoever goes on with it
    DIR/replaced/            the wheel that was there before, while there is room
    DIR/damage.json          what damage a node has met in the wheel, for its next start

    1. add the lines of the catalogue   2. append what the files lack of the stream (`snapshot.py`)
    3. verify every frame of every file against its line   4. sync, and write `verified`
    5. rename the old wheel to `replaced`, then the copy to its place, format.json last

Everything lies in the data directory, because that may be the root of a volume, and renames stay
within a volume. A kill before step 4 leaves a copy to go on with; after it, `finish` ends step 5 at
the next start, before anybody opens the wheel.

Invariants:
- the wheel in the data directory is the old one or the verified copy, or `verified` is there and
  says that it is on its way;
- a wheel is only removed if it is of no use, and its room is what the copy lacks, and enough;
- `damage.json` lies beside the wheel that it is about, and goes where that goes.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from delayd.errors import CorruptionError, DiskError, DiskFullError
from delayd.wheel import Progress
from delayd.wheel.catalogue import PROGRESS, Catalogue
from delayd.wheel.checking import check_segment
from delayd.wheel.disk import SystemDisk
from delayd.wheel.draft_files import PARTS, Room, is_at, remove, sync, translated, write_durably
from delayd.wheel.layout import Layout, SegmentName, parse_hour, parse_segment_file
from delayd.wheel.recovery import write_format
from delayd.wheel.snapshot import FileStream, Line

log = structlog.get_logger()

ANOTHER: Final = "the copy is removed, and another one is fetched"
_NOTES: Final = ("format.json.discarded", "damage.json", "repair.json")
"""What is said of the wheel in place: that it is being removed, damaged, or was rebuilt."""
Tell = Callable[[str, int, int], None]
"""Gets the stage, the bytes that are done, and the total; of the catalogue roughly."""


class Source(Protocol):
    """Where a copy comes from: a snapshot, perhaps of another machine. Raises what it likes."""

    catalogue_bytes: int

    def lines_after(self, key: bytes) -> Sequence[Line]:
        """Return some lines of the catalogue, at least one; the last of all is progress."""

    def bytes_at(self, position: int) -> bytes:
        """Return some bytes of the stream, at least one."""


class Draft:
    """The copy in one data directory. Used by one process at a time: see `locked`."""

    def __init__(self, directory: Path) -> None:
        self._home = Layout(str(directory.absolute()))
        self._root = Path(self._home.draft)
        self._layout = Layout(str(self._root / "wheel"))
        self._disk = SystemDisk()
        self._folders: set[int] = set()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from the copy. DiskError if one is at it."""
        with translated(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._root / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with translated(self._root):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had the lock may have removed it meanwhile, with all that it protects.
                if not is_at(descriptor, self._root / "LOCK"):
                    raise BlockingIOError
            yield
        finally:
            os.close(descriptor)

    # What was begun.

    @property
    def source(self) -> dict[str, Any] | None:
        """Whose snapshot it is; None if nothing was begun."""
        try:
            found = json.loads((self._root / "source.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def begin(self, source: Mapping[str, Any]) -> None:
        """Forget what was copied, and begin with this snapshot. DiskError."""
        self.clear()
        with translated(self._root):
            Path(self._layout.slots).mkdir(parents=True)
        self.note_source(source)

    def rebase(self, source: Mapping[str, Any]) -> None:
        """Go on with a later snapshot of the same life of the same node: files that were copied
        are kept, as far as it still has them. DiskError."""
        catalogue, former = Path(self._layout.catalogue), self._root / "former"
        with translated(self._root):
            remove(former)
            if catalogue.exists():
                catalogue.rename(former)
        self.note_source(source)
        with translated(self._root):
            remove(former)

    def note_source(self, source: Mapping[str, Any]) -> None:
        """Write down, durably, whose snapshot it is. DiskError."""
        write_durably(self._root / "source.json", json.dumps(dict(source)))

    def clear(self) -> None:
        """Remove the copy, but not the lock. DiskError."""
        self._folders.clear()
        with translated(self._root):
            (self._root / "source.json").unlink(missing_ok=True)
            for name in ("verified", "former", "wheel"):
                remove(self._root / name)

    # The copy.

    def copy(self, source: Source, tell: Tell) -> None:
        """Copy all of it, from where the last call ended. Raises DiskError, CorruptionError, and
        what `source` raises; the next call goes on, unless it was CorruptionError."""
        with closing(self._catalogue()) as catalogue:
            key, done = catalogue.last_key(), 0
            while key != PROGRESS:
                lines = source.lines_after(key)
                catalogue.put_lines(lines)
                key = lines[-1][0]
                done += sum(map(sum, ((len(k), len(v)) for k, v in lines)))
                tell("catalogue", done, max(done, source.catalogue_bytes))
            stream = FileStream(catalogue.counted_lines())
        self._drop_others(stream)
        position = self._first_missing(stream, 0)
        while position < stream.size_bytes:
            data = source.bytes_at(position)
            self._append(stream, position, data)
            position = self._first_missing(stream, position + len(data))
            tell("files", position, stream.size_bytes)
        for name, start, first, size_bytes in stream.files():
            if size_bytes == 0:  # All of the hour was split.
                self._write(name, start, first, b"")

    def _catalogue(self) -> Catalogue:
        return Catalogue(self._layout.catalogue, create=True)

    def _drop_others(self, stream: FileStream) -> None:
        """Remove files that an earlier snapshot had, and this one has not, or not as long."""
        self._folders.clear()
        ends = {name: start + size for name, start, _, size in stream.files()}
        for folder in self._disk.list_folder(self._layout.slots):
            hour = parse_hour(folder.name)
            for item in self._disk.list_folder(f"{self._layout.slots}/{folder.name}"):
                name = None if hour is None else parse_segment_file(item.name, hour)
                if name is None or item.bytes > ends.get(name, -1):
                    self._disk.unlink(f"{self._layout.slots}/{folder.name}/{item.name}")
            self._disk.remove_folder(f"{self._layout.slots}/{folder.name}")

    def _first_missing(self, stream: FileStream, position: int) -> int:
        """Return the first byte of the stream from this one on that is not in the files."""
        for name, _, first, size_bytes in stream.pieces(position, stream.size_bytes):
            found = self._length_of(name) or 0
            if found < first + size_bytes:
                return position + max(0, found - first)
            position += size_bytes
        return position

    def _length_of(self, name: SegmentName) -> int | None:
        try:
            return os.stat(self._layout.segment_file(name)).st_size  # noqa: PTH116
        except FileNotFoundError:
            return None

    def _append(self, stream: FileStream, position: int, data: bytes) -> None:
        """Write bytes of the stream, which is there up to `position`."""
        if not 0 < len(data) <= stream.size_bytes - position:
            raise CorruptionError(
                f"{len(data)} bytes came at byte {position} of {stream.size_bytes}", remedy=ANOTHER
            )
        at = 0
        for name, start, first, size_bytes in stream.pieces(position, len(data)):
            self._write(name, start, first, data[at : at + size_bytes])
            at += size_bytes

    def _write(self, name: SegmentName, start: int, first: int, data: bytes) -> None:
        """Write to one file what it lacks of these bytes, which begin at `first` in it."""
        path = self._layout.segment_file(name)
        if name.hour not in self._folders:
            self._disk.make_folder(self._layout.hour_folder(name.hour))
            self._folders.add(name.hour)
        found = self._length_of(name)
        if found is not None and found >= first + len(data):
            return
        file = self._disk.open(path, create=found is None)
        try:
            if (found or 0) < start:
                # What was split off is a hole, as where it comes from.
                self._disk.truncate(path, start)
                found = start
            assert (found or 0) >= first, "files are copied from their first byte on"
            self._disk.append(file, data[(found or 0) - first :])
        finally:
            self._disk.close(file)

    # From the copy to the wheel.

    def verify(self, partitions: int, tell: Tell) -> Progress:
        """Read every frame, compare it with the catalogue, and make all of it durable; return the
        checkpoint that it is. From here on `install` can be called.

        Raises CorruptionError if anything differs: the copy is worth nothing then.
        """
        with closing(self._catalogue()) as catalogue:
            progress = catalogue.progress()
            if progress is None or len(progress.offsets) != partitions:
                raise CorruptionError("the copied catalogue has no checkpoint", remedy=ANOTHER)
            total = FileStream(catalogue.counted_lines()).size_bytes
            done = 0
            for line in catalogue.counted_lines_by_hour():
                path = self._layout.segment_file(line.name)
                file = self._disk.open_to_read(path)
                try:
                    length = os.fstat(file.descriptor).st_size
                    found = check_segment(self._disk, file, line)
                finally:
                    self._disk.close(file)
                if found.spans or found.lost or length != line.info.bytes:
                    why = found.spans[0].why if found.spans else f"has {length} bytes"
                    raise CorruptionError(
                        f"{line.name} of the copy, of {line.info.bytes} bytes, differs from its "
                        f"line in the catalogue: {why}",
                        remedy=ANOTHER,
                    )
                done += line.info.bytes - line.start
                tell("verify", done, total)
        write_format(self._layout, self._disk, partitions)
        volume = self._disk.open_folder(str(self._root))
        try:
            self._disk.syncfs(volume)
        finally:
            self._disk.close(volume)
        return progress

    def install(self, keep_bytes: int) -> None:
        """Put the verified copy in the place of the wheel, which no process has open.

        The old wheel is kept if at least `keep_bytes` are free then. Raises DiskError; `finish`
        goes on then.
        """
        remove_replaced(Path(self._home.root))
        write_durably(self._root / "verified", "")
        _finish(self._home)
        if self._disk.free_bytes(self._home.root) < keep_bytes:
            remove_replaced(Path(self._home.root))

    def require_room(self, needed_bytes: int, spare_bytes: int, *, is_usable: bool = False) -> None:
        """See that a copy of so many bytes fits, what was copied of it included.

        If it does not, remove what was replaced before, then the wheel in place, unless that is
        usable: only as much as is needed, and only if the copy fits then. DiskFullError if it
        cannot.
        """
        root = Path(self._home.root)
        copied, replaced = Room.of(self._root), Room.of(Path(self._home.replaced))
        in_place = sum((Room.of(root / name) for name in PARTS), Room(0, 0))
        needed_bytes += spare_bytes
        gives_way = replaced if is_usable else replaced + in_place
        most_bytes = self._free_bytes(copied + gives_way)
        if most_bytes < needed_bytes:
            raise DiskFullError(
                f"a copy of the wheel needs {needed_bytes - spare_bytes} bytes beside "
                f"disk_free_min_bytes = {spare_bytes}, and {most_bytes} would be free in "
                f"{self._home.root} {'beside' if is_usable else 'without'} the wheel that is "
                "there; nothing was removed",
                remedy="give the node a larger volume",
            )
        if self._free_bytes(copied) < needed_bytes:
            self._remove_replaced()
        if not is_usable and self._free_bytes(copied) < needed_bytes:
            self._remove_old()

    def _free_bytes(self, more: Room) -> int:
        return self._disk.free_bytes_with(self._home.root, more.bytes, more.inodes)

    def _remove_replaced(self) -> None:
        if Path(self._home.replaced).exists():
            remove_replaced(Path(self._home.root))
            log.warning("replaced_wheel_removed", why="the copy of another one needs its room")

    def _remove_old(self) -> None:
        # The note of its damage goes last: until then every start goes on here.
        with translated(Path(self._home.root)):
            for name in (*reversed(PARTS), *_NOTES):
                remove(Path(self._home.root, name))
            sync(Path(self._home.root))
        log.warning("unusable_wheel_removed", why="the copy of another one needs its room")


def finish(directory: Path) -> bool:
    """Put a verified copy in its place, as far as that was not done; return whether there was one.

    Call it before the wheel is opened. Raises DiskError, also if another process is at it.
    """
    home = Layout(str(directory.absolute()))
    if not _is_verified(home):
        return False
    with Draft(directory).locked():
        return _finish(home)


def _finish(home: Layout) -> bool:
    """Do what `finish` says, under the lock."""
    root, copy, old = Path(home.root), Path(home.draft, "wheel"), Path(home.replaced)
    if not _is_verified(home):
        return False
    with translated(root):
        old.mkdir(exist_ok=True)
        # What is in its place already is not in the copy any more.
        moved = [name for name in reversed(PARTS) if (copy / name).exists()]
        for name in (*moved, *_NOTES):
            if (root / name).exists():
                (root / name).rename(old / name)
        sync(root, old)
        for name in reversed(moved):
            (copy / name).rename(root / name)
        if moved:
            sync(root, copy)
        if not any(old.iterdir()):
            old.rmdir()
        _remove_draft(Path(home.draft))
        sync(root)
    return True


def _is_verified(home: Layout) -> bool:
    return Path(home.draft, "verified").exists()


def remove_abandoned(directory: Path) -> bool:
    """Remove a copy that nobody goes on with; return whether there was one. The caller has the
    wheel open, so none takes its place. DiskError, also if another process copies."""
    root = Path(Layout(str(directory.absolute())).draft)
    if not root.exists():
        return False
    with Draft(directory).locked(), translated(root):
        _remove_draft(root)
    return True


def _remove_draft(root: Path) -> None:
    """Remove a copy with its lock, which the caller holds."""
    last = ("verified", "LOCK")
    left = [path for path in root.iterdir() if path.name not in last]
    for path in (*left, *(root / name for name in last)):
        remove(path)
    with suppress(OSError):  # Another process may just begin one.
        root.rmdir()


def remove_replaced(directory: Path) -> None:
    """Give back the room of the wheel that was replaced, if there is one. DiskError."""
    replaced = Path(Layout(str(directory)).replaced)
    with translated(replaced):
        remove(replaced / "format.json")  # After a crash the rest is no wheel.
        remove(replaced)


def kept_aside_bytes(directory: Path) -> int | None:
    """Return the room of the wheel that was replaced; None if there is none. DiskError."""
    replaced = Path(Layout(str(directory)).replaced)
    return Room.of(replaced).bytes if replaced.exists() else None


def is_under_way(directory: Path) -> bool:
    """Return whether another process copies a wheel into this directory."""
    lock = Path(Layout(str(directory)).draft, "LOCK")
    if not lock.exists():
        return False
    try:
        with Draft(directory).locked():
            return False
    except DiskError:
        return True


# What damage a node has met.


def note_damage(directory: Path, why: str) -> None:
    """Leave word of damage for the next start of the node. A disk that does not take it is no
    reason to fail: the node meets the damage again."""
    with suppress(DiskError):
        write_durably(Path(Layout(str(directory)).damage), json.dumps({"why": why}))


def noted_damage(directory: Path) -> str | None:
    """Return the damage that a node has met in the wheel, or None."""
    try:
        return str(json.loads(Path(Layout(str(directory)).damage).read_bytes())["why"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "it was not written down legibly"


def forget_damage(directory: Path) -> None:
    """Forget what was noted, because it was mended. DiskError."""
    path = Path(Layout(str(directory)).damage)
    with translated(path):
        path.unlink(missing_ok=True)
