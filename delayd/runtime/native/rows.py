"""Reading records in C whose fate depends on what is known of their ids; see `native/rows.h`.

Not here: what becomes of them (`delayd.node.replica.row_ingest`).
"""

import ctypes
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from delayd.runtime.native import Call, Library
from delayd.runtime.native.packing import (
    ROOM_KEPT_BYTES,
    TOPIC_BYTES,
    TOPICS_MAX,
    DigestRules,
    Limits,
    address_of,
    some_of,
    topics_at,
)

ROWS_MAX: Final = 1_024
OTHER, PLAIN, KEYED, CANCEL = range(4)
"""Kinds of a row: `enum request_kind` of native/request.h."""

_ROW = Struct("<qqqIiiIIIIIIII4x16s")
"""`struct row` of native/rows.h."""

Row: TypeAlias = tuple[Any, ...]
"""offset, append_ms, due_ms, kind, partition, epoch, lane, topic, where the record begins, where
its id does, its length, where the frame begins, its length, its CRC, digest. Places count from the
first record's, and that of the frame from the first frame's."""
APPEND = 1
KIND, PARTITION, EPOCH = 3, 4, 5
TOPIC, RECORD, ID, ID_BYTES, FRAME, FRAME_BYTES, CRC, DIGEST = range(7, 15)
"""Positions in a row, of what is looked at alone."""


class _Rules(ctypes.Structure):
    """`struct row_rules`."""

    _fields_ = (
        ("limits", Limits),
        ("lanes", ctypes.c_uint32),
        ("digest", DigestRules),
    )


class _Room(ctypes.Structure):
    """`struct row_room`."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("topics", ctypes.c_void_p),
        ("frames", ctypes.c_void_p),
        ("frames_max", ctypes.c_uint64),
    )


class _Result(ctypes.Structure):
    """`struct rows_result`."""

    _fields_ = (
        ("rows", ctypes.c_uint32),
        ("topics", ctypes.c_uint32),
        ("bytes", ctypes.c_uint64),
    )


class Rows(NamedTuple):
    """What the library made of records. Nothing of it is valid when it reads the next ones, nor
    when the records are gone."""

    rows: Sequence[Row]
    topics: Sequence[str]
    frames: bytearray
    data: bytearray
    """The records."""
    begin: int
    """Where the first of them begins."""
    end: int
    """Where the last one ends."""


class RowReader:
    """Reads rows, and keeps the room for them. Used by one thread."""

    def __init__(
        self, library: Library, limits: Limits, *, lanes: int, digest: DigestRules
    ) -> None:
        """`limits` of the cluster; `digest`: how requests are told apart."""
        structures = map(ctypes.POINTER, (_Rules, _Room, _Result))
        wanted = (ctypes.c_void_p, ctypes.c_size_t, *structures)
        self._read = Call(library, "delayd_rows", ctypes.c_int, wanted)
        self._kept = limits, digest
        """Of which the library keeps addresses."""
        self._rules = _Rules(limits, lanes, digest)
        self._rows = bytearray(ROWS_MAX * _ROW.size)
        self._topics = bytearray(TOPICS_MAX * TOPIC_BYTES)
        self._frames = bytearray()
        self._room = _Room(address_of(self._rows), address_of(self._topics))

    def read(self, data: bytearray, begin: int, end: int) -> Rows:
        """Read the first of the records of `data[begin:end]`, one at least. ValueError if these
        are no records."""
        assert begin < end, "there is no record"
        if 2 * (end - begin) > len(self._frames):
            self._frames = bytearray(2 * (end - begin))
            self._room.frames = address_of(self._frames)
            self._room.frames_max = len(self._frames)
        result, first = _Result(), ctypes.c_char.from_buffer(data, begin)
        read = self._read.over(end - begin)
        is_done = read(ctypes.addressof(first), end - begin, self._rules, self._room, result)
        if not is_done:
            raise ValueError("these bytes are no flat records")
        found = Rows(
            list(some_of(_ROW, self._rows, result.rows)),
            topics_at(self._topics, result.topics, data, begin),
            self._frames,
            data,
            begin,
            begin + result.bytes,
        )
        if len(self._frames) > ROOM_KEPT_BYTES:
            self._frames = bytearray()
        return found
