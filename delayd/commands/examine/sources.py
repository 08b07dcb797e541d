"""A set of the sources of frames, in some eight bytes each.

A damaged hour may hold tens of millions of frames, mostly in the order of their offsets. So the set
keeps ascending runs of offsets per partition, and merges them like a merge sort: there are few runs
in any order of frames.
"""

from array import array
from bisect import bisect_left
from collections import defaultdict
from heapq import merge

from delayd.wheel.checking import WholeFrame


class Sources:
    """The set. A replace is two frames of one record, a message and a cancel marker."""

    def __init__(self) -> None:
        self._offsets: defaultdict[tuple[int, int], _Offsets] = defaultdict(_Offsets)
        """By partition and kind."""

    def add(self, frame: WholeFrame) -> bool:
        """Add a frame; return False if it is in the set."""
        return self._offsets[frame.partition, frame.kind].add(frame.offset)

    def __contains__(self, frame: WholeFrame) -> bool:
        return frame.offset in self._offsets[frame.partition, frame.kind]


class _Offsets:
    """Ascending runs; each but the last is at most half as long as the one before."""

    def __init__(self) -> None:
        self._runs: list[array[int]] = []

    def __contains__(self, offset: int) -> bool:
        for run in self._runs:
            place = bisect_left(run, offset)
            if place < len(run) and run[place] == offset:
                return True
        return False

    def add(self, offset: int) -> bool:
        if offset in self:
            return False
        runs = self._runs
        if not runs or offset < runs[-1][-1]:
            while len(runs) > 1 and 2 * len(runs[-1]) > len(runs[-2]):
                runs[-2:] = [array("Q", merge(*runs[-2:]))]
            runs.append(array("Q"))
        runs[-1].append(offset)
        return True
