"""The place of a stored frame: the delivery queue holds it, the wheel reads by it."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A stored frame's place. Entries sort by rank, because rank comes first."""

    due_ms: int
    """Of a pending reply: its append time."""
    partition: int
    offset: int
    lane: int
    kind: int
    """Message or pending reply, as the wheel numbers them."""
    position: int
    """Byte offset of the frame in its slot's file."""
    length: int
    """Bytes of the whole frame."""
