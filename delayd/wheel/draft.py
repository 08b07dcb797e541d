"""Drafts: a copy of another node's wheel, from its first byte to its place in the data directory.

    DIR/fetch/LOCK           locked by the process that copies
    DIR/fetch/source.json    whose snapshot it is
    DIR/fetch/wheel/         the copy: catalogue, slots, and format.json once it is verified
    DIR/fetch/verified       from here on it takes its place, whoever goes on with it
    DIR/replaced/            the wheel that was there before, while there is room
    DIR/damage.json          what damage a node has met in the wheel, for its next start

    1. add the lines of the catalogue   2. append the stream of the files (`snapshot.py`)
    3. verify every frame of every file against its line   4. sync, and write `verified`
    5. rename the old wheel to `replaced`, then the copy to its place, format.json last

Everything lies in the data directory, because that may be the root of a volume, and renames stay
within a volume. A kill before step 4 leaves a copy to go on with; after it, `finish` ends step 5 at
the next start, before anybody opens the wheel.

Invariant: the wheel in the data directory is the old one or the verified copy, or `verified` is
there and says that it is on its way.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from delayd.errors import CorruptionError, DiskError, DiskFullError, is_disk_full
from delayd.runtime.atomic_file import sync_folder, write_atomically
from delayd.wheel import Progress
from delayd.wheel.catalogue import PROGRESS, Catalogue
from delayd.wheel.checking import check_segment
from delayd.wheel.disk import SystemDisk
from delayd.wheel.layout import Layout
from delayd.wheel.recovery import write_format
from delayd.wheel.snapshot import FileStream, Line

ANOTHER: Final = "the copy is removed, and another one is fetched"
_PARTS: Final = ("slots", "catalogue", "format.json")
"""What makes a wheel, in the order in which it takes its place."""
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
        with _translated(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._root / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with _translated(self._root):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        with _translated(self._root):
            Path(self._layout.slots).mkdir(parents=True)
        _write_durably(self._root / "source.json", json.dumps(dict(source)))

    def clear(self) -> None:
        """Remove the copy, but not the lock. DiskError."""
        self._folders.clear()
        with _translated(self._root):
            (self._root / "source.json").unlink(missing_ok=True)
            for name in ("verified", "wheel"):
                _remove(self._root / name)

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
        position = self._position(stream)
        while position < stream.size_bytes:
            data = source.bytes_at(position)
            self._append(stream, position, data)
            position += len(data)
            tell("files", position, stream.size_bytes)

    def _catalogue(self) -> Catalogue:
        return Catalogue(self._layout.catalogue, create=True)

    def _position(self, stream: FileStream) -> int:
        """Return how much of the stream is in the files."""
        done = 0
        for name, start, _, size_bytes in stream.files():
            path = self._layout.segment_file(name)
            try:
                found = os.stat(path).st_size  # noqa: PTH116
            except FileNotFoundError:
                return done
            if found < start + size_bytes:
                return done + max(0, found - start)
            done += size_bytes
        return done

    def _append(self, stream: FileStream, position: int, data: bytes) -> None:
        """Write bytes of the stream, which is there up to `position`."""
        if not 0 < len(data) <= stream.size_bytes - position:
            raise CorruptionError(
                f"{len(data)} bytes came at byte {position} of {stream.size_bytes}", remedy=ANOTHER
            )
        at = 0
        for name, start, first, size_bytes in stream.pieces(position, len(data)):
            path = self._layout.segment_file(name)
            if name.hour not in self._folders:
                self._disk.make_folder(self._layout.hour_folder(name.hour))
                self._folders.add(name.hour)
            is_new = first == start
            if is_new:
                _remove(Path(path))
            file = self._disk.open(path, create=is_new)
            try:
                if is_new and start:
                    # What was split off is a hole, as where it comes from.
                    self._disk.truncate(path, start)
                self._disk.append(file, data[at : at + size_bytes])
            finally:
                self._disk.close(file)
            at += size_bytes

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
        with _translated(self._root):
            _remove(Path(self._home.replaced))
        _write_durably(self._root / "verified", "")
        finish(Path(self._home.root))
        if self._disk.free_bytes(self._home.root) < keep_bytes:
            remove_replaced(Path(self._home.root))

    def require_room(self, needed_bytes: int, spare_bytes: int) -> None:
        """Remove the old wheel as far as the copy needs its room: what was replaced before, then
        the one in place, which nothing can use. DiskFullError if that does not do."""
        for give_way in (self._remove_replaced, self._remove_old):
            if self._disk.free_bytes(self._home.root) >= needed_bytes + spare_bytes:
                return
            give_way()
        free_bytes = self._disk.free_bytes(self._home.root)
        if free_bytes < needed_bytes + spare_bytes:
            raise DiskFullError(
                f"a copy of the wheel needs {needed_bytes} bytes beside disk_free_min_bytes = "
                f"{spare_bytes}, and {free_bytes} are free in {self._home.root}",
                remedy="give the node a larger volume",
            )

    def _remove_replaced(self) -> None:
        remove_replaced(Path(self._home.root))

    def _remove_old(self) -> None:
        with _translated(Path(self._home.root)):
            for name in reversed(_PARTS):
                _remove(Path(self._home.root, name))


def finish(directory: Path) -> bool:
    """Put a verified copy in its place, as far as that was not done; return whether there was one.

    Call it before the wheel is opened. Raises DiskError.
    """
    home = Layout(str(directory.absolute()))
    root, copy, old = Path(home.root), Path(home.draft, "wheel"), Path(home.replaced)
    if not Path(home.draft, "verified").exists():
        return False
    with _translated(root):
        old.mkdir(exist_ok=True)
        # What is in its place already is not in the copy any more.
        moved = [name for name in reversed(_PARTS) if (copy / name).exists()]
        for name in (*moved, Path(home.damage).name):
            if (root / name).exists():
                (root / name).rename(old / name)
        _sync(root, old)
        for name in reversed(moved):
            (copy / name).rename(root / name)
        if moved:
            _sync(root, copy)
        for left in sorted(Path(home.draft).iterdir(), key=lambda path: path.name == "verified"):
            _remove(left)
        Path(home.draft).rmdir()
        if not any(old.iterdir()):
            old.rmdir()
        _sync(root)
    return True


def remove_replaced(directory: Path) -> None:
    """Give back the room of the wheel that was replaced, if there is one. DiskError."""
    replaced = Path(Layout(str(directory)).replaced)
    with _translated(replaced):
        _remove(replaced)


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
        _write_durably(Path(Layout(str(directory)).damage), json.dumps({"why": why}))


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
    with _translated(path):
        path.unlink(missing_ok=True)


def _write_durably(path: Path, text: str) -> None:
    with _translated(path):
        write_atomically(path, text)


def _sync(*folders: Path) -> None:
    for folder in folders:
        sync_folder(folder)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise DiskError(
            f"another process copies a wheel into {path}",
            remedy="wait until it has ended, or stop it",
        ) from error
    except OSError as error:
        raise (DiskFullError if is_disk_full(error) else DiskError)(
            f"cannot write {error.filename or path}: {error.strerror}",
            remedy="look at the volume of the data directory: its room, its rights, its health",
        ) from error
