"""Counting the messages of a wheel of format 4, which has no counts: all frames are read once."""

from collections.abc import Iterable

from delayd.wheel import FrameKind
from delayd.wheel.counts import PendingCounts, topic_of
from delayd.wheel.frame import BrokenFrameError, read_body, walk
from delayd.wheel.id_memory import IdMemory
from delayd.wheel.reader import SCAN_BYTES, Reader, corruption
from delayd.wheel.segment import Segment
from replication.rank import Rank, slot_of


def recount(
    reader: Reader, segments: Iterable[Segment], ids: IdMemory, counts: PendingCounts
) -> None:
    """Fill the empty counts. Raise CorruptionError."""
    for segment in segments:
        position = segment.start
        wanted_bytes = SCAN_BYTES
        while position < segment.end:
            data = reader.bytes_at(segment, position, min(position + wanted_bytes, segment.end))
            try:
                used = _count(data, position, segment, ids, counts)
                if not used and position + len(data) == segment.end:
                    raise BrokenFrameError(position, len(data), "ends too early")
            except BrokenFrameError as error:
                raise corruption(segment, error, segment.count) from error
            wanted_bytes = SCAN_BYTES if used else 2 * wanted_bytes
            position += used


def _count(
    data: bytes, position: int, segment: Segment, ids: IdMemory, counts: PendingCounts
) -> int:
    used = 0
    for due_ms, partition, offset, _, kind, _, body, used, _ in walk(data, position):
        # The line of an older kill has no topic: its message is never counted back.
        if kind == FrameKind.MESSAGE and ids.kill(Rank(due_ms, partition, offset)) is None:
            topic = topic_of(read_body(data[body:used]))
            counts.stored(slot_of(due_ms), topic, in_slot=not segment.is_hour)
    return used
