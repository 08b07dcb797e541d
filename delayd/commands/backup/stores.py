"""Where backups lie: named objects that are written once, whole, in a directory or by fsspec.

Not here: what the objects hold.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
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


TIME_KEYS: Final = ("LastModified", "updated", "last_modified", "created")
"""How the drivers of S3, Google's and Azure's stores, and of memory, name an object's time."""


class Store(Protocol):
    """Objects by name, `FOLDER/FILE` or `FILE`. Every method raises BackupError, and `write` raises
    DiskFullError if only room is missing."""

    is_exclusive: bool
    """Whether `locked` keeps other processes from writing."""

    def locked(self) -> Any:
        """Return a context in which no other process writes here, as far as that can be had."""

    def names(self, folder: str = "") -> set[str]:
        """Return the names of the files in a folder; none if there is no such folder."""

    def times_ms(self, folder: str) -> dict[str, int]:
        """Return when the objects in a folder were written, by the store's clock, Unix time; those
        are missing of which the store does not say it."""

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

    is_exclusive = True

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

    def times_ms(self, folder: str) -> dict[str, int]:
        """As a Store."""
        with _translated(self._root):
            return {
                name: (self._root / folder / name).stat().st_mtime_ns // 1_000_000
                for name in self.names(folder)
            }

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

    is_exclusive = False

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
        return set(self._listed(folder))

    def times_ms(self, folder: str) -> dict[str, int]:
        """As a Store."""
        times = {name: _time_of(item) for name, item in self._listed(folder).items()}
        return {name: at_ms for name, at_ms in times.items() if at_ms is not None}

    def _listed(self, folder: str) -> dict[str, dict[str, Any]]:
        """Return what the driver says of the files in a folder, by name."""
        path = self._path(folder)
        with _calling(path):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(path, detail=True)
            except FileNotFoundError:
                return {}
            return {
                str(item["name"]).rpartition("/")[2]: item
                for item in found
                if item["type"] == "file"
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


def _time_of(item: dict[str, Any]) -> int | None:
    """Return when an object was written, Unix time in ms; None if its driver does not say it."""
    for key in TIME_KEYS:
        said = item.get(key)
        if isinstance(said, str):
            with suppress(ValueError):
                said = datetime.fromisoformat(said)
        if isinstance(said, float):
            return int(said * 1000)
        if isinstance(said, datetime):
            said = said if said.tzinfo else said.replace(tzinfo=UTC)
            return int(said.timestamp() * 1000)
    return None


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
