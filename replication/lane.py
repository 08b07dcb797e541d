"""One lane's queue of a master's delivery queue: what is stored, opened and not yet delivered."""

from bisect import bisect_left, insort

from replication.entry import Entry
from replication.rank import Rank

COMPACT_AT = 256
"""Delivered entries at the front of the list before they are cut off, if they are half of it (keeps
that amortised). Every lane may have so many that nobody counts."""


class Lane:
    """A sorted list with a moving front, and the rank up to which the wheel has been opened."""

    def __init__(self, opened_to: Rank) -> None:
        self.opened_to = opened_to
        """Everything of the lane that is stored below this rank, and not done, is known to it (an
        exclusive bound)."""
        self._entries: list[Entry] = []
        self._front = 0

    def __len__(self) -> int:
        return len(self._entries) - self._front

    def add(self, entry: Entry) -> None:
        """File one entry by its rank."""
        insort(self._entries, entry, lo=self._front)

    def open(self, entries: list[Entry], until: Rank, room: int) -> None:
        """Take in what is stored from `opened_to` on, sorted, up to `until`; at most `room` of it,
        and then the lane is open up to the first that it could not take."""
        if len(entries) > room:
            until = _rank_of(entries[room])
            entries = entries[:room]
        self._entries.extend(entries)
        self.opened_to = until

    def close(self, most: int) -> None:
        """Forget all but this many entries; they must be opened again."""
        if len(self) > most:
            self.opened_to = _rank_of(self.peek(most))
            del self._entries[self._front + most :]

    def head(self) -> Entry | None:
        """The entry of the lowest rank."""
        return self._entries[self._front] if self._front < len(self._entries) else None

    def count_below(self, cursor: Rank) -> int:
        """How many entries rank below the cursor."""
        return bisect_left(self._entries, cursor, lo=self._front) - self._front

    def peek(self, index: int) -> Entry:
        """The entry at an index from the front."""
        return self._entries[self._front + index]

    def drop(self, count: int) -> None:
        """Take entries off the front."""
        assert count <= len(self), f"dropping {count} of {len(self)}"
        self._front += count
        if self._front >= COMPACT_AT and self._front * 2 >= len(self._entries):
            del self._entries[: self._front]
            self._front = 0


def _rank_of(entry: Entry) -> Rank:
    return Rank(entry.due_ms, entry.partition, entry.offset)
