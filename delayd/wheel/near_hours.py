"""Hours that are due: each is split into its slots piece by piece, or, if sparse, indexed.

A split is many pieces of a bounded size. A piece moves the next frames of the hour file, byte for
byte, to the tails of their slots, and moves the file's `start` behind them. The next checkpoint
makes both durable together; a crash before it undoes both. Bytes before a durable `start` are
punched out of the file; the file is removed with the checkpoint after the last piece.

An index leaves the frames of a sparse hour in its file until the hour has passed: a file per second
would cost a page, an inode, a creation and a removal for a handful of frames. Each slot knows its
own frames there: a *part*, 12 bytes a frame.

    hour's file --scan, a piece at a time, once--> slot -> (position, length, CRC)*

The index is in memory only, and is built again after a start.

Each piece verifies every CRC and hour, the last piece count and digest of the catalogue's line.
Source: docs/design/storage.md, "Hour files".
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from delayd.errors import CorruptionError
from delayd.wheel.catalogue import REBUILD
from delayd.wheel.counts import PendingCounts
from delayd.wheel.disk import FailureLatch
from delayd.wheel.frame import HEADER_BYTES, BrokenFrameError, read_body, topic_of, walk
from delayd.wheel.layout import hour_of
from delayd.wheel.reader import Reader, corruption
from delayd.wheel.segment import DIGEST_MODULO, HOUR_PLACE, HourFile, HourPart
from delayd.wheel.segments import Segments
from replication.rank import SLOT_MS

SPLIT_BYTES = 512 * 1024
"""Bytes of an hour file in one piece, unless one frame is longer: about 3 ms."""


class NearHours:
    """The work on the first hour that is due. Not thread safe: part of the wheel."""

    def __init__(
        self, segments: Segments, reader: Reader, counts: PendingCounts, latch: FailureLatch
    ) -> None:
        self._segments = segments
        self._reader = reader
        self._counts = counts
        self._latch = latch
        self._index: _HourIndex | None = None
        """Of the first hour that is due, if that has begun."""

    def advance(self) -> bool:
        """Do a piece of the work, a few milliseconds; True if there is more."""
        hours = self._segments.hours
        hour = hours.first_due
        if hour is None:
            return False
        if hours.is_sparse(hour):
            self._index_piece(hour)
        elif self._segments.has_large_tails:
            # Else the tails of an hour's 3,600 slots would be written out at once, in a second.
            with self._latch.tripped_by_errors():
                self._segments.write_some()
        else:
            self._split_piece(hour)
        return hours.first_due is not None

    def _split_piece(self, hour: HourFile) -> None:
        moved = _frames_at(self._reader, hour, hour.start)
        if not moved:
            _require_all(hour, hour.count, hour.digest)
        with self._latch.tripped_by_errors():
            for number, partition, offset, crc, topic, data in moved:
                self._segments.move(hour, number, partition, offset, crc, data)
                self._counts.moved(number, topic)
            if moved:
                self._segments.dirty.add(hour)
                self._segments.write_too_large_tails()
            else:
                self._segments.forget(hour)

    def _index_piece(self, hour: HourFile) -> None:
        if self._index is None or self._index.hour is not hour:
            self._index = _HourIndex(hour)
        if found := _frames_at(self._reader, hour, self._index.position):
            for frame in found:
                self._index.add(frame)
                self._counts.indexed(frame.slot, frame.topic)
            return
        segments = self._segments
        for number, part in self._index.parts():
            slot = segments.slots.get(number) or segments.create_slot(number)
            slot.part = part
        segments.hours.make_whole(hour)
        self._index = None


class _HourFrame(NamedTuple):
    """One frame of an hour, as bytes."""

    slot: int
    partition: int
    offset: int
    crc: int
    topic: str
    data: bytes


class _HourIndex:
    """The index of one hour, while it is built. The hour file must not grow any more."""

    def __init__(self, hour: HourFile) -> None:
        self.hour = hour
        self.position = hour.start
        """Of the next frame."""
        self._places: defaultdict[int, bytearray] = defaultdict(bytearray)

    def add(self, frame: _HourFrame) -> None:
        """Add the next frame."""
        length = len(frame.data)
        self._places[frame.slot] += HOUR_PLACE.pack(self.position, length, frame.crc)
        self.position += length

    def parts(self) -> list[tuple[int, HourPart]]:
        """Return the part of each slot. Raise CorruptionError if these are not all frames of the
        hour."""
        parts = []
        for slot, places in self._places.items():
            _, lengths, crcs = zip(*HOUR_PLACE.iter_unpack(places), strict=True)
            part = HourPart(self.hour, bytes(places), len(crcs), sum(lengths), sum(crcs))
            parts.append((slot, part))
        missing = self.hour.count - sum(part.count for _, part in parts)
        _require_all(self.hour, missing, self.hour.digest - sum(part.digest for _, part in parts))
        return parts


def _frames_at(reader: Reader, hour: HourFile, position: int) -> list[_HourFrame]:
    """Return the next frames of the hour file from a position on; none at its end.

    Raises CorruptionError: a broken frame, or one of another hour.
    """
    end = hour.end
    wanted_bytes = SPLIT_BYTES
    while position < end:
        data = reader.bytes_at(hour, position, min(position + wanted_bytes, end))
        try:
            frames = list(_frames(hour, data, position))
            if frames:
                return frames
            if position + len(data) == end:
                raise BrokenFrameError(position, len(data), "ends too early")
        except BrokenFrameError as error:
            raise corruption(hour, error, hour.count) from error
        wanted_bytes *= 2
    return []


def _frames(hour: HourFile, data: bytes, position: int) -> Iterator[_HourFrame]:
    for due_ms, partition, offset, _, _, _, body, end, crc in walk(data, position):
        slot = due_ms // SLOT_MS
        begin = body - HEADER_BYTES
        if hour_of(slot) != hour.number:
            raise BrokenFrameError(position + begin, end - begin, "is of another hour")
        topic = topic_of(read_body(data[body:end]))
        yield _HourFrame(slot, partition, offset, crc, topic, data[begin:end])


def _require_all(hour: HourFile, count_left: int, digest_left: int) -> None:
    """Raise CorruptionError unless nothing is left of the catalogue's line at the file's end."""
    if count_left != 0 or digest_left % DIGEST_MODULO != 0:
        raise CorruptionError(
            f"{hour.name}: its file does not hold the frames of its catalogue line: "
            f"{count_left} are missing, or others were there",
            remedy=REBUILD,
        )
