"""A backup as a source of copies: what a draft (`delayd.wheel.draft`) gets from another node, it
gets from here.

Whole packs are read, verified by their names, and kept for a while: a file has its bytes in some of
them, and its neighbours have theirs in the same ones.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from delayd.commands.backup.manifest import Manifest
from delayd.commands.backup.packs import Blob, read_pack
from delayd.commands.backup.stores import Store
from delayd.errors import BackupError
from delayd.wheel.snapshot import Line, unpacked

CACHE_BYTES: Final = 256 * 1024 * 1024


class BackupSource:
    """One backup. Raises BackupError, which names what is damaged or missing."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self._lines = manifest.lines
        self._keys = [bytes.fromhex(each.first_key) for each in manifest.lines]
        self._blobs: list[Blob] = []
        self._firsts: list[int] = []
        """By blob of the files: its first byte in the stream."""
        self.catalogue_bytes = manifest.catalogue_bytes
        self.bytes = 0
        for file in manifest.files:
            for blob in file.blobs:
                self._blobs.append(blob)
                self._firsts.append(self.bytes)
                self.bytes += blob.size
        self._packs: OrderedDict[str, bytes] = OrderedDict()

    def lines_after(self, key: bytes) -> Sequence[Line]:
        """Return some lines of the catalogue."""
        number = max(0, bisect_right(self._keys, key) - 1)
        for each in self._lines[number:]:
            lines = [line for line in unpacked(self._data(each.blob)) if line[0] > key]
            if lines:
                return lines
        raise BackupError(
            "the backup has no further lines of the catalogue", remedy="restore another backup"
        )

    def bytes_at(self, position: int) -> bytes:
        """Return some bytes of the stream of files."""
        number = bisect_right(self._firsts, position) - 1
        blob = self._blobs[number] if number >= 0 else None
        if blob is None or position >= self._firsts[number] + blob.size:
            raise BackupError(
                f"the backup has no byte {position} of the files", remedy="restore another backup"
            )
        return self._data(blob)[position - self._firsts[number] :]

    def _data(self, blob: Blob) -> bytes:
        pack = self._packs.pop(blob.pack, None)
        if pack is None:
            pack = read_pack(self._store, blob.pack)
        self._packs[blob.pack] = pack
        while len(self._packs) > 1 and sum(map(len, self._packs.values())) > CACHE_BYTES:
            self._packs.popitem(last=False)
        return pack[blob.at : blob.at + blob.size]
