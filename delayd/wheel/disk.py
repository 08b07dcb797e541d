"""The one door to the operating system for the wheel's own files.

Not here: LevelDB, which has its own (`catalogue.py`). `Disk` is the port; the simulator and the
tests put a faulty disk behind it. Linux only (`fdatasync`, `syncfs`).

Invariant: every failure is a DiskError that names the path, the operation and a remedy.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from delayd.errors import NO_ROOM, DiskError, DiskFullError, is_disk_full
from delayd.runtime import native
from delayd.runtime.bounded_dict import BoundedDict
from delayd.runtime.native.unpacking import Frames, gather


class OpenFile(NamedTuple):
    """An open slot file. The path travels with it so that an error can name it."""

    path: str
    descriptor: int


class FolderItem(NamedTuple):
    """A name in a folder. `bytes` is the length of a file."""

    name: str
    is_folder: bool
    bytes: int


class Disk(Protocol):
    """The file system that a wheel needs. Every method raises DiskError, and nothing else: a
    DiskFullError if only room is missing."""

    def make_folder(self, path: str) -> bool:
        """Create the folder and its parents; return False if it exists."""

    def list_folder(self, path: str) -> list[FolderItem]:
        """Return all names in the folder, in no order."""

    def remove_folder(self, path: str) -> bool:
        """Remove an empty folder; return False if it is not empty."""

    def open(self, path: str, *, create: bool) -> OpenFile:
        """Open for reading and appending. `create` makes a new file and refuses an existing one."""

    def close(self, file: OpenFile) -> None:
        """Close; the file's unsynced bytes stay with the operating system."""

    def append(self, file: OpenFile, data: bytes | bytearray) -> None:
        """Write all of `data` at the end."""

    def pread(self, file: OpenFile, size_bytes: int, position: int) -> bytes:
        """Read bytes; fewer than asked for only at the end of the file."""

    def gather(
        self, file: OpenFile, frames: Frames, entries: range, at: int, base: int, end: int
    ) -> int | None:
        """Read the frames of these entries natively; see `delayd.runtime.native.unpacking.gather`.

        None if they were not read, or not all of them: then `pread` says why."""

    def fdatasync(self, file: OpenFile) -> None:
        """Make the file's bytes and length durable (not its name: see sync_folder)."""

    def sync_folder(self, path: str) -> None:
        """Make the names in the folder durable."""

    def open_folder(self, path: str) -> OpenFile:
        """Open a folder, for syncfs."""

    def syncfs(self, folder: OpenFile) -> None:
        """Make everything on the folder's file system durable: bytes and names.

        The kernel reports a write that was lost in the background to the descriptors that were
        open when it happened (Linux 5.8 and later), so keep one open from the start.
        """

    def truncate(self, path: str, length_bytes: int) -> None:
        """Cut a file to this length."""

    def punch(self, file: OpenFile, below: int) -> None:
        """Give back the bytes before this position, which then read as zeros; the length stays. A
        file system that cannot do that, or has no room to note it, keeps them."""

    def rename(self, old: str, new: str) -> None:
        """Replace `new` by `old`, atomically."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def reserve(self, path: str, size_bytes: int) -> None:
        """Make a file that holds so much room, and nothing else; there is none where this fails."""

    def free_bytes(self, path: str) -> int:
        """Return the bytes that this process may still write to the file system of `path`. A free
        inode counts as INODE_BYTES, and the fewer of both are free."""


INODE_BYTES = 16 * 1024
"""What ext4 gives to each inode, unless it was made otherwise."""
_FULL = (
    "free space on the volume or give the node a larger one, then start it again: "
    "it goes on from its last checkpoint"
)
_BROKEN = (
    "the device or its file system fails: do not restart on it; give the node a healthy volume, "
    "empty: it rebuilds its wheel from the buffer, or copies another node's"
)
_READ_ONLY = (
    "mount the volume for writing if somebody mounted it like this. If the kernel did, the device "
    "fails: give the node a healthy volume, empty: it rebuilds its wheel from the buffer, or "
    "copies another node's"
)
_RIGHTS = "let the user that runs delayd read and write the data directory, then start it again"
_REMEDIES = {
    **dict.fromkeys(NO_ROOM, _FULL),
    errno.EFBIG: _FULL,
    errno.EIO: _BROKEN,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EMFILE: "raise the limit of open files (ulimit -n) to at least 4096",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
}
_OTHER = "look at the volume of the data directory and the kernel log, then start the node again"


def _failed(what: str, path: str, error: OSError) -> DiskError:
    reason = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, _OTHER)
    kind = DiskFullError if is_disk_full(error) else DiskError
    return kind(f"cannot {what} {path}: {reason}", remedy=remedy)


@contextmanager
def _failing(what: str, path: str) -> Iterator[None]:
    """Raise the DiskError of an OSError. Not for reads and appends, which it would slow down."""
    try:
        yield
    except OSError as error:
        raise _failed(what, path, error) from error


def _call(function: Callable[..., int], *arguments: int) -> int:
    """Call a function of libc and return its error number, 0 on success. Repeat a call that a
    signal interrupts, as Python does with its own."""
    while function(*arguments) != 0:
        if (number := ctypes.get_errno()) != errno.EINTR:
            return number
    return 0


_PUNCH_AND_KEEP_SIZE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE of linux/falloc.h."""


