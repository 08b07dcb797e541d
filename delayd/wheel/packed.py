"""A frame whose bytes are made, and what the wheel files it by.

The hot path of ingest makes them before it takes the lock (`delayd.node.replica.fast_ingest`), the
wheel makes those of all other frames.
"""

from typing import Final, NamedTuple, final

from delayd.wheel import Frame
from delayd.wheel.counts import topic_of
from delayd.wheel.frame import encode

_made: Final = tuple.__new__


@final
class PackedFrame(NamedTuple):
    """What is in front of the bytes is in them, too: see `Frame`."""

    due_ms: int
    partition: int
    offset: int
    lane: int
    kind: int
    append_ms: int
    topic: str
    """The target that it counts under; means nothing for a pending reply."""
    data: bytes
    """The whole frame."""
    crc: int


def packed(frame: Frame) -> PackedFrame:
    """The frame with its bytes. A value that does not fit its field is the caller's bug."""
    due_ms, partition, offset, lane, kind, append_ms, body = frame
    return _made(
        PackedFrame,
        (due_ms, partition, offset, lane, kind, append_ms, topic_of(body), *encode(frame)),
    )
