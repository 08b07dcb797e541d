"""One lane's queue of a master's agenda: what is stored, opened and not yet delivered."""

from bisect import bisect_left, insort
from collections.abc import Iterable

from replication.entry import Entry
from replication.rank import Rank

COMPACT_AT = 4096
"""Delivered entries at the front of the list before they are cut off (keeps that amortised)."""


class Lane:
    """A sorted list with a moving front, and the slot up to which the wheel has been opened."""

    def __init__(self, opened_to: int) -> None:
        self.opened_to = opened_to
        """Slots below this one have been opened for this lane (an exclusive bound)."""
        self._entries: list[Entry] = []
        self._front = 0

    def __len__(self) -> int:
        return len(self._entries) - self._front

    def add(self, entry: Entry) -> None:
        """File one entry by its rank."""
        insort(self._entries, entry, lo=self._front)

    def extend(self, entries: Iterable[Entry]) -> None:
        """File the entries of a slot: sorted, and above all that is there."""
        self._entries.extend(entries)

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
