"""Hours that are due: each is split into its slots piece by piece, or, if sparse, indexed.

Source: docs/design/storage.md, "Hour files".
"""

from delayd.wheel.counts import PendingCounts
from delayd.wheel.failure import FailureLatch
from delayd.wheel.hour_index import HourIndex
from delayd.wheel.reader import Reader
from delayd.wheel.segment import HourFile
from delayd.wheel.segments import Segments
from delayd.wheel.splitting import frames_at, require_all


class NearHours:
    """The work on the first hour that is due. Not thread safe: part of the wheel."""

    def __init__(
        self, segments: Segments, reader: Reader, counts: PendingCounts, latch: FailureLatch
    ) -> None:
        self._segments = segments
        self._reader = reader
        self._counts = counts
        self._latch = latch
        self._indexing: HourIndex | None = None
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
        moved = frames_at(self._reader, hour, hour.start)
        if not moved:
            require_all(hour, hour.count, hour.digest)
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
        if self._indexing is None or self._indexing.hour is not hour:
            self._indexing = HourIndex(hour)
        found = self._indexing.advance(self._reader)
        for slot, topic in found:
            self._counts.indexed(slot, topic)
        if not found:
            segments = self._segments
            for number, part in self._indexing.parts():
                whose = segments.slots.get(number) or segments.create_slot(number)
                whose.part = part
            segments.hours.make_whole(hour)
            self._indexing = None
