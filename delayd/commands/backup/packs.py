"""Packs: the objects of a backup, each some megabytes of what was copied.

    pack    := MAGIC header_bytes:u32 header blob*
    header  := JSON: a list of what the blobs are, in their order; u32 is little-endian
    blob    := bytes of a slot or hour file, whole frames of it     {"file", "first", ...}
             | lines of the catalogue, as snapshots carry them      {"lines"}

A pack's name is the hash of all of its bytes, so it never changes, and damage shows. Packs describe
themselves: what a killed run has left serves the next one.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple

from delayd.commands.backup.stores import Store
from delayd.errors import BackupError
from delayd.wheel.frame import crc_of

MAGIC: Final = b"delayd1\n"
PACK_BYTES: Final = 32 * 1024 * 1024
"""A pack is written when it holds so much: what a run that is killed loses at most, and what it
keeps in memory."""
FOLDER: Final = "packs"
_LENGTH: Final = Struct("<I")
_BEGIN_BYTES: Final = len(MAGIC) + _LENGTH.size


class DamagedPackError(BackupError):
    """A pack does not hold what it should."""

    def __init__(self, pack: str, why: str) -> None:
        super().__init__(
            f"{FOLDER}/{pack} is damaged: it {why}",
            remedy="`delayd backup --verify` names all damage and the backups that it touches; "
            "remove damaged packs, and the next backup copies what they held again",
        )
        self.pack = pack


def sum_of(data: bytes) -> str:
    """Return the hash by which bytes are named."""
    return blake2b(data, digest_size=16).hexdigest()


class Kind(NamedTuple):
    """What a blob is."""

    file: str
    """Path of the file in the data directory; empty for lines."""
    first: int = 0
    """Its first byte in the file."""
    frames: int = 0
    """Frames in it."""
    digest: int = 0
    """Sum of their CRCs, as a line of the catalogue counts it, but not modulo anything."""
    lines: str = ""
    """The hash of lines."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Where one blob is."""

    kind: Kind
    pack: str
    """Name of the pack, `SUM.pack`."""
    at: int
    """Its first byte in the pack."""
    size: int
    crc: int
    """CRC32C of its bytes."""

    @property
    def end(self) -> int:
        """The byte of the file behind it."""
        return self.kind.first + self.size


class PackWriter:
    """Writes packs. A blob has its place once its pack is written: until then it is a number."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[int, Kind, bytes]] = []
        self._waiting_bytes = 0
        self._count = 0
        self.blobs: dict[int, Blob] = {}
        """Those that are written, by number."""
        self.written_bytes = 0
        self.packs = 0

    def add(self, kind: Kind, data: bytes) -> int:
        """Take a blob; return its number. Raises what `write` of a store raises."""
        number = self._count
        self._count += 1
        self._waiting.append((number, kind, data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= PACK_BYTES:
            self.flush()
        return number

    def flush(self) -> None:
        """Write what waits, if anything does. Raises likewise."""
        if not self._waiting:
            return
        described = [
            {**_said(kind), "size": len(data), "crc": crc_of([data])}
            for _, kind, data in self._waiting
        ]
        header = json.dumps(described, separators=(",", ":")).encode()
        begin = MAGIC + _LENGTH.pack(len(header)) + header
        pack = b"".join((begin, *(data for _, _, data in self._waiting)))
        name = f"{sum_of(pack)}.pack"
        self._store.write(f"{FOLDER}/{name}", pack)
        numbers = [number for number, _, _ in self._waiting]
        placed = _blobs(name, len(begin), described)
        self.blobs.update(zip(numbers, placed, strict=True))
        self.written_bytes += len(pack)
        self.packs += 1
        self._waiting, self._waiting_bytes = [], 0


def blobs_in(store: Store, name: str) -> list[Blob]:
    """Return what a pack says that it holds; its blobs are not read. Raises BackupError."""
    begin = store.read(f"{FOLDER}/{name}", 0, _BEGIN_BYTES)
    if len(begin) < _BEGIN_BYTES or not begin.startswith(MAGIC):
        raise DamagedPackError(name, "does not begin as a pack does")
    end = _BEGIN_BYTES + _LENGTH.unpack_from(begin, len(MAGIC))[0]
    try:
        described = json.loads(store.read(f"{FOLDER}/{name}", _BEGIN_BYTES, end))
        return list(_blobs(name, end, described))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedPackError(name, "has no legible header") from error


def read_pack(store: Store, name: str) -> bytes:
    """Return a whole pack, verified by its name. Raises BackupError."""
    pack = store.read(f"{FOLDER}/{name}")
    if f"{sum_of(pack)}.pack" != name:
        raise DamagedPackError(name, "does not hold what its name says")
    return pack


def read_blob(store: Store, blob: Blob) -> bytes:
    """Return one blob, verified by its CRC. Raises BackupError."""
    data = store.read(f"{FOLDER}/{blob.pack}", blob.at, blob.at + blob.size)
    if len(data) != blob.size or crc_of([data]) != blob.crc:
        raise DamagedPackError(blob.pack, f"differs from its checksum at byte {blob.at}")
    return data


def _said(kind: Kind) -> dict[str, Any]:
    if kind.lines:
        return {"lines": kind.lines}
    return {"file": kind.file, "first": kind.first, "frames": kind.frames, "digest": kind.digest}


def _blobs(pack: str, begin: int, described: Sequence[dict[str, Any]]) -> Iterable[Blob]:
    at = begin
    for said in described:
        kind = Kind(
            str(said.get("file", "")),
            int(said.get("first", 0)),
            int(said.get("frames", 0)),
            int(said.get("digest", 0)),
            str(said.get("lines", "")),
        )
        yield Blob(kind, pack, at, int(said["size"]), int(said["crc"]))
        at += int(said["size"])
