"""Kills: which cancel marker killed which message, as lines of the catalogue and of an export.

    key     "k" due_ms:u64 partition:u16 offset:u64    big-endian, so they sort by rank
    value   msgpack: marker_offset is_refused topic [[due_ms offset] asked_by]
                                                           an export's lines have the first two

Not here: where the lines are kept (`id_memory.py`).
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

import msgpack

from replication.rank import Rank

KILLS = b"k"
KILL_KEY = Struct(">cQHQ")
KILL_VALUE_BYTES_MAX = 11
"""In an export: an array of an integer and a boolean."""

_pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack


class Kill(NamedTuple):
    """A killed message."""

    marker_offset: int
    """Of the cancel marker that killed it."""
    is_refused: bool = False
    """Whether a continuation of it was refused because of that marker."""
    topic: str = ""
    """The message's target; empty if unknown."""
    went_on: tuple[int, int] | None = None
    """Due time and offset of a continuation that is stored all the same: if refused, held for a
    reschedule; else because it came too late to be refused."""
    asked_by: int = -1
    """Offset of the last marker that took it over from a reschedule; -1 if none did."""


def kill_key(rank: Rank) -> bytes:
    """Return the key of the kill of this rank."""
    return KILL_KEY.pack(KILLS, *rank)


def rank_of(key: bytes) -> Rank:
    """Return the rank in a key: the inverse of `kill_key`."""
    _, due_ms, partition, offset = KILL_KEY.unpack(key)
    return Rank(due_ms, partition, offset)


def kill_value(kill: Kill) -> bytes:
    """Return the value of a line."""
    is_plain = kill.went_on is None and kill.asked_by < 0
    return _pack(kill[:3] if is_plain else kill)


def exported_value(value: bytes) -> bytes:
    """Return the value of a line in an export, at most KILL_VALUE_BYTES_MAX."""
    return _pack(tuple(kill_of(value)[:2]))


def kill_of(value: bytes) -> Kill:
    """Return the kill in a value: the inverse of `kill_value`."""
    return Kill(*msgpack.unpackb(value, use_list=False))
