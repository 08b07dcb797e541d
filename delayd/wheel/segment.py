"""Slots and hours as the wheel holds them in memory: a *segment* each.

A segment is one append-only file of frames, and the tail that is not in the file yet:

    frames of the segment:   [0 ...... written) in the file   [written ... written + len(tail)) here

A slot's segment holds one second, an hour's one that is far, or sparse. About half a kilobyte each:
3,600 per hour for the two hours that are near, one per hour beyond.

A slot of a sparse hour has a *part* in the file of its hour, too. It may have nothing else: then it
has no file and no line in the catalogue.
"""

from struct import Struct
from typing import NamedTuple

from delayd.wheel import SlotInfo
from delayd.wheel.catalogue import HourLine, SlotLine
from delayd.wheel.layout import SegmentName

DIGEST_MODULO = 1 << 64
HOUR_PLACE = Struct("<III")
"""A frame in the file of a sparse hour: position, length, CRC."""


class Segment:
    """Mutable, because a hundred thousand frames a second change it."""

    __slots__ = ("count", "digest", "generation", "highest_offsets", "number", "tail", "written")

    is_hour = False
    start: int = 0
    """Frames before it are not of this segment any more."""

    def __init__(self, number: int, generation: int, partitions: int) -> None:
        self.number = number
        self.generation = generation
        self.count = 0
        self.digest = 0
        self.highest_offsets = [-1] * partitions
        self.written = 0
        """Bytes in the file. There is no file while it is 0."""
        self.tail = bytearray()

    @property
    def name(self) -> SegmentName:
        """What names its file."""
        return SegmentName(self.is_hour, self.number, self.generation)

    @property
    def end(self) -> int:
        """Where the next frame goes."""
        return self.written + len(self.tail)

    def info(self) -> SlotInfo:
        """The catalogue's view of it as it is now, tail included."""
        return SlotInfo(
            self.count, self.end, self.digest % DIGEST_MODULO, tuple(self.highest_offsets)
        )

    def _take(self, info: SlotInfo) -> None:
        self.count, self.written, self.digest, highest = info
        self.highest_offsets = list(highest)


class Slot(Segment):
    """One second. Count, digest and highest offsets are of its own frames, without its part."""

    __slots__ = ("part",)

    def __init__(self, number: int, generation: int, partitions: int) -> None:
        super().__init__(number, generation, partitions)
        self.part: HourPart | None = None
        """Its frames in the file of its hour."""

    @property
    def frames(self) -> int:
        """How many there are in all."""
        return self.count + (0 if self.part is None else self.part.count)

    def info_of_all(self) -> SlotInfo:
        """Its part included: of that, the highest offsets are those of the whole hour."""
        own, part = self.info(), self.part
        if part is None:
            return own
        highest = zip(own.highest_offsets, part.hour.highest_offsets, strict=True)
        return SlotInfo(
            own.count + part.count,
            own.bytes + part.bytes,
            (own.digest + part.digest) % DIGEST_MODULO,
            tuple(max(pair) for pair in highest),
        )

    @classmethod
    def from_line(cls, number: int, line: SlotLine) -> "Slot":
        """The slot as its catalogue line describes it: all frames in the file."""
        slot = cls(number, line.generation, 0)
        slot._take(line.info)
        return slot

    def line(self) -> SlotLine:
        """The slot's line for the catalogue."""
        return SlotLine(self.generation, self.info())


class HourFile(Segment):
    """One hour that is far or sparse, or is being split. Count and digest are of what is not split
    yet."""

    __slots__ = ("punched", "start")

    is_hour = True

    def __init__(self, number: int, generation: int, partitions: int) -> None:
        super().__init__(number, generation, partitions)
        self.start = 0
        """Frames before it have been moved to their slots."""
        self.punched = 0
        """Bytes before it have been given back to the disk."""

    @classmethod
    def from_line(cls, number: int, line: HourLine) -> "HourFile":
        """The hour as its catalogue line describes it: all frames in the file."""
        hour = cls(number, line.generation, 0)
        hour._take(line.info)
        hour.start = line.start
        return hour

    def line(self) -> HourLine:
        """The hour's line for the catalogue."""
        return HourLine(self.generation, self.start, self.info())


class HourPart(NamedTuple):
    """The frames of one slot that lie in the file of its hour."""

    hour: HourFile
    places: bytes
    """Of each frame a HOUR_PLACE, in the order of the file."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    bytes: int
    digest: int
    """Sum of the CRCs."""
