"""The data of a batch, expanded as far as a limit and no further.

kafka-python's own expansion has no limit: a batch of 0.6 MB takes 1.2 GB.

Invariant: what is allocated is bounded by the limit, whatever the data says of its own size.
"""

import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final

import lz4.frame
import snappy
import zstandard

from delayd.bus.unreadable import DAMAGED, TOO_LARGE, UNKNOWN_CODEC, UnreadableError

_GZIP_WINDOW: Final = 31
_ZSTD_WINDOW_MAX: Final = 1 << 31
"""Any: the library allocates no more than it fills."""
_PIECE_BYTES: Final = 1024 * 1024
"""The libraries allocate as much as they are asked for."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES: Final = 16
_LENGTH_BYTES: Final = 4
_VARINT_BYTES_MAX: Final = 5

NAMES: Final[Mapping[int, str]] = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
"""Codecs by their number in a batch."""


def expanded(codec: int, data: bytes, bytes_max: int) -> bytes:
    """Return the data of a batch as its producer laid it out.

    Raises UnreadableError if it is larger than `bytes_max`, damaged, or of an unknown codec.
    """
    if bytes_max < 0:
        raise UnreadableError(TOO_LARGE)
    if codec not in NAMES:
        raise UnreadableError(UNKNOWN_CODEC)
    try:
        return _EXPANDERS[codec](data, bytes_max)
    except (MemoryError, UnreadableError):
        raise
    except Exception as error:  # each codec has exceptions of its own
        raise UnreadableError(DAMAGED) from error


class _Pieces:
    """What was expanded so far."""

    def __init__(self, bytes_max: int) -> None:
        self._pieces: list[bytes] = []
        self._left = bytes_max

    def add(self, piece: bytes) -> bool:
        """Keep a piece, False if it is empty; raise UnreadableError beyond the limit."""
        self._left -= len(piece)
        if self._left < 0:
            raise UnreadableError(TOO_LARGE)
        self._pieces.append(piece)
        return bool(piece)

    def joined(self) -> bytes:
        """Return all of it."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


def _plain(data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise UnreadableError(TOO_LARGE)
    return data


def _gzip(data: bytes, bytes_max: int) -> bytes:
    found = _Pieces(bytes_max)
    while data:
        member = zlib.decompressobj(_GZIP_WINDOW)
        found.add(member.decompress(data, _PIECE_BYTES))
        while not member.eof:
            if not found.add(member.decompress(member.unconsumed_tail, _PIECE_BYTES)):
                raise UnreadableError(DAMAGED)
        data = member.unused_data
    return found.joined()


def _lz4(data: bytes, bytes_max: int) -> bytes:
    found = _Pieces(bytes_max)
    while data:
        frame: Any = lz4.frame.LZ4FrameDecompressor()
        found.add(frame.decompress(data, max_length=_PIECE_BYTES))
        while not frame.eof:
            if not found.add(frame.decompress(b"", max_length=_PIECE_BYTES)):
                raise UnreadableError(DAMAGED)
        data = frame.unused_data or b""
    return found.joined()


def _zstd(data: bytes, bytes_max: int) -> bytes:
    found = _Pieces(bytes_max)
    limited = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    with limited.stream_reader(BytesIO(data), read_across_frames=True) as reader:
        while found.add(reader.read(_PIECE_BYTES)):
            pass
    return found.joined()


def _snappy(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data, bytes_max)
    found = _Pieces(bytes_max)
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + _LENGTH_BYTES], "big", signed=True)
        at += _LENGTH_BYTES
        if not 0 < size <= len(data) - at:
            raise UnreadableError(DAMAGED)
        found.add(_snappy_block(data[at : at + size], bytes_max))
        at += size
    return found.joined()


def _snappy_block(block: bytes, bytes_max: int) -> bytes:
    """Expand a block, which begins with the size that it expands to."""
    size = shift = 0
    for byte in block[:_VARINT_BYTES_MAX]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > bytes_max:
        raise UnreadableError(TOO_LARGE)
    found: bytes = snappy.uncompress(block)
    return found


_EXPANDERS: Final[Mapping[int, Callable[[bytes, int], bytes]]] = {
    0: _plain,
    1: _gzip,
    2: _snappy,
    3: _lz4,
    4: _zstd,
}
