"""Counting the pending messages of a wheel of format 4, which has no counts (`counts.py`)."""

from delayd.wheel import FrameKind
from delayd.wheel.counts import PendingCounts
from delayd.wheel.frame import BrokenFrameError, read_body, topic_of
from delayd.wheel.id_memory import IdMemory
from delayd.wheel.reader import Reader, corruption, read_frames
from delayd.wheel.segment import Segment
from replication.rank import Rank, slot_of


def recount(segment: Segment, reader: Reader, ids: IdMemory, counts: PendingCounts) -> None:
    """Count the messages of a segment that are not killed. Raise CorruptionError."""

    def read(size_bytes: int, position: int) -> bytes:
        return reader.bytes_at(segment, position, position + size_bytes)

    try:
        for frame in read_frames(read, segment.start, segment.end):
            # The line of an older kill has no topic: its message is never counted back.
            rank = Rank(frame.due_ms, frame.partition, frame.offset)
            if frame.kind == FrameKind.MESSAGE and ids.kill(rank) is None:
                topic = topic_of(read_body(frame.body))
                counts.stored(slot_of(frame.due_ms), topic, in_slot=not segment.is_hour)
    except BrokenFrameError as error:
        raise corruption(segment, error, segment.count) from error
