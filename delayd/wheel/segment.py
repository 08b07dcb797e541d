"""Segments: slots and hours as the wheel keeps them in memory.

A segment is one append-only file of frames, and the tail that is not in the file yet:

    frames of the segment:   [0 ...... written) in the file   [written ... written + len(tail)) here

A slot's segment holds one second, an hour's segment one hour that is far or sparse. Each takes half
a kilobyte: 3,600 per hour for the two hours that are near, one per hour beyond.

A slot of a sparse hour has a *part* in the file of its hour, too. It may have nothing else: then it
has no file and no line in the catalogue.
"""

from struct import Struct
from typing import NamedTuple, Self

from delayd.wheel import SegmentLine, SlotInfo
from delayd.wheel.layout import SegmentName

DIGEST_MODULO = 1 << 64
HOUR_PLACE = Struct("<III")
"""A frame in the file of a sparse hour: position, length, CRC."""


class Segment:
    """A file of frames with its tail. Mutable, because a hundred thousand frames a second change
    it."""

    __slots__ = (
        "__weakref__",
        "count",
        "digest",
        "generation",
        "highest_offsets",
        "number",
        "start",
        "tail",
        "written",
    )

    is_hour = False

    def __init__(self, number: int, generation: int, partitions: int) -> None:
        self.number = number
        self.generation = generation
        self.count = 0
        self.digest = 0
        self.start = 0
        """Frames before this byte have been moved to their slots; 0 for a slot."""
        self.highest_offsets = [-1] * partitions
        self.written = 0
        """Bytes in the file. There is no file while it is 0."""
        self.tail = bytearray()

    @property
    def name(self) -> SegmentName:
        """The name of its file."""
        return SegmentName(self.is_hour, self.number, self.generation)

    @property
    def end(self) -> int:
        """The position of the next frame."""
        return self.written + len(self.tail)

    def info(self) -> SlotInfo:
        """Return count, bytes, digest and highest offsets as of now, tail included."""
        return SlotInfo(
            self.count, self.end, self.digest % DIGEST_MODULO, tuple(self.highest_offsets)
        )

    @classmethod
    def from_line(cls, line: SegmentLine) -> Self:
        """Make the segment of a catalogue line: all frames are in the file."""
        segment = cls(line.name.number, line.name.generation, 0)
        segment.count, segment.written, segment.digest, highest = line.info
        segment.highest_offsets = list(highest)
        segment.start = line.start
        return segment

    def line(self) -> SegmentLine:
        """Return its line for the catalogue as of now, tail included."""
        return SegmentLine(self.name, self.info(), self.start)


class Slot(Segment):
    """One second. Count, digest and highest offsets are of its own frames, without its part."""

    __slots__ = ("part",)

    def __init__(self, number: int, generation: int, partitions: int) -> None:
        super().__init__(number, generation, partitions)
        self.part: HourPart | None = None
        """Its frames in the file of its hour."""

    @property
    def frames(self) -> int:
        """Number of its frames, its part included."""
        return self.count + (0 if self.part is None else self.part.count)

    def info_of_all(self) -> SlotInfo:
        """Return its line, its part included: of that, the highest offsets are the whole hour's."""
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


class HourFile(Segment):
    """One hour that is far or sparse, or is being split. Count and digest are of the frames that
    are not split yet."""

    __slots__ = ("punched",)

    is_hour = True

    def __init__(self, number: int, generation: int, partitions: int) -> None:
        super().__init__(number, generation, partitions)
        self.punched = 0
        """Bytes before it have been freed on the disk."""


class HourPart(NamedTuple):
    """The frames of one slot that lie in the file of its hour."""

    hour: HourFile
    places: bytes
    """A HOUR_PLACE of each frame, in the order of the file."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    bytes: int
    digest: int
    """Sum of the CRCs."""
