"""A file beside the wheel that only keeps room, for a volume that another program fills.

LevelDB writes when it is opened, so a node that is started on a full volume would end, again and
again, though what it has could be delivered. The room is given back when nearly nothing is free:
before the wheel is opened, and instead of going without a checkpoint. It is taken again once there
is plenty.

    free bytes, by `disk_free_min_bytes`
    2.5 and more   the file is made, or made again if it is too short: half of the limit
    below 1/8      the file is removed: half of the limit is free, so that the node is *short*, and
                   not *full* (docs/design/storage.md, "Short of room")

Not here: what a node does with little room (`delayd.node.replica.room`).
"""

from typing import Final

import structlog

from delayd.errors import DiskError
from delayd.wheel.disk import Disk

log = structlog.get_logger()

FILE: Final = "reserve"


class Reserve:
    """Used by one thread. A limit of 0 switches it off. Raises DiskError."""

    def __init__(self, disk: Disk, folder: str, limit_bytes: int) -> None:
        disk.make_folder(folder)
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{FILE}"
        self._limit_bytes = limit_bytes
        self._kept_bytes = next((i.bytes for i in disk.list_folder(folder) if i.name == FILE), None)
        """The size of the file; None if there is none. A crash may have left it short or empty."""
        self._is_possible = True

    def tend(self) -> None:
        """Give the room back, or take it, by what is free."""
        if not self.release_if_low():
            self._keep(self._disk.free_bytes(self._folder))

    def release_if_low(self) -> bool:
        """Give the room back if nearly nothing is free; return whether there was any to give."""
        free_bytes = self._disk.free_bytes(self._folder)
        if not self._kept_bytes or free_bytes >= self._limit_bytes // 8:
            return False
        self._remove()
        log.warning("disk_reserve_released", free_bytes=free_bytes)
        return True

    def _keep(self, free_bytes: int) -> None:
        """Take the room if there is plenty, and it is not taken yet."""
        size_bytes = self._limit_bytes // 2
        if not self._is_possible or size_bytes == 0 or (self._kept_bytes or 0) >= size_bytes:
            return
        if free_bytes < 5 * size_bytes:
            return
        try:
            if self._kept_bytes is not None:
                self._remove()
            self._disk.reserve(self._path, size_bytes)
        except DiskError as error:
            self._is_possible = False
            log.warning("disk_reserve_impossible", error=str(error))
            return
        self._kept_bytes = size_bytes

    def _remove(self) -> None:
        self._disk.unlink(self._path)
        self._kept_bytes = None
