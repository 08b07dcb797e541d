"""A frame with its encoded bytes, and the fields by which the wheel files it.

The fast path of ingest encodes frames before it takes the lock
(`delayd.node.replica.fast_ingest`); the wheel encodes all others.
"""

from typing import Final, NamedTuple, final

from delayd.wheel import Frame
from delayd.wheel.counts import topic_of
from delayd.wheel.frame import encode

_made: Final = tuple.__new__


@final
class PackedFrame(NamedTuple):
    """The encoded frame. The fields before `data` are in it, too: see `Frame`."""

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
    """Encode a frame. A value that does not fit its field is a bug of the caller."""
    due_ms, partition, offset, lane, kind, append_ms, body = frame
    return _made(
        PackedFrame,
        (due_ms, partition, offset, lane, kind, append_ms, topic_of(body), *encode(frame)),
    )
