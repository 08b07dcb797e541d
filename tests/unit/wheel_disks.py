"""Disks and catalogues that fail, for the tests of the wheel: each wraps the real one."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from wheel_reading import entries_in

from delayd.errors import DiskError, DiskFullError
from delayd.wheel import Frame
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.disk import OpenFile, SystemDisk
from delayd.wheel.frame import BrokenFrameError, read_body, walk
from delayd.wheel.reader import corruption
from delayd.wheel.storage import Wheel


def make_older(directory: Path) -> None:
    """Of format 4, which knew neither totals nor counts; no hours may be in it."""
    path = directory / "format.json"
    partitions = json.loads(path.read_text())["partitions"]
    path.write_text(json.dumps({"format": 4, "partitions": partitions}))
    catalogue = Catalogue(str(directory / "catalogue"), create=False)
    for key in [b"t", *(key for key, _ in catalogue._db if key[:1] in b"cdf")]:
        catalogue._db.delete(key)
    catalogue.close()


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flip one bit of the byte at this place of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


class Scan:
    """Lines, as plyvel's iterator gives them: within a `with`, or without."""

    def __init__(self, lines: list[Any]) -> None:
        self._lines = iter(lines)

    def __iter__(self) -> Iterator[Any]:
        return self._lines

    __enter__ = __iter__

    def __exit__(self, *_: object) -> None:
        pass


class ObservedDatabase:
    """LevelDB as the catalogue opened it; its scans lose their last `lost` lines."""

    def __init__(self, database: Any, lost: int = 0) -> None:
        self._database = database
        self._lost = lost
        self.batches: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def iterator(self, **options: Any) -> Scan:
        found = list(self._database.iterator(**options))
        return Scan(found[: len(found) - self._lost])

    def write_batch(self, **options: Any) -> Any:
        self.batches.append(options)
        return self._database.write_batch(**options)


DISK_CALLS = (
    *("make_folder", "list_folder", "remove_folder", "open", "close", "append", "pread"),
    *("fdatasync", "sync_folder", "syncfs", "truncate", "rename", "unlink", "punch"),
)


class CountingDisk(SystemDisk):
    """Tells `before` the name and path of every call, before it happens."""

    def __init__(self, before: Callable[[str, str], None]) -> None:
        super().__init__()
        self._before = before

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in DISK_CALLS:
            return found

        def told(place: str | OpenFile, *arguments: Any, **options: Any) -> Any:
            call = "create" if options.get("create") else name
            self._before(call, place.path if isinstance(place, OpenFile) else place)
            return found(place, *arguments, **options)

        return told


