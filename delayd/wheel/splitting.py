"""Reading an hour's file for its split: which frames belong to which slot.

A split is many pieces, each of a bounded size. A piece takes the next frames of the hour's file,
byte for byte, to the tails of their slots, and moves the file's `start` behind them; the next
checkpoint makes both durable together, and a crash before it undoes both. The file goes with the
checkpoint after the last piece. Source: docs/design/storage.md, "Hour files".
"""

from typing import NamedTuple

from delayd.errors import CorruptionError
from delayd.wheel.catalogue import REBUILD
from delayd.wheel.counts import topic_of
from delayd.wheel.frame import HEADER_BYTES, BrokenFrameError, read_body, walk
from delayd.wheel.layout import hour_of
from delayd.wheel.reader import Reader, corruption
from delayd.wheel.segment import DIGEST_MODULO, HourFile
from replication.rank import SLOT_MS

SPLIT_BYTES = 512 * 1024
"""How much of an hour's file one piece takes, unless one frame is longer: about 3 ms."""


class MovedFrame(NamedTuple):
    """One frame of an hour, as bytes."""

    slot: int
    partition: int
    offset: int
    crc: int
    topic: str
    data: bytes


def next_frames(reader: Reader, hour: HourFile) -> list[MovedFrame]:
    """The next frames of the hour, from its `start`; empty when there are none.

    Raises CorruptionError: a broken frame, one of another hour, or at the end frames that are not
    those of the catalogue's line. Nothing has been moved then.
    """
    end = hour.end
    wanted_bytes = SPLIT_BYTES
    while hour.start < end:
        data = reader.bytes_at(hour, hour.start, min(hour.start + wanted_bytes, end))
        try:
            moved = _frames(hour, data)
            if moved:
                return moved
            if hour.start + len(data) == end:
                raise BrokenFrameError(hour.start, len(data), "ends too early")
        except BrokenFrameError as error:
            raise corruption(hour, error, hour.count) from error
        wanted_bytes *= 2
    if hour.count != 0 or hour.digest % DIGEST_MODULO != 0:
        raise CorruptionError(
            f"{hour.name}: its file does not hold the frames of its catalogue line: "
            f"{hour.count} are missing, or others were there",
            remedy=REBUILD,
        )
    return []


def _frames(hour: HourFile, data: bytes) -> list[MovedFrame]:
    moved = []
    for due_ms, partition, offset, _, _, _, body, end, crc in walk(data, hour.start):
        slot = due_ms // SLOT_MS
        begin = body - HEADER_BYTES
        if hour_of(slot) != hour.number:
            raise BrokenFrameError(hour.start + begin, end - begin, "is of another hour")
        topic = topic_of(read_body(data[body:end]))
        moved.append(MovedFrame(slot, partition, offset, crc, topic, data[begin:end]))
    return moved