class SystemDisk:
    """The real file system."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._syncfs: Callable[[int], int] = libc.syncfs
        self._fallocate: Callable[[int, int, int, int], int] = libc.fallocate
        libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def make_folder(self, path: str) -> bool:
        try:
            os.makedirs(path, mode=0o755)  # noqa: PTH103
        except FileExistsError:
            return False
        except OSError as error:
            raise _failed("create the folder", path, error) from error
        return True

    def list_folder(self, path: str) -> list[FolderItem]:
        with _failing("list the folder", path), os.scandir(path) as items:
            return [FolderItem(item.name, item.is_dir(), item.stat().st_size) for item in items]

    def remove_folder(self, path: str) -> bool:
        try:
            os.rmdir(path)  # noqa: PTH106
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise _failed("remove the folder", path, error) from error
        return True

    def open(self, path: str, *, create: bool) -> OpenFile:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        with _failing("create" if create else "open", path):
            return OpenFile(path, os.open(path, flags, 0o644))

    def open_to_read(self, path: str) -> OpenFile:
        """Open for reading only: for commands that must not change the wheel."""
        with _failing("open", path):
            return OpenFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def close(self, file: OpenFile) -> None:
        with _failing("close", file.path):
            os.close(file.descriptor)

    def append(self, file: OpenFile, data: bytes | bytearray) -> None:
        try:
            written = os.write(file.descriptor, data)
            while written < len(data):
                written += os.write(file.descriptor, data[written:])
        except OSError as error:
            raise _failed(f"append {len(data)} bytes to", file.path, error) from error

    def pread(self, file: OpenFile, size_bytes: int, position: int) -> bytes:
        try:
            data = os.pread(file.descriptor, size_bytes, position)
            while len(data) < size_bytes:
                more = os.pread(file.descriptor, size_bytes - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _failed(f"read {size_bytes} bytes at {position} of", file.path, error) from error
        return data

    def gather(
        self, file: OpenFile, frames: Frames, entries: range, at: int, base: int, end: int
    ) -> int | None:
        if native.library is None:
            return None
        return gather(native.library, file.descriptor, frames, entries, at, base, end)

    def fdatasync(self, file: OpenFile) -> None:
        with _failing("sync", file.path):
            os.fdatasync(file.descriptor)

    def sync_folder(self, path: str) -> None:
        folder = self.open_folder(path)
        try:
            with _failing("sync the folder", path):
                os.fsync(folder.descriptor)
        finally:
            self.close(folder)

    def open_folder(self, path: str) -> OpenFile:
        with _failing("open the folder", path):
            return OpenFile(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def syncfs(self, folder: OpenFile) -> None:
        with _failing("sync the file system of", folder.path):
            if (number := _call(self._syncfs, folder.descriptor)) != 0:
                raise OSError(number, os.strerror(number))

    def truncate(self, path: str, length_bytes: int) -> None:
        with _failing(f"cut to {length_bytes} bytes", path):
            os.truncate(path, length_bytes)

    def punch(self, file: OpenFile, below: int) -> None:
        with _failing(f"give back {below} bytes of", file.path):
            number = _call(self._fallocate, file.descriptor, _PUNCH_AND_KEEP_SIZE, 0, below)
            if number not in (0, errno.EOPNOTSUPP, errno.ENOSYS, *NO_ROOM):
                raise OSError(number, os.strerror(number))

    def rename(self, old: str, new: str) -> None:
        with _failing("rename to its final name", old):
            os.replace(old, new)  # noqa: PTH105

    def unlink(self, path: str) -> None:
        with _failing("remove", path):
            os.unlink(path)  # noqa: PTH108

    def reserve(self, path: str, size_bytes: int) -> None:
        file = self.open(path, create=True)
        try:
            with _failing(f"reserve {size_bytes} bytes for", path):
                if (number := _call(self._fallocate, file.descriptor, 0, 0, size_bytes)) != 0:
                    raise OSError(number, os.strerror(number))
        except DiskError:
            self.unlink(path)
            raise
        finally:
            self.close(file)

    def free_bytes(self, path: str) -> int:
        return self.free_bytes_with(path, 0, 0)

    def free_bytes_with(self, path: str, more_bytes: int, more_inodes: int) -> int:
        """Return what `free_bytes` will, once files of so many bytes and inodes are removed."""
        with _failing("ask for the free space of", path):
            found = os.statvfs(path)
        free_bytes = found.f_bavail * found.f_frsize + more_bytes
        # A file system without a limit of inodes tells of none.
        inodes_bytes = (found.f_favail + more_inodes) * INODE_BYTES
        return min(free_bytes, inodes_bytes) if found.f_files else free_bytes


class FailureLatch:
    """Open until the first failure, then shut for good: every call raises DiskError."""

    def __init__(self) -> None:
        self._failure: BaseException | None = None
        self.is_closed = False

    def trip(self, error: BaseException) -> None:
        """Refuse every later call because of `error`. Any thread."""
        if self._failure is None:
            self._failure = error

    @contextmanager
    def tripped_by_errors(self) -> Iterator[None]:
        """Trip if the block raises: it may have changed the wheel by half. A full disk does not:
        `Segments.write_tail` takes back what it began."""
        self.require_usable()
        try:
            yield
        except DiskFullError:
            raise
        except BaseException as error:
            self.trip(error)
            raise

    def require_usable(self) -> None:
        """Raise DiskError after a failure."""
        assert not self.is_closed, "the wheel is closed"
        if self._failure is not None:
            raise DiskError(
                f"the wheel stopped after an earlier failure: {self._failure}",
                remedy="end the process; it goes on from the last checkpoint",
            ) from self._failure


OPEN_FILES_MAX = 256
"""The default: a quarter of the usual limit of 1024 open files, since Kafka's sockets and LevelDB's
tables need some, too. One for each of 7,200 slots showed no clear gain."""


class Descriptors:
    """The open files of one wheel: bounded, least recently used closed first. Not thread safe.

    A file with unsynced bytes may be closed: the operating system keeps them, and the checkpoint
    opens it again to sync it.
    """

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._open: BoundedDict[str, OpenFile] = BoundedDict(
            limit, on_evict=lambda _, file: disk.close(file)
        )

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> OpenFile:
        """Return the file at `path`, opened if it is not yet."""
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self._open[path] = self._disk.open(path, create=create)
        return file

    def take(self, path: str) -> OpenFile:
        """Return the open file at `path`, which the caller now owns and closes."""
        file = self._open.pop(path, None)
        return self._disk.open(path, create=False) if file is None else file

    def give(self, file: OpenFile) -> None:
        """Return a file that was taken; it is closed if there is no room or no need for it."""
        if file.path in self._open or len(self._open) >= self._open.limit:
            self._disk.close(file)
        else:
            self._open[file.path] = file

    def drop(self, path: str) -> None:
        """Close the file, if open, before it is unlinked."""
        file = self._open.pop(path, None)
        if file is not None:
            self._disk.close(file)

    def close(self) -> None:
        """Close all; idempotent."""
        while self._open:
            _, file = self._open.popitem()
            self._disk.close(file)