class FailingDisk(CountingDisk):
    """Refuses the calls named in `failing`, with that error number."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.calls: list[str] = []
        super().__init__(self._judge)

    def _judge(self, call: str, path: str) -> None:
        self.calls.append(call)
        if call in self.failing:
            number = self.failing[call]
            kind = DiskFullError if number == NO_SPACE else DiskError
            raise kind(f"{call} {path}: {os.strerror(number)}") from OSError(number, call)


class FullOnceDisk(CountingDisk):
    """Full for one call: for the `n`-th of a kind from when `fails_at` was set. Half of what should
    be appended is on the disk then."""

    def __init__(self) -> None:
        self.fails_at: tuple[str, int] | None = None
        super().__init__(lambda call, path: None)

    def make_folder(self, path: str) -> bool:
        self._meet("make_folder", path)
        return super().make_folder(path)

    def open(self, path: str, *, create: bool) -> OpenFile:
        if create:
            self._meet("create", path)
        return super().open(path, create=create)

    def append(self, file: OpenFile, data: bytes | bytearray) -> None:
        try:
            self._meet("append", file.path)
        except DiskFullError:
            super().append(file, data[: len(data) // 2])
            raise
        super().append(file, data)

    def _meet(self, call: str, path: str) -> None:
        if self.fails_at is None or self.fails_at[0] != call:
            return
        left = self.fails_at[1]
        self.fails_at = (call, left - 1) if left else None
        if not left:
            raise DiskFullError(f"{call} {path}: no room")


class FullDisk(SystemDisk):
    """The real disk on a device that is always full: appends go to /dev/full."""

    def append(self, file: OpenFile, data: bytes | bytearray) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            super().append(OpenFile(file.path, full), data)
        finally:
            os.close(full)


class PowerlessDisk(CountingDisk):
    """Forgets, at `lose_power`, whatever was not synced: bytes, names, and removals of names."""

    def __init__(self, graveyard: Path) -> None:
        super().__init__(lambda call, path: None)
        self._graveyard = graveyard
        self._synced_bytes: dict[str, int] = {}
        self._new_files: set[str] = set()
        self._new_folders: set[str] = set()
        self._removed_files: dict[str, Path] = {}
        self._burials = 0

    def make_folder(self, path: str) -> bool:
        made = super().make_folder(path)
        if made:
            self._new_folders.add(path)
        return made

    def open(self, path: str, *, create: bool) -> OpenFile:
        file = super().open(path, create=create)
        if create:
            self._synced_bytes[path] = 0
            self._new_files.add(path)
            self._removed_files.pop(path, None)
        return file

    def fdatasync(self, file: OpenFile) -> None:
        super().fdatasync(file)
        self._synced_bytes[file.path] = os.fstat(file.descriptor).st_size

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self._new_files = {name for name in self._new_files if not _is_in(name, path)}
        self._new_folders = {name for name in self._new_folders if not _is_in(name, path)}
        for name in [name for name in self._removed_files if _is_in(name, path)]:
            del self._removed_files[name]

    def syncfs(self, folder: OpenFile) -> None:
        super().syncfs(folder)
        self._new_files.clear()
        self._new_folders.clear()
        self._removed_files.clear()
        for path in self._synced_bytes:
            self._synced_bytes[path] = Path(path).stat().st_size

    def truncate(self, path: str, length_bytes: int) -> None:
        super().truncate(path, length_bytes)
        self._synced_bytes[path] = min(self._synced_bytes[path], length_bytes)

    def unlink(self, path: str) -> None:
        if path in self._new_files:
            super().unlink(path)
            self._new_files.discard(path)
        else:
            self._burials += 1
            grave = self._graveyard / str(self._burials)
            Path(path).rename(grave)
            self._removed_files[path] = grave
        self._synced_bytes.pop(path, None)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._synced_bytes.pop(old, None)
        self._new_files.discard(old)

    def lose_power(self, random: Random) -> None:
        """What was not synced is kept, cut, zeroed or lost, as `random` says."""
        for path, synced in self._synced_bytes.items():
            size = Path(path).stat().st_size
            if path in self._new_files and random.random() < 0.5:
                Path(path).unlink()
                continue
            kept = random.randint(synced, size)
            zeroed = random.randint(synced, kept)
            with Path(path).open("r+b") as file:
                file.truncate(kept)
                file.seek(zeroed)
                file.write(bytes(kept - zeroed))
        resurrected = []
        for path, grave in self._removed_files.items():
            if random.random() < 0.5 and not Path(path).exists():
                Path(path).parent.mkdir(exist_ok=True)
                grave.rename(path)
                resurrected.append(path)
        for folder in self._new_folders:
            if random.random() < 0.5:
                shutil.rmtree(folder, ignore_errors=True)
        # What is still there after a loss of power is on the disk, and stays through the next.
        survivors = [path for path in (*self._synced_bytes, *resurrected) if Path(path).exists()]
        self._synced_bytes = {path: Path(path).stat().st_size for path in survivors}
        self._new_files.clear()
        self._new_folders.clear()
        self._removed_files.clear()


def _is_in(path: str, folder: str) -> bool:
    return path.rpartition("/")[0] == folder


NO_SPACE = errno.ENOSPC
IO_ERROR = errno.EIO


def remaining_files(directory: Path) -> set[str]:
    """The slot files that are there, as HOUR/SLOT.GENERATION."""
    slots = directory / "slots"
    return {str(path.relative_to(slots)) for path in slots.rglob("*") if path.is_file()}


def hour_frames(wheel: Wheel, number: int) -> list[Frame]:
    """What is in the file of an hour and not in slots. Raises CorruptionError."""
    hour = wheel._hours.files[number]
    data = wheel._reader.bytes_at(hour, hour.start, hour.end)
    try:
        return [
            Frame(due_ms, partition, offset, lane, kind, append_ms, read_body(data[body:end]))
            for due_ms, partition, offset, lane, kind, append_ms, body, end, _ in walk(data, 0)
        ]
    except BrokenFrameError as error:
        raise corruption(hour, error, 1) from error


def contents(wheel: Any) -> dict[str, Any]:
    """All that a wheel holds, in a form that can be compared."""
    slots = {}
    for slot in wheel.slots():
        entries = entries_in(wheel, slot)
        slots[slot] = (wheel.info(slot), wheel.read(entries))
    hours = {}
    for number in wheel.hours():
        hour = wheel._hours.files[number]
        hours[number] = (hour.line(), wheel._reader.bytes_at(hour, hour.start, hour.end))
    replies = wheel.pending_replies([0] * 2)
    return {
        "slots": slots,
        "hours": hours,
        "replies": wheel.read(replies),
        "progress": wheel.progress,
    }
