"""Waiting answers: those in the catalogue, and those that wait in memory for a checkpoint.

    stored    in LevelDB              hidden below the forget that a later checkpoint will write
    pending   in a checkpoint on its way to LevelDB
    fresh     appended since

A forget drops what is there when it is asked for; an answer that arrives later stays, whatever
its offset. So each layer has its own bound: `pending` and `fresh` are pruned at once, `stored` is
filtered when it is read.
"""

from collections.abc import Sequence

from delayd.wheel import Entry
from delayd.wheel.catalogue import Catalogue


class WaitingAnswers:
    """The index of answers by (partition, offset). Not thread safe."""

    def __init__(self, catalogue: Catalogue, partitions: int) -> None:
        self._catalogue = catalogue
        self._nothing = (0,) * partitions
        self._fresh: list[Entry] = []
        self._fresh_from = self._nothing
        self._pending: list[Entry] = []
        self._pending_from = self._nothing

    def add(self, entry: Entry) -> None:
        """File an answer that was just appended."""
        self._fresh.append(entry)

    def waiting(self, from_offsets: Sequence[int]) -> list[Entry]:
        """All answers with offset >= from_offsets[partition], by (partition, offset)."""
        hidden = map(max, from_offsets, self._pending_from, self._fresh_from)
        stored = self._catalogue.answers(tuple(hidden))
        found = {(entry.partition, entry.offset): entry for entry in stored}
        for entry in (*self._pending, *self._fresh):
            if entry.offset >= from_offsets[entry.partition]:
                found[entry.partition, entry.offset] = entry
        return [found[key] for key in sorted(found)]

    def forget(self, below_offsets: Sequence[int]) -> None:
        """Drop the answers below these offsets, by partition; durable with the next checkpoint."""
        self._fresh = [e for e in self._fresh if e.offset >= below_offsets[e.partition]]
        self._pending = [e for e in self._pending if e.offset >= below_offsets[e.partition]]
        self._fresh_from = tuple(map(max, self._fresh_from, below_offsets))

    def capture(self) -> tuple[tuple[Entry, ...], tuple[int, ...]]:
        """Hand the changes to a checkpoint: answers to add, offsets below which to drop first."""
        self._pending, self._fresh = self._fresh, []
        self._pending_from, self._fresh_from = self._fresh_from, self._nothing
        return tuple(self._pending), self._pending_from

    def settle(self) -> None:
        """The captured changes are in the catalogue."""
        self._pending = []
        self._pending_from = self._nothing
