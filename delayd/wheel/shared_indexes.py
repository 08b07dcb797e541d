"""The indexes of a wheel's slots, each shared by all who use it at a time.

A node that leads several shards opens each slot once for each of them: its file is scanned once.

Not thread safe: part of the wheel.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final
from weakref import WeakValueDictionary

from delayd.wheel.reader import Reader
from delayd.wheel.segment import Slot
from delayd.wheel.slot_index import SlotIndex

KEPT: Final = 4
"""Small indexes that are kept for the next shard: it opens the slot a moment later."""
SMALL_FRAMES: Final = 10_000
"""Larger ones are kept by those who use them only. One of so many takes 200 KB."""


class SharedIndexes:
    """Of one wheel."""

    def __init__(self, reader: Reader, slots: Mapping[int, Slot]) -> None:
        """`slots`: of the wheel, by number."""
        self._reader = reader
        self._slots = slots
        self._used: WeakValueDictionary[int, SlotIndex] = WeakValueDictionary()
        """By slot; as long as anybody has it."""
        self._kept: deque[SlotIndex] = deque(maxlen=KEPT)

    def of(self, number: int, *, keeps: bool) -> SlotIndex | None:
        """Return the index of a slot, as far as others have filled it; None if the slot holds
        nothing. `keeps`: somebody else will want it a moment later."""
        slot = self._slots.get(number)
        if slot is None:
            return None
        index = self._used.get(number)
        if index is None or index.slot is not slot or index.is_broken:
            index = self._used[number] = SlotIndex(self._reader, slot)
            if keeps and slot.frames <= SMALL_FRAMES:
                self._kept.append(index)
        return index
