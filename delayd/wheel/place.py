"""Places: an index keeps one per stored message, 20 bytes under the due time that they share.

    place   := rank where length
    rank       u64   partition << 48 | offset
    where      u64   lane << 40 | position of the frame in its slot's file; or, of a frame in the
                     file of its sparse hour, IN_HOUR + its position there
    length     u32   bytes of the whole frame

Sorted as tuples of numbers, places of one due time are in rank order. An `Entry` says the same in
240 bytes of Python objects.
"""

from collections.abc import Iterable, Iterator
from struct import Struct

from delayd.wheel import Entry, FrameKind
from replication.rank import Rank

PLACE = Struct("<QQI")
PLACE_BYTES = PLACE.size
OFFSET_BITS = 48
POSITION_BITS = 40
OFFSETS_MAX = 1 << OFFSET_BITS
"""No partition of Kafka gets that far: it takes nine years of a million records a second."""
POSITIONS_MAX = 1 << POSITION_BITS
IN_HOUR = POSITIONS_MAX // 2
"""A slot's file stays smaller: nobody writes half a terabyte that is due in one second."""

_OFFSET_MASK = OFFSETS_MAX - 1
_POSITION_MASK = POSITIONS_MAX - 1
_new_tuple = tuple.__new__

Place = tuple[int, int, int]
"""rank, where, length"""


def unpack(packed: bytes | bytearray) -> Iterator[Place]:
    """Yield packed places."""
    return PLACE.iter_unpack(packed)


def pack(places: Iterable[Place]) -> bytearray:
    """Pack places: the inverse of `unpack`."""
    packed = bytearray()
    for rank, where, length in places:
        packed += PLACE.pack(rank, where, length)
    return packed


def rank_number(partition: int, offset: int) -> int:
    """Return partition and offset as the first number of a place."""
    return partition << OFFSET_BITS | offset


def rank_of(due_ms: int, number: int) -> Rank:
    """Return the rank with this first number of a place, at this due time."""
    return Rank(due_ms, number >> OFFSET_BITS, number & _OFFSET_MASK)


def lane_of_place(place: Place) -> int:
    """Return the message's lane."""
    return place[1] >> POSITION_BITS


def partition_of_place(place: Place) -> int:
    """Return the message's partition."""
    return place[0] >> OFFSET_BITS


def entries_at(due_ms: int, places: Iterable[Place]) -> list[Entry]:
    """Return the places of one due time as entries."""
    kind = int(FrameKind.MESSAGE)
    return [
        _new_tuple(
            Entry,
            (
                due_ms,
                rank >> OFFSET_BITS,
                rank & _OFFSET_MASK,
                where >> POSITION_BITS,
                kind,
                where & _POSITION_MASK,
                length,
            ),
        )
        for rank, where, length in places
    ]
