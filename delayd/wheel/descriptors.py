"""Open slot files: bounded, least recently used closed first.

Closing a file with unsynced bytes is fine: they stay with the operating system, and the checkpoint
opens it again to sync it.
"""

from delayd.runtime.bounded_dict import BoundedDict
from delayd.wheel.disk import Disk, OpenFile

OPEN_FILES_MAX = 256
"""Unless the node says otherwise: a quarter of the usual limit of 1024 open files, since Kafka's
sockets and LevelDB's tables want theirs. One for each of 7,200 slots showed no clear gain."""


class Descriptors:
    """The descriptors of one wheel. Not thread safe."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._open: BoundedDict[str, OpenFile] = BoundedDict(
            limit, on_evict=lambda _, file: disk.close(file)
        )

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> OpenFile:
        """The open file at `path`, opened when it is not."""
        file = self._open.get(path)
        if file is not None:
            self._open.touch(path)
            return file
        file = self._open[path] = self._disk.open(path, create=create)
        return file

    def take(self, path: str) -> OpenFile:
        """The open file at `path`, which from now on is the caller's to use and to close."""
        file = self._open.pop(path, None)
        return self._disk.open(path, create=False) if file is None else file

    def give(self, file: OpenFile) -> None:
        """Take a file back that was taken; it is closed when there is no room or no need."""
        if file.path in self._open or len(self._open) >= self._open.limit:
            self._disk.close(file)
        else:
            self._open[file.path] = file

    def drop(self, path: str) -> None:
        """Close the file if it is open: it will be unlinked."""
        file = self._open.pop(path, None)
        if file is not None:
            self._disk.close(file)

    def close(self) -> None:
        """Close all; idempotent."""
        while self._open:
            _, file = self._open.popitem()
            self._disk.close(file)
