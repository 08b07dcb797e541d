"""The slots in which two replicas differ, found from the top of a tree of digests down. Pure.

    day            all that a replica holds            one exchange
    hour           all that it holds                   of the days that differ
    common hour    frames that both must hold          of the hours that differ
    slot           frames that both must hold          of the common hours that differ

A digest is a number of frames and the sum of their CRCs, in any order; the digest of a node is the
sum of its children's. Nodes with the same digest have the same children, so the descent looks only
below nodes that differ. The upper levels compare all frames, for which the catalogue is enough. The
lower levels compare the frames that both must hold (`common_cut.py`), which may have to be read.

An *exchange* is one question to both replicas, of a bounded size: what would cross the network.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from delayd.wheel.layout import hour_of

ROOT: Final = (0,)
"""The parent of all days."""
HOURS_OF_A_DAY: Final = 24


class Level(IntEnum):
    """The levels of the tree; a node's number is its day, hour or slot since 1970."""

    DAY = 0
    HOUR = 1
    COMMON_HOUR = 2
    SLOT = 3


PARENTS_MAX: Final = {Level.DAY: 1, Level.HOUR: 64, Level.COMMON_HOUR: 1_024, Level.SLOT: 8}
"""Parents that one exchange asks about, so that it has some 30,000 nodes at most."""


class Digest(NamedTuple):
    """Of any number of frames."""

    frames: int
    crcs: int
    """Sum of their CRCs modulo 2**64."""


NOTHING: Final = Digest(0, 0)


class Replica(Protocol):
    """One side."""

    def digests(self, level: Level, parents: Sequence[int]) -> Mapping[int, Digest]:
        """Return the nodes of this level below these parents. Nodes without frames may be left
        out."""


class DifferingHour(NamedTuple):
    """Slots of one hour that are not alike."""

    hour: int
    slots: frozenset[int]
    frames: int
    """Frames in these slots, of the side that has more."""


class Descent:
    """One comparison."""

    def __init__(self, a: Replica, b: Replica) -> None:
        self._a = a
        self._b = b
        self.exchanges = 0
        self.nodes = 0
        """Nodes that were compared."""

    def differing(self) -> Iterator[DifferingHour]:
        """Yield all hours with slots that differ, ascending."""
        yield from self._below(Level.DAY, ROOT)

    def _below(self, level: Level, parents: Sequence[int]) -> Iterator[DifferingHour]:
        size = PARENTS_MAX[level]
        for at in range(0, len(parents), size):
            found = self._exchange(level, parents[at : at + size])
            if level is not Level.SLOT:
                yield from self._below(Level(level + 1), sorted(found))
                continue
            for hour in sorted({hour_of(slot) for slot in found}):
                slots = frozenset(slot for slot in found if hour_of(slot) == hour)
                yield DifferingHour(hour, slots, sum(found[slot] for slot in slots))

    def _exchange(self, level: Level, parents: Sequence[int]) -> dict[int, int]:
        """Return the nodes that differ, with the frames of the fuller side."""
        ours, theirs = (side.digests(level, parents) for side in (self._a, self._b))
        numbers = ours.keys() | theirs.keys()
        self.exchanges += 1
        self.nodes += len(numbers)
        pairs = ((n, ours.get(n, NOTHING), theirs.get(n, NOTHING)) for n in numbers)
        return {n: max(a.frames, b.frames) for n, a, b in pairs if a != b}
