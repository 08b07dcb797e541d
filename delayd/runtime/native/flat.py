"""Looking through flat records in C; `native/records.h` has their layout.

Not here: what a record is (`delayd.bus.flat`).
"""

import ctypes
from typing import Final, NamedTuple

from delayd.runtime.native import Call, Library

STRETCHES_MAX: Final = 64
"""Room for so many stretches at first; more of them take a second look."""


class _Stretch(ctypes.Structure):
    """`struct stretch` of native/records.h."""

    _fields_ = (
        ("partition", ctypes.c_int32),
        ("epoch", ctypes.c_int32),
        ("first_offset", ctypes.c_int64),
        ("last_offset", ctypes.c_int64),
        ("count", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
    )


class _Survey(ctypes.Structure):
    """`struct survey` of native/records.h."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("weight", ctypes.c_uint64),
        ("run_begin", ctypes.c_uint64),
        ("stretches", ctypes.c_uint64),
    )


class Stretch(NamedTuple):
    """Consecutive records of one partition."""

    partition: int
    leader_epoch: int
    """Of the last one."""
    first_offset: int
    last_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    bytes: int


class Survey(NamedTuple):
    """What flat records are, all together."""

    count: int  # type: ignore[assignment]
    weight: int
    """Bytes that they weigh at most, if they are in one batch; see `delayd.bus.unreadable`."""
    run_begin: int
    """Records before the last run: the end of which all have one partition and append time."""
    stretches: tuple[Stretch, ...]


class Surveyor:
    """What the library says of flat records. Any number of threads may ask."""

    def __init__(self, library: Library) -> None:
        bytes_of = (ctypes.c_void_p, ctypes.c_size_t)
        found = (ctypes.POINTER(_Survey), ctypes.c_void_p, ctypes.c_size_t)
        self._survey = Call(library, "delayd_survey", ctypes.c_int, (*bytes_of, *found))
        counted = (*bytes_of, ctypes.c_uint64)
        self._skip = Call(library, "delayd_skip", ctypes.c_size_t, counted)

    def survey(self, data: bytearray, begin: int, end: int) -> Survey:
        """Look through the records of `data[begin:end]`. ValueError if they are not whole."""
        if begin == end:
            return Survey(0, 0, 0, ())
        found, first = _Survey(), ctypes.c_char.from_buffer(data, begin)
        room, survey = STRETCHES_MAX, self._survey.over(end - begin)
        while True:
            stretches = (_Stretch * room)()
            if survey(ctypes.addressof(first), end - begin, found, stretches, room):
                break
            if found.stretches < room:
                raise ValueError("these bytes are no flat records")
            room *= 32
        told = (
            Stretch(at.partition, at.epoch, at.first_offset, at.last_offset, at.count, at.bytes)
            for at in stretches[: found.stretches]
        )
        return Survey(found.count, found.weight, found.run_begin, tuple(told))

    def skip(self, data: bytearray, begin: int, end: int, count: int) -> int:
        """Return where the record behind the first `count` of `data[begin:end]` begins."""
        if begin == end or count == 0:
            return begin
        first = ctypes.c_char.from_buffer(data, begin)
        skip = self._skip.over(end - begin)
        skipped: int = skip(ctypes.addressof(first), end - begin, count)
        return begin + skipped
