"""Reading an hour file piece by piece: which frames belong to which slot.

A split is many pieces of a bounded size. A piece moves the next frames of the hour file, byte for
byte, to the tails of their slots, and moves the file's `start` behind them. The next checkpoint
makes both durable together; a crash before it undoes both. Bytes before a durable `start` are
punched out of the file; the file is removed with the checkpoint after the last piece.
Source: docs/design/storage.md, "Hour files".
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
"""Bytes of an hour file in one piece, unless one frame is longer: about 3 ms."""


class HourFrame(NamedTuple):
    """One frame of an hour, as bytes."""

    slot: int
    partition: int
    offset: int
    crc: int
    topic: str
    data: bytes


def frames_at(reader: Reader, hour: HourFile, position: int) -> list[HourFrame]:
    """Return the next frames of the hour file from a position on; none at its end.

    Raises CorruptionError: a broken frame, or one of another hour.
    """
    end = hour.end
    wanted_bytes = SPLIT_BYTES
    while position < end:
        data = reader.bytes_at(hour, position, min(position + wanted_bytes, end))
        try:
            frames = _frames(hour, data, position)
            if frames:
                return frames
            if position + len(data) == end:
                raise BrokenFrameError(position, len(data), "ends too early")
        except BrokenFrameError as error:
            raise corruption(hour, error, hour.count) from error
        wanted_bytes *= 2
    return []


def require_all(hour: HourFile, count_left: int, digest_left: int) -> None:
    """Raise CorruptionError unless nothing is left of the catalogue's line at the file's end."""
    if count_left != 0 or digest_left % DIGEST_MODULO != 0:
        raise CorruptionError(
            f"{hour.name}: its file does not hold the frames of its catalogue line: "
            f"{count_left} are missing, or others were there",
            remedy=REBUILD,
        )


def _frames(hour: HourFile, data: bytes, position: int) -> list[HourFrame]:
    frames = []
    for due_ms, partition, offset, _, _, _, body, end, crc in walk(data, position):
        slot = due_ms // SLOT_MS
        begin = body - HEADER_BYTES
        if hour_of(slot) != hour.number:
            raise BrokenFrameError(position + begin, end - begin, "is of another hour")
        topic = topic_of(read_body(data[body:end]))
        frames.append(HourFrame(slot, partition, offset, crc, topic, data[begin:end]))
    return frames
