"""The index of a sparse hour: which frames of its file belong to which slot.

A file per second would cost more than its content: a page, an inode, a creation and a removal for a
handful of frames. So the frames stay in the hour file until the hour has passed, and each slot
knows its own frames there: a *part*, 12 bytes a frame.

    hour's file --scan, a piece at a time, once--> slot -> (position, length, CRC)*

The index is in memory only, and is built again after a start. Each piece verifies every CRC and
hour, the last piece count and digest of the catalogue's line; readers verify each CRC once more.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from delayd.wheel.reader import Reader
from delayd.wheel.segment import HOUR_PLACE, HourFile, HourPart
from delayd.wheel.splitting import frames_at, require_all


class Found(NamedTuple):
    """A message, for the counts."""

    slot: int
    topic: str


class HourIndex:
    """The index of one hour, while it is built. Of no use after an error."""

    def __init__(self, hour: HourFile) -> None:
        """Make an empty index, which `advance` fills. The hour file must not grow any more."""
        self.hour = hour
        self._position = hour.start
        self._count = 0
        self._digest = 0
        self._places: defaultdict[int, bytearray] = defaultdict(bytearray)

    def advance(self, reader: Reader) -> list[Found]:
        """Index the next piece, a few milliseconds, and return its messages; none when the index is
        complete. Raises CorruptionError."""
        hour = self.hour
        found = []
        for slot, _, _, crc, topic, data in frames_at(reader, hour, self._position):
            length = len(data)
            self._places[slot] += HOUR_PLACE.pack(self._position, length, crc)
            self._position += length
            self._count += 1
            self._digest += crc
            found.append(Found(slot, topic))
        if not found:
            require_all(hour, hour.count - self._count, hour.digest - self._digest)
        return found

    def parts(self) -> Iterator[tuple[int, HourPart]]:
        """Yield the part of each slot. The index must be complete."""
        for slot, places in self._places.items():
            told = list(HOUR_PLACE.iter_unpack(places))
            yield (
                slot,
                HourPart(
                    hour=self.hour,
                    places=bytes(places),
                    count=len(told),
                    bytes=sum(length for _, length, _ in told),
                    digest=sum(crc for _, _, crc in told),
                ),
            )
