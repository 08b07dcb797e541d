"""Rank, slot and lane: where a message stands, computed the same way by every node.

Source: docs/design/frontier.md, "Rank, slot, lane".
"""

from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

LANES_REMEMBERED = 4_096
"""Topics whose lane is kept."""
SLOT_MS = 1000
"""A slot is one second of due time."""


class Rank(NamedTuple):
    """The total order of all messages: due time (Unix ms), buffer partition, buffer offset.

    As a cursor it is an exclusive bound: everything strictly below it has been passed.
    """

    due_ms: int
    partition: int
    offset: int


START = Rank(0, 0, 0)
"""The cursor of a cluster that has delivered nothing."""


def due_of(requested_due_ms: int, append_ms: int) -> int:
    """Return the due time that ranks a message: never before its record was appended."""
    return max(requested_due_ms, append_ms)


def slot_of(due_ms: int) -> int:
    """Return the slot (Unix second) that holds a message due at `due_ms`."""
    return due_ms // SLOT_MS


def passed_by(now_ms: int) -> Rank:
    """Return the highest cursor that a step may write at `now_ms`: above all that is due by now."""
    return Rank(now_ms + 1, 0, 0)


@lru_cache(LANES_REMEMBERED)
def lane_of(target_topic: str, lanes: int) -> int:
    """Return the lane of a topic: CRC-32 (zlib) of its UTF-8 name modulo the cluster's lanes."""
    return crc32(target_topic.encode()) % lanes
