"""Unpacking frames of plain messages into the records that deliver them, in C; `native/unpack.h`
says what is plain, and what is a run.

Not here: which messages, and where the records go (`delayd.node.delivery.flat_step`).
"""

import ctypes
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from delayd.runtime.native import Call, Library

UNPACKED_MAX: Final = 1_024
TARGETS_MAX: Final = 64
FIELDS: Final = 7
"""Of an entry; see `struct entry` of native/gather.h."""
LENGTH_FIELD: Final = 6
ENTRY_BYTES: Final = 8 * FIELDS
RECORD_ROOM_BYTES: Final = 256
"""For each record, beside twice its frame: what holds more headers than that ends a run."""
RECORDS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one run: larger messages make shorter ones, and one that is larger is left to Python."""

_UNPACKED = Struct("<QIiQ")
"""`struct unpacked` of native/unpack.h."""
_TARGET = Struct("<IIIIq")
"""`struct target`."""


class _Room(ctypes.Structure):
    """`struct unpack_room`."""

    _fields_ = (
        ("unpacked", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("records", ctypes.c_void_p),
        ("records_max", ctypes.c_uint64),
    )


class _Result(ctypes.Structure):
    """`struct unpack_result`."""

    _fields_ = (
        ("others", ctypes.c_uint32),
        ("taken", ctypes.c_uint32),
        ("targets", ctypes.c_uint32),
        ("frame_bytes", ctypes.c_uint64),
        ("record_bytes", ctypes.c_uint64),
        ("crcs", ctypes.c_uint64),
    )


class Frames(NamedTuple):
    """Frames of some entries, one behind the other; nobody changes them any more."""

    numbers: "array[int]"
    """The fields of all entries."""
    data: bytearray

    @classmethod
    def room_for(cls, entries: Iterable[Iterable[int]]) -> "Frames":
        """Return the room for the frames of these entries."""
        numbers = array("q", chain.from_iterable(entries))
        return cls(numbers, bytearray(sum(numbers[LENGTH_FIELD::FIELDS])))


class Unpacked(NamedTuple):
    """One message of a run."""

    begin: int
    """Of its record."""
    target: int
    partition: int
    """That it asks for; -1 if it does not."""
    crc: int
    """Of its source."""


class Target(NamedTuple):
    """What a run has for one target."""

    name: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    first: int
    """Which message of the run is the first one."""
    partition_max: int
    """The highest partition that any of them asks for, -1 if none does."""


class Unpacking(NamedTuple):
    """A run of messages."""

    taken: int
    """Messages."""
    frame_bytes: int
    records: bytearray
    record_bytes: int
    """Of `records`."""
    targets: Sequence[Target]
    crcs: int
    """Sum of the CRC-32 of all sources."""
    messages: Iterator[Unpacked]
    """In the order of the entries; valid until the unpacker is called again."""


class Unpacker:
    """Unpacks runs of plain messages. Used by one thread."""

    def __init__(self, library: Library, *, run_min: int) -> None:
        """`run_min`: fewer plain messages in a row are left to Python."""
        frames = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
        told = (ctypes.c_int64, ctypes.c_uint32, ctypes.POINTER(_Room), ctypes.POINTER(_Result))
        self._unpack = Call(library, "delayd_unpack", None, (*frames, *told))
        self._run_min = run_min
        self._unpacked = bytearray(UNPACKED_MAX * _UNPACKED.size)
        self._targets = bytearray(TARGETS_MAX * _TARGET.size)

    def unpack(self, frames: Frames, first: int, at: int, fired_ms: int) -> Unpacking | int:
        """Unpack the run that begins with the entry `first`, whose frame begins at `at` of the
        data. Return how many messages Python has to take, if there are any before it."""
        numbers, data = frames
        count = len(numbers) // FIELDS - first
        assert count > 0 and at < len(data), "there is no message"
        size = len(data) - at
        room_bytes = 2 * size + RECORD_ROOM_BYTES * min(count, UNPACKED_MAX)
        records = bytearray(min(room_bytes, RECORDS_BYTES_MAX))
        room = _Room(*map(_address, (self._unpacked, self._targets, records)), len(records))
        result = _Result()
        self._unpack.over(size)(
            _address(data, at),
            size,
            numbers.buffer_info()[0] + first * ENTRY_BYTES,
            count,
            fired_ms,
            self._run_min,
            room,
            result,
        )
        return int(result.others) or self._run(data, at, records, result)

    def _run(self, data: bytearray, at: int, records: bytearray, result: _Result) -> Unpacking:
        targets = []
        held = memoryview(self._targets)[: result.targets * _TARGET.size]
        for begin, size, *rest in _TARGET.iter_unpack(held):
            targets.append(Target(data[at + begin : at + begin + size].decode(), *rest))
        unpacked = memoryview(self._unpacked)[: result.taken * _UNPACKED.size]
        return Unpacking(
            result.taken,
            result.frame_bytes,
            records,
            result.record_bytes,
            targets,
            result.crcs,
            map(Unpacked._make, _UNPACKED.iter_unpack(unpacked)),
        )


@cache
def _gather(library: Library) -> Call:
    return Call(library, "delayd_gather", ctypes.c_int, _GATHER)


def gather(
    library: Library, file: int, frames: Frames, entries: range, at: int, base: int, end: int
) -> int | None:
    """Read the frames of these entries from an open file into the data, from `at` on; return where
    they end there. `base`, `end`: the position of the file's first byte, and of the one behind the
    last that may be read. None if anything is not there."""
    numbers, data = frames
    first, after = entries.start * FIELDS, entries.stop * FIELDS
    size = sum(numbers[first + LENGTH_FIELD : after : FIELDS])
    place = numbers.buffer_info()[0] + entries.start * ENTRY_BYTES
    is_read = _gather(library).over(size)(
        file, place, len(entries), base, end, _address(data, at), size
    )
    return at + size if is_read else None


_GATHER: Final = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_size_t,
)


def _address(data: bytearray, at: int = 0) -> int:
    """Return where its bytes are, for as long as it lives and is not resized."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data, at))
