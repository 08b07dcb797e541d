"""One lane of a master's delivery queue: what is stored, open and not yet delivered."""

from bisect import bisect_left, insort

from replication.entry import Entry
from replication.rank import Rank

COMPACT_AT = 256
"""A lane cuts this many delivered entries off the front of its list, if they are half of it (which
keeps the cost amortised), and all of them when nothing is left. No limit counts them."""


class Lane:
    """A sorted list with a moving front, and the rank up to which the lane is open."""

    def __init__(self, opened_to: Rank) -> None:
        self.opened_to = opened_to
        """The lane holds everything that is stored below this rank and not done (an exclusive
        bound)."""
        self._entries: list[Entry] = []
        self._front = 0

    def __len__(self) -> int:
        return len(self._entries) - self._front

    def add(self, entry: Entry) -> None:
        """File one entry by its rank."""
        insort(self._entries, entry, lo=self._front)

    def open(self, entries: list[Entry], until: Rank, room: int) -> None:
        """Take in what is stored from `opened_to` up to `until`, sorted; at most `room` of it, and
        then the lane is open up to the first entry that it could not take."""
        if len(entries) > room:
            until = _rank_of(entries[room])
            entries = entries[:room]
        self._entries.extend(entries)
        self.opened_to = until

    def close(self, most: int) -> None:
        """Keep this many entries; the others must be opened again."""
        if len(self) > most:
            self.opened_to = _rank_of(self.peek(most))
            del self._entries[self._front + most :]

    def head(self) -> Entry | None:
        """Return the entry of the lowest rank; None if the lane is empty."""
        return self._entries[self._front] if self._front < len(self._entries) else None

    def count_below(self, cursor: Rank) -> int:
        """Return how many entries rank below the cursor."""
        return bisect_left(self._entries, cursor, lo=self._front) - self._front

    def peek(self, index: int) -> Entry:
        """Return the entry at an index from the front."""
        return self._entries[self._front + index]

    def drop(self, count: int) -> None:
        """Take entries off the front."""
        assert count <= len(self), f"dropping {count} of {len(self)}"
        self._front += count
        left = len(self)
        if left == 0 or (self._front >= COMPACT_AT and self._front >= left):
            del self._entries[: self._front]
            self._front = 0


def _rank_of(entry: Entry) -> Rank:
    return Rank(entry.due_ms, entry.partition, entry.offset)
