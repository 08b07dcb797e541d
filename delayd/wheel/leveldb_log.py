"""LevelDB's logs (its write-ahead log and its manifest) as bytes: where their records end.

    log      := block*                      of BLOCK_BYTES, the last one shorter
    block    := record* trailer             trailer: fewer than 7 bytes
    record   := crc:u32 length:u16 type:u8 data     little-endian; crc: masked, of type and data

LevelDB takes a last record that is longer than the file for a write that a crash cut short, and
drops it silently. That is wrong if the length itself is damaged: a whole checkpoint, or the name of
a table with thousands of lines, is lost. LevelDB refuses to open a log with any other damage, so
this module looks at the last record only.

Source: LevelDB's doc/log_format.md.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO, NamedTuple

from crc32c import crc32c

from delayd.errors import DiskError
from delayd.wheel.layout import is_leveldb_log

BLOCK_BYTES = 32 * 1024

_HEADER = Struct("<IHB")
_MASK_DELTA = 0xA282EAD8


class TornEnd(NamedTuple):
    """Bytes at the end of a log that are no record."""

    first_byte: int
    end_byte: int
    is_damaged: bool
    """True: a whole record with a wrong length. False: a record that was being written."""


def torn_logs(folder: str) -> Iterator[tuple[str, TornEnd]]:
    """Return the logs that do not end with a record, by name, each with the bytes that follow.

    Raises DiskError. A folder that does not exist has no logs.
    """
    path = Path(folder)
    for file in sorted(path.iterdir()) if path.is_dir() else ():
        if not is_leveldb_log(file.name):
            continue
        try:
            with file.open("rb") as log:
                end = torn_end(log)
        except OSError as error:
            raise DiskError(
                f"cannot read {file}: {error.strerror}",
                remedy="look at the volume of the data directory and the kernel log",
            ) from error
        if end is not None:
            yield file.name, end


def torn_end(log: BinaryIO) -> TornEnd | None:
    """Return the bytes that follow the last record of a log; None if there are none."""
    start = 0
    block = log.read(BLOCK_BYTES)
    while True:
        after = log.read(BLOCK_BYTES)
        at = _end_of_records(block)
        if not after:
            rest = block[at:]
            if not rest.strip(b"\0"):
                return None
            return TornEnd(start + at, start + len(block), _is_whole_record(rest))
        start += len(block)
        block = after


def _end_of_records(block: bytes) -> int:
    at = 0
    while at + _HEADER.size <= len(block):
        _, length, kind = _HEADER.unpack_from(block, at)
        after = at + _HEADER.size + length
        if after > len(block) or (kind == 0 and length == 0):
            break
        at = after
    return at


def _is_whole_record(data: bytes) -> bool:
    """Return whether a record begins here, with any length."""
    if len(data) < _HEADER.size:
        return False
    wanted, _, kind = _HEADER.unpack_from(data)
    crc = crc32c(bytes([kind]))
    if _masked(crc) == wanted:
        return True
    for place in range(_HEADER.size, len(data)):
        crc = crc32c(data[place : place + 1], crc)
        if _masked(crc) == wanted:
            return True
    return False


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
