"""Finding one message of the wheel by its rank: for whoever has no entry that says where it is.

Not here: messages that are due, which lanes hold (`slot_index.py`).
"""

from delayd.wheel import Frame
from delayd.wheel.disk import FailureLatch
from delayd.wheel.layout import hour_of
from delayd.wheel.reader import Reader
from delayd.wheel.segments import Segments
from replication.rank import Rank, slot_of


class Finder:
    """Not thread safe: part of the wheel."""

    def __init__(self, segments: Segments, reader: Reader, latch: FailureLatch) -> None:
        self._segments = segments
        self._reader = reader
        self._latch = latch

    def find(self, lane: int, rank: Rank) -> Frame | None:
        """Return the message of this rank, wherever it is; None if it is not in the wheel. Looks
        through its slot, and the file of its hour. Raises CorruptionError."""
        self._latch.require_usable()
        number = slot_of(rank.due_ms)
        places = (
            self._segments.slots.get(number),
            self._segments.hours.files.get(hour_of(number)),
        )
        for segment in places:
            if segment is not None and (frame := self._reader.find(segment, lane, rank)):
                return frame
        return None
