"""Where a stored frame is: what the delivery queue queues and what the wheel reads by."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A stored frame's place. Entries sort by rank, because rank comes first."""

    due_ms: int
    """Of an answer: its append time."""
    partition: int
    offset: int
    lane: int
    kind: int
    """Message or answer, as the wheel numbers them."""
    position: int
    """Byte offset of the frame in its slot's file."""
    length: int
    """Bytes of the whole frame."""
