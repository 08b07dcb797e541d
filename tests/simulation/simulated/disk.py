"""A machine's disk: real files, which forget at a loss of power what was not synced.

Not here: LevelDB, which writes by itself; what it was told to sync survives.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from delayd.errors import DiskError, DiskFullError
from delayd.wheel.disk import OpenFile, SystemDisk
from simulated.weather import Weather, Wire

FREE_BYTES = 10**12
"""Of a disk that has room enough."""
SYNC_WEIGHT = 8
"""Deaths there leave most behind: bytes that no checkpoint knows."""


class Platter:
    """What outlives a process: which bytes and names are durable, and what is broken."""

    def __init__(self) -> None:
        self.synced_bytes: dict[str, int] = {}
        self.new_files: set[str] = set()
        """Files whose name is not durable yet."""
        self.free_bytes = FREE_BYTES
        """What the volume tells to be free, whatever is written. At 0 nothing can be written."""
        self.opens_without_room = True
        """Can LevelDB be opened though nothing can be written? A real one cannot; what is free
        changes here more often than a node that has ended is started again."""
        self.reserved_bytes: dict[str, int] = {}
        """By path: files that hold room. It is free once they are removed."""
        self.syncs_to_fail = 0
        self.judge: Callable[[bytes], None] = lambda data: None
        """Gets what is written to files of frames."""

    def lose_power(self, chance: Random) -> int:
        """Cut, zero or lose what was not synced. Return how many files that changed."""
        changed = 0
        for path, synced in sorted(self.synced_bytes.items()):
            if not Path(path).exists():
                continue
            size = Path(path).stat().st_size
            if path in self.new_files and chance.random() < 0.5:
                Path(path).unlink()
                changed += 1
                continue
            kept = chance.randint(synced, size)
            zeroed = chance.randint(synced, kept)
            if zeroed < size:
                with Path(path).open("r+b") as file:
                    file.truncate(kept)
                    file.seek(zeroed)
                    file.write(bytes(kept - zeroed))
                changed += 1
        self.synced_bytes = {
            path: Path(path).stat().st_size for path in self.synced_bytes if Path(path).exists()
        }
        self.new_files.clear()
        return changed


class SimulatedDisk(SystemDisk):
    """One process's door to a platter. Syncs take time; a process may die before and after."""

    def __init__(self, platter: Platter, wire: Wire, weather: Weather) -> None:
        super().__init__()
        self.has_failed = False
        """Was this process ever told that a sync failed?"""
        self._platter = platter
        self._wire = wire
        self._weather = weather

    def open(self, path: str, *, create: bool) -> OpenFile:
        """See the port."""
        if create and not self._platter.free_bytes:
            raise self._refused("create", path)
        file = super().open(path, create=create)
        if create:
            self._platter.synced_bytes[path] = 0
            self._platter.new_files.add(path)
        return file

    def append(self, file: OpenFile, data: bytes | bytearray) -> None:
        """See the port."""
        self._platter.judge(bytes(data))
        if not self._platter.free_bytes:
            super().append(file, data[: len(data) // 2])
            raise self._refused("append to", file.path)
        super().append(file, data)

    def fdatasync(self, file: OpenFile) -> None:
        """See the port. What is appended meanwhile need not be durable."""
        size = os.fstat(file.descriptor).st_size
        self._sync(file.path)
        self._platter.synced_bytes[file.path] = size

    def sync_folder(self, path: str) -> None:
        """See the port."""
        names = {name for name in self._platter.new_files if name.rpartition("/")[0] == path}
        self._sync(path)
        self._platter.new_files -= names

    def syncfs(self, folder: OpenFile) -> None:
        """See the port."""
        sizes = {
            path: Path(path).stat().st_size
            for path in self._platter.synced_bytes
            if Path(path).exists()
        }
        names = set(self._platter.new_files)
        self._sync(folder.path)
        self._platter.synced_bytes |= sizes
        self._platter.new_files -= names

    def truncate(self, path: str, length_bytes: int) -> None:
        """See the port."""
        super().truncate(path, length_bytes)
        synced = self._platter.synced_bytes.get(path, length_bytes)
        self._platter.synced_bytes[path] = min(synced, length_bytes)

    def unlink(self, path: str) -> None:
        """See the port. What was removed stays away."""
        super().unlink(path)
        self._platter.synced_bytes.pop(path, None)
        self._platter.new_files.discard(path)
        self._platter.free_bytes += self._platter.reserved_bytes.pop(path, 0)

    def reserve(self, path: str, size_bytes: int) -> None:
        """See the port. It takes no room on the machine that runs the simulation."""
        self.close(self.open(path, create=True))
        self.truncate(path, size_bytes)
        self._platter.synced_bytes[path] = size_bytes
        self._platter.reserved_bytes[path] = size_bytes

    def write_of_leveldb(self, folder: Path) -> None:
        """Refuse what LevelDB writes when it is opened, where nothing can be written."""
        if not (self._platter.opens_without_room or self._platter.free_bytes):
            raise self._refused("open LevelDB in", str(folder))

    def free_bytes(self, path: str) -> int:
        """Return the same on every machine that runs the simulation."""
        return self._platter.free_bytes

    def _sync(self, path: str) -> None:
        self._wire.travel("before sync", weight=SYNC_WEIGHT)
        if self._platter.syncs_to_fail > 0:
            self._platter.syncs_to_fail -= 1
            raise self._failed("sync", path)
        self._wire.travel("after sync", weight=SYNC_WEIGHT)

    def _failed(self, what: str, path: str) -> DiskError:
        self.has_failed = True
        self._weather.note(f"{self._wire.process.name} cannot {what} a file")
        return DiskError(f"cannot {what} {path}: {os.strerror(errno.EIO)}")

    def _refused(self, what: str, path: str) -> DiskFullError:
        self._weather.note(f"{self._wire.process.name} has no room to {what} a file")
        return DiskFullError(f"cannot {what} {path}: {os.strerror(errno.ENOSPC)}")
