"""Open slot files: bounded, least recently used closed first.

A file with unsynced bytes may be closed: the operating system keeps them, and the checkpoint opens
it again to sync it.
"""

from delayd.runtime.bounded_dict import BoundedDict
from delayd.wheel.disk import Disk, OpenFile

OPEN_FILES_MAX = 256
"""The default: a quarter of the usual limit of 1024 open files, since Kafka's sockets and LevelDB's
tables need some, too. One for each of 7,200 slots showed no clear gain."""


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
