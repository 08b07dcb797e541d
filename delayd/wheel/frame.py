"""Frames: the bytes of one record in a slot's file.

    file    := frame*                      nothing before, between or after
    frame   := length crc version kind flags lane partition offset append_ms due_ms body

    length     u32   bytes of the whole frame, these four included
    crc        u32   CRC32C of everything after this field
    version    u8    FRAME_VERSION
    kind       u8    FrameKind
    flags      u16   reserved, zero; a reader refuses a bit that it does not know
    lane       u16
    partition  u16   buffer partition
    offset     u64   buffer offset
    append_ms  u64   append time of the buffer record, Unix ms
    due_ms     u64   due time of the rank, Unix ms; for a pending reply its append time
    body       msgpack array, to the end of the frame; arrays come back as tuples

All integers are little-endian. This file knows bytes, not files, slots or catalogues.

Invariant: an encoded frame is read back as it was, and every flipped bit is found: in `length` by
the chain of frames and by the CRC at its end, in `crc` by itself, in all other bytes by `crc`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple, final

import msgpack
from crc32c import crc32c

from delayd.wheel import Frame, FrameKind
from replication.rank import Rank

FRAME_VERSION = 1
FRAME_BYTES_MAX = 256 * 1024 * 1024
"""Far above any Kafka record; a length beyond it is damage, not a frame."""

PREFIX = Struct("<II")
"""length, crc"""
HEADER = Struct("<IIBBHHHQQQ")
"""All before the body, for reading."""
HEADER_BYTES = HEADER.size
PARTITIONS_MAX = 1 << 16

_pack_body: Callable[[tuple[Any, ...]], bytes] = msgpack.Packer(use_bin_type=True).pack
unpack_body = msgpack.unpackb
_pack_prefix = PREFIX.pack
_pack_fields = Struct("<IHHQQQ").pack
"""From the form (see `read_forms`) up to the body."""
_read_header = HEADER.unpack_from
_FOUND_BY = Struct("<IHHQ")
read_forms = Struct("<IIIHHQQQ").unpack_from
"""A header with version, kind and flags as one number, the *form*: less to compare per frame."""
_new_tuple = tuple.__new__
_PREFIX_BYTES = PREFIX.size
_KINDS = frozenset(int(kind) for kind in FrameKind)
FORM_OF: Final = {int(kind): FRAME_VERSION | int(kind) << 8 for kind in FrameKind}
FORMS: Final = {form: kind for kind, form in FORM_OF.items()}
MESSAGE_FORM: Final = FORM_OF[FrameKind.MESSAGE]
_KIND_BYTES = b"".join(re.escape(bytes([kind])) for kind in sorted(_KINDS))
_FORM_AHEAD = re.compile(rb"(?=%b[%b]\x00\x00)" % (re.escape(bytes([FRAME_VERSION])), _KIND_BYTES))
"""version, kind and flags of a frame that this version writes; found wherever they overlap, too"""


class BrokenFrameError(Exception):
    """Bytes that are no frame, at `position` of the file; the wheel adds the slot."""

    def __init__(self, position: int, length: int, why: str, passed: int = 0) -> None:
        super().__init__(why)
        self.position = position
        self.length = length
        self.why = why
        self.passed = passed
        """How many whole frames were found before it."""


def encode(frame: Frame) -> tuple[bytes, int]:
    """Return the frame's bytes and their CRC. A value that does not fit its field is a bug of the
    caller."""
    due_ms, partition, offset, lane, kind, append_ms, body = frame
    return encode_fields(FORM_OF[kind], lane, partition, offset, append_ms, due_ms, body)


@final
class PackedFrame(NamedTuple):
    """A frame with its encoded bytes, and the fields by which the wheel files it. The fields before
    `data` are in it, too: see `Frame`."""

    due_ms: int
    partition: int
    offset: int
    lane: int
    kind: int
    append_ms: int
    topic: str
    """The target under which it is counted; meaningless for a pending reply."""
    data: bytes
    """The whole frame."""
    crc: int


def packed(frame: Frame) -> PackedFrame:
    """Return a frame with its encoded bytes."""
    return _new_tuple(PackedFrame, (*frame[:6], topic_of(frame.body), *encode(frame)))


def topic_of(body: tuple[Any, ...]) -> str:
    """Return the target of a message, the first field of its body; empty if that is no text."""
    topic = body[0] if body else ""
    return topic if type(topic) is str else ""


def encode_fields(
    form: int,
    lane: int,
    partition: int,
    offset: int,
    append_ms: int,
    due_ms: int,
    body: tuple[Any, ...],
) -> tuple[bytes, int]:
    """Return the bytes and CRC of the frame with these fields, in the order in which they lie in
    it. The fast path of ingest calls this, and needs no Frame for it."""
    rest = _pack_fields(form, lane, partition, offset, append_ms, due_ms) + _pack_body(body)
    crc: int = crc32c(rest)
    return _pack_prefix(len(rest) + _PREFIX_BYTES, crc) + rest, crc


def walk(
    data: bytes, position: int
) -> Iterator[tuple[int, int, int, int, int, int, int, int, int]]:
    """Yield the whole frames of `data`, as `scan` does, for readers of bodies: (due_ms, partition,
    offset, lane, kind, append_ms, begin and end of the body in `data`, crc). Every CRC is
    verified."""
    view = memoryview(data)
    end = len(data)
    at = 0
    while at + HEADER_BYTES <= end:
        length, crc, version, kind, flags, lane, partition, offset, append_ms, due_ms = (
            _read_header(data, at)
        )
        if not HEADER_BYTES < length <= FRAME_BYTES_MAX:
            raise BrokenFrameError(position + at, HEADER_BYTES, f"says it is {length} bytes long")
        after = at + length
        if after > end:
            return
        if crc32c(view[at + 8 : after]) != crc:
            raise BrokenFrameError(position + at, length, "has a wrong CRC")
        if version != FRAME_VERSION or flags != 0 or kind not in _KINDS:
            form = version | kind << 8 | flags << 16
            raise BrokenFrameError(position + at, length, unknown_form(form, offset))
        yield due_ms, partition, offset, lane, kind, append_ms, at + HEADER_BYTES, after, crc
        at = after


def crc_of(pieces: Iterable[bytes]) -> int:
    """Return the CRC32C of these pieces, one after the other."""
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    return crc


class Header(NamedTuple):
    """The fields of a header that is not verified."""

    at: int
    """Where in the data it begins."""
    length: int
    crc: int
    partition: int
    due_ms: int


def header_at(data: bytes, at: int) -> Header:
    """Return the header at `data[at:]`, which must have HEADER_BYTES; verify nothing."""
    length, crc, _, _, _, _, partition, _, _, due_ms = _read_header(data, at)
    return Header(at, length, crc, partition, due_ms)


def header_of(lane: int, rank: Rank) -> bytes:
    """Return what the header of a message has from its form to its offset: the bytes at which a
    frame is looked for whose place is not known."""
    return _FOUND_BY.pack(MESSAGE_FORM, lane, rank.partition, rank.offset)


def possible_headers(data: bytes) -> Iterator[Header]:
    """Yield every header in `data` at which a frame of this version might begin, to find the next
    frame after damage. Only the form and the bounds of the length are verified."""
    form_at = PREFIX.size
    for found in _FORM_AHEAD.finditer(data, form_at):
        at = found.start() - form_at
        if at + HEADER_BYTES > len(data):
            return
        header = header_at(data, at)
        if HEADER_BYTES < header.length <= FRAME_BYTES_MAX:
            yield header


def read_body(data: bytes) -> tuple[Any, ...]:
    """Decode a body."""
    body: tuple[Any, ...] = unpack_body(data, use_list=False, strict_map_key=False)
    return body


def unknown_form(form: int, offset: int) -> str:
    """Return the description of a frame with this form, or with an impossible offset."""
    version, kind, flags = form & 0xFF, form >> 8 & 0xFF, form >> 16
    return f"is of an unknown form (version {version}, kind {kind}, flags {flags}, offset {offset})"
