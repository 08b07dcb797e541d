"""One slot as the wheel holds it in memory: its numbers, and the tail that is not in its file yet.

    frames of the slot:   [0 ...... written) in the file   [written ... written + len(tail)) here

About half a kilobyte each; hour files will bound how many there are.
"""

from delayd.wheel import SlotInfo
from delayd.wheel.catalogue import SlotLine

DIGEST_MODULO = 1 << 64


class Slot:
    """Mutable, because a hundred thousand frames a second change it."""

    __slots__ = ("count", "digest", "generation", "highest_offsets", "number", "tail", "written")

    def __init__(self, number: int, generation: int, partitions: int) -> None:
        self.number = number
        self.generation = generation
        self.count = 0
        self.digest = 0
        self.highest_offsets = [-1] * partitions
        self.written = 0
        """Bytes in the file. There is no file while it is 0."""
        self.tail = bytearray()

    @classmethod
    def from_line(cls, number: int, line: SlotLine) -> "Slot":
        """The slot as its catalogue line describes it: all frames in the file."""
        slot = cls(number, line.generation, 0)
        slot.count, slot.written, slot.digest, highest = line.info
        slot.highest_offsets = list(highest)
        return slot

    def info(self) -> SlotInfo:
        """The catalogue's view of the slot as it is now, tail included."""
        return SlotInfo(
            self.count,
            self.written + len(self.tail),
            self.digest % DIGEST_MODULO,
            tuple(self.highest_offsets),
        )

    def line(self) -> SlotLine:
        """The slot's line for the catalogue."""
        return SlotLine(self.generation, self.info())
