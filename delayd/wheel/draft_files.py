"""What a draft does with files and folders in a data directory, and what room they take.

Every function raises DiskError if it is called within `translated`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from delayd.errors import DiskError, DiskFullError, is_disk_full
from delayd.runtime.atomic_file import sync_folder, write_atomically

PARTS: Final = ("slots", "catalogue", "format.json")
"""What makes a wheel, in the order in which it takes its place."""


class Room(NamedTuple):
    """What is given back to a volume when something is removed."""

    bytes: int
    inodes: int

    @classmethod
    def of(cls, path: Path) -> "Room":
        """Return what a file, or all in a folder, takes; nothing if there is none. DiskError."""
        found = cls(0, 0)
        with translated(path):
            for each in (path, *path.rglob("*")):
                with suppress(FileNotFoundError):
                    seen = each.lstat()
                    if each.is_dir() or seen.st_nlink == 1:
                        found += Room(seen.st_blocks * 512, 1)
        return found

    def __add__(self, other: "Room") -> "Room":  # type: ignore[override]
        return Room(self.bytes + other.bytes, self.inodes + other.inodes)


def write_durably(path: Path, text: str) -> None:
    """Write a file so that it is there, whole, after a loss of power."""
    with translated(path):
        write_atomically(path, text)


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether this path still leads to that open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def sync(*folders: Path) -> None:
    """Make the names in these folders survive a loss of power."""
    for folder in folders:
        sync_folder(folder)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it; nothing if there is none."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise DiskError in place of an OSError: DiskFullError if the disk is full."""
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
