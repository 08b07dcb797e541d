"""The index of pending replies: those in the catalogue, and those that a checkpoint will write.

    stored     in LevelDB             hidden below the forget that a later checkpoint will write
    captured   in a checkpoint on its way to LevelDB
    fresh      appended since

A forget drops the replies that are there when it is called; a reply that arrives later stays,
whatever its offset. So each layer has its own bound: `forget` prunes `captured` and `fresh` at
once, and `waiting` filters `stored` when it reads it.
"""

from collections.abc import Sequence

from delayd.wheel import Entry
from delayd.wheel.catalogue import Catalogue


class PendingReplies:
    """The index of pending replies by (partition, offset). Not thread safe."""

    def __init__(self, catalogue: Catalogue, partitions: int) -> None:
        self._catalogue = catalogue
        self._nothing = (0,) * partitions
        self._fresh: list[Entry] = []
        self._fresh_from = self._nothing
        self._captured: list[Entry] = []
        self._captured_from = self._nothing

    def add(self, entry: Entry) -> None:
        """File a pending reply that was just appended."""
        self._fresh.append(entry)

    def waiting(self, from_offsets: Sequence[int]) -> list[Entry]:
        """Return all with offset >= from_offsets[partition], by (partition, offset)."""
        hidden = map(max, from_offsets, self._captured_from, self._fresh_from)
        stored = self._catalogue.pending_replies(tuple(hidden))
        found = {(entry.partition, entry.offset): entry for entry in stored}
        for entry in (*self._captured, *self._fresh):
            if entry.offset >= from_offsets[entry.partition]:
                found[entry.partition, entry.offset] = entry
        return [found[key] for key in sorted(found)]

    def forget(self, below_offsets: Sequence[int]) -> None:
        """Drop those below these offsets, by partition; durable with the next checkpoint."""
        self._fresh = [e for e in self._fresh if e.offset >= below_offsets[e.partition]]
        self._captured = [e for e in self._captured if e.offset >= below_offsets[e.partition]]
        self._fresh_from = tuple(map(max, self._fresh_from, below_offsets))

    def capture(self) -> tuple[tuple[Entry, ...], tuple[int, ...]]:
        """Hand the changes to a checkpoint: replies to add, offsets below which to drop first."""
        self._captured, self._fresh = self._fresh, []
        self._captured_from, self._fresh_from = self._fresh_from, self._nothing
        return tuple(self._captured), self._captured_from

    def settle(self) -> None:
        """Note that the captured changes are in the catalogue."""
        self._captured = []
        self._captured_from = self._nothing
