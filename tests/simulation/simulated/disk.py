"""A machine's disk: real files, which forget at a loss of power what was not synced.

Not here: LevelDB, which writes by itself; what it was told to sync survives.
"""

import errno
import os
from pathlib import Path
from random import Random

from delayd.errors import DiskError
from delayd.wheel.disk import OpenFile, SystemDisk
from simulated.weather import Weather, Wire

SYNC_WEIGHT = 8
"""Deaths there leave most behind: bytes that no checkpoint knows."""


class Platter:
    """What outlives a process: which bytes and names are durable, and what is broken."""

    def __init__(self) -> None:
        self.synced_bytes: dict[str, int] = {}
        self.new_files: set[str] = set()
        """Files whose name is not durable yet."""
        self.is_full = False
        self.syncs_to_fail = 0

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
        """Was this process ever told that a write or a sync failed?"""
        self._platter = platter
        self._wire = wire
        self._weather = weather

    def open(self, path: str, *, create: bool) -> OpenFile:
        """See the port."""
        file = super().open(path, create=create)
        if create:
            self._platter.synced_bytes[path] = 0
            self._platter.new_files.add(path)
        return file

    def append(self, file: OpenFile, data: bytes | bytearray) -> None:
        """See the port."""
        if self._platter.is_full:
            super().append(file, data[: len(data) // 2])
            raise self._failed("append to", file.path, errno.ENOSPC)
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

    def free_bytes(self, path: str) -> int:
        """Return the same on every machine that runs the simulation."""
        return 0 if self._platter.is_full else 10**12

    def _sync(self, path: str) -> None:
        self._wire.travel("before sync", weight=SYNC_WEIGHT)
        if self._platter.syncs_to_fail > 0:
            self._platter.syncs_to_fail -= 1
            raise self._failed("sync", path, errno.EIO)
        self._wire.travel("after sync", weight=SYNC_WEIGHT)

    def _failed(self, what: str, path: str, number: int) -> DiskError:
        self.has_failed = True
        self._weather.note(f"{self._wire.process.name} cannot {what} a file: {number}")
        return DiskError(f"cannot {what} {path}: {os.strerror(number)}")
