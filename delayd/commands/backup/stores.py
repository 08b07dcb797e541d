"""Where backups lie: named objects that are written once, whole, in a directory or by fsspec.

Not here: what the objects hold.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from delayd.errors import BackupError, DiskFullError
from delayd.runtime.atomic_file import sync_folder

EXTRAS: Final = {
    "s3": "backup-s3",
    "s3a": "backup-s3",
    "gs": "backup-gs",
    "gcs": "backup-gs",
    "abfs": "backup-abfs",
    "abfss": "backup-abfs",
    "az": "backup-abfs",
}
"""The extra that brings the driver of a protocol."""


class Store(Protocol):
    """Objects by name, `FOLDER/FILE` or `FILE`. Every method raises BackupError, and `write` raises
    DiskFullError if only room is missing."""

    def locked(self) -> Any:
        """Return a context in which no other process writes here, as far as that can be had."""

    def names(self, folder: str = "") -> set[str]:
        """Return the names of the files in a folder; none if there is no such folder."""

    def read(self, name: str, first: int = 0, end: int | None = None) -> bytes:
        """Return an object, or its bytes from `first` up to `end`."""

    def write(self, name: str, data: bytes) -> None:
        """Make an object, whole or not at all; durable on return."""

    def remove(self, name: str) -> None:
        """Remove an object; idempotent."""


class NoSuchObjectError(BackupError):
    """An object is missing."""


class Directory:
    """A directory of this machine."""

    def __init__(self, root: Path) -> None:
        """Raise BackupError if it is not there: a volume may be missing."""
        self._root = root
        if not root.is_dir():
            raise BackupError(
                f"there is no directory {root}",
                remedy="mount its volume, or make it: `delayd backup` makes none, so that a volume "
                "that is missing is noticed",
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing; remove what a killed one left half-written."""
        with _translated(self._root):
            lock = os.open(self._root / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with _translated(self._root):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for draft in (*self._root.glob(".*.new"), *self._root.glob("*/.*.new")):
                    draft.unlink()
            yield
        finally:
            os.close(lock)

    def names(self, folder: str = "") -> set[str]:
        """As a Store."""
        with _translated(self._root), suppress(FileNotFoundError):
            return {
                item.name
                for item in (self._root / folder).iterdir()
                if item.is_file() and not item.name.startswith(".")
            }
        return set()

    def read(self, name: str, first: int = 0, end: int | None = None) -> bytes:
        """As a Store."""
        with _translated(self._root), (self._root / name).open("rb") as file:
            file.seek(first)
            return file.read(-1 if end is None else end - first)

    def write(self, name: str, data: bytes) -> None:
        """As a Store."""
        path = self._root / name
        draft = path.with_name(f".{path.name}.new")
        with _translated(self._root):
            try:
                path.parent.mkdir(exist_ok=True)
                with draft.open("wb") as out:
                    out.write(data)
                    out.flush()
                    os.fsync(out.fileno())
                draft.replace(path)
                sync_folder(path.parent)
                sync_folder(self._root)
            except OSError:
                with suppress(OSError):
                    draft.unlink()
                raise

    def remove(self, name: str) -> None:
        """As a Store."""
        with _translated(self._root):
            (self._root / name).unlink(missing_ok=True)


class Remote:
    """An object store, by its driver for fsspec. A write of one object must be whole or nothing
    there, as it is in S3, Google's and Azure's."""

    def __init__(self, url: str) -> None:
        protocol = url.partition("://")[0]
        extra = EXTRAS.get(protocol, "backup")
        try:
            # An extra: nodes need none of it.
            import fsspec

            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise BackupError(
                f"{url}: {error}",
                remedy=f"pip install 'delayd[{extra}]'; a directory needs nothing more",
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock nothing: an object store has no locks. Run one backup at a time."""
        yield

    def names(self, folder: str = "") -> set[str]:
        """As a Store."""
        path = self._path(folder)
        with _calling(path):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(path, detail=True)
            except FileNotFoundError:
                return set()
            return {
                str(item["name"]).rpartition("/")[2] for item in found if item["type"] == "file"
            }

    def read(self, name: str, first: int = 0, end: int | None = None) -> bytes:
        """As a Store."""
        with _calling(self._path(name)):
            data: bytes = self._files.cat_file(self._path(name), start=first, end=end)
            return data

    def write(self, name: str, data: bytes) -> None:
        """As a Store."""
        with _calling(self._path(name)):
            self._files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(self._path(name), data)

    def remove(self, name: str) -> None:
        """As a Store."""
        with _calling(self._path(name)), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")


def open_store(target: str) -> Store:
    """Return the store at a path or URL. Raises BackupError."""
    if "://" not in target:
        return Directory(Path(target).absolute())
    protocol, _, path = target.partition("://")
    if protocol == "file":
        return Directory(Path(path or "/"))
    return Remote(target)


@contextmanager
def _translated(root: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise BackupError(
            f"another process writes a backup into {root}", remedy="wait until it has ended"
        ) from error
    except FileNotFoundError as error:
        raise NoSuchObjectError(f"{error.filename} is missing", remedy=LOST) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = DiskFullError if full else BackupError
        raise kind(
            f"{error.filename or root}: {error.strerror}",
            remedy="make room there, by --keep for example, then run it again: it goes on"
            if full
            else "look at the volume: is it mounted, and may this user write there",
        ) from error


@contextmanager
def _calling(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NoSuchObjectError(f"{path} is missing", remedy=LOST) from error
    except BackupError:
        raise
    # Each driver has exceptions of its own.
    except Exception as error:
        raise BackupError(
            f"{path}: {type(error).__name__}: {error}",
            remedy="look at the address, the credentials and the network, then run it again: it "
            "goes on",
        ) from error


LOST: Final = "see `delayd backup --verify`; another backup may be whole: `delayd backup --list`"
