"""The hours that have a file: which of them are far, near, due to be split, or whole.

    far      begins more than the horizon after the latest time known; new frames go to its file
    near     all others: its file does not grow any more, new frames go to their slots
    due      near by the node's clock, not only by an append time; to be split in order
    whole    its frames can be read slot by slot: it is *sparse*, and indexed (`near_hours.py`)

An hour of many frames is split into its slots instead, and has no file then.
Source: docs/design/storage.md, "Hour files".
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from delayd.wheel.layout import HOUR_SLOTS, hour_of
from delayd.wheel.segment import HourFile
from replication.rank import SLOT_MS

HORIZON_S = 2 * 3600
"""An hour that begins later than this is far."""
SPARSE_BYTES_MAX = 32 * 1024 * 1024
"""An hour file of up to so many bytes is not split: its seconds would have 9 KiB each, and a file
takes pages of 4 KiB."""


class Hours:
    """Not thread safe: part of the wheel."""

    def __init__(
        self, files: Iterable[HourFile], horizon_s: int, sparse_bytes_max: int | None = None
    ) -> None:
        self.files = {hour.number: hour for hour in files}
        """By hour."""
        self.numbers = sorted(self.files)
        self._partial = self.numbers.copy()
        """Those that are not whole, ascending."""
        self._horizon_s = horizon_s
        self._sparse_bytes_max = SPARSE_BYTES_MAX if sparse_bytes_max is None else sparse_bytes_max
        self.near_slot = 0
        """Messages of this slot and beyond go to the file of their hour."""
        self._due_slot = 0
        """Hours that begin before it are due: to be split, or indexed."""
        self.holds_splits = False
        self.lacks_room = False
        """The disk has no room for splits."""

    def add(self, hour: HourFile) -> None:
        """Add a new hour file."""
        self.files[hour.number] = hour
        insort(self.numbers, hour.number)
        insort(self._partial, hour.number)

    def remove(self, hour: HourFile) -> None:
        """Remove an hour that has no file any more."""
        del self.files[hour.number]
        _remove(self.numbers, hour.number)
        _remove(self._partial, hour.number)

    def make_whole(self, hour: HourFile) -> None:
        """Note that all of it is indexed."""
        _remove(self._partial, hour.number)

    def believe(self, append_ms: int) -> None:
        """Make hours near within the horizon of this append time. Makes none due."""
        self.make_near(hour_of(append_ms // SLOT_MS + self._horizon_s))

    def tell(self, now_ms: int) -> None:
        """Make hours near and due within the horizon of this time, which the node's clock gives."""
        self.believe(now_ms)
        last = hour_of(now_ms // SLOT_MS + self._horizon_s)
        self._due_slot = max(self._due_slot, (last + 1) * HOUR_SLOTS)

    def make_near(self, hour: int) -> None:
        """Make all hours up to this one near: an hour that has slots must be."""
        self.near_slot = max(self.near_slot, (hour + 1) * HOUR_SLOTS)

    @property
    def whole_below(self) -> int | None:
        """The slot below which all frames can be read slot by slot; None: all can."""
        first = self._partial[:1]  # read once: any thread may ask
        return first[0] * HOUR_SLOTS if first else None

    @property
    def first_due(self) -> HourFile | None:
        """The first hour to be split or indexed, unless splits are held or lack room."""
        if not self._partial or self._partial[0] * HOUR_SLOTS >= self._due_slot:
            return None
        first = self.files[self._partial[0]]
        waits = self.holds_splits or self.lacks_room
        return None if waits and not self.is_sparse(first) else first

    def is_sparse(self, hour: HourFile) -> bool:
        """Return whether it is to be indexed, not split; does not change once it is near."""
        return hour.start == 0 and hour.end <= self._sparse_bytes_max

    def hold_splits(self) -> bool:
        """Hold all splits until `holds_splits` is reset. Return False, and hold nothing, while a
        split is due."""
        if not self.holds_splits:
            due = self._partial[: bisect_left(self._partial, self._due_slot // HOUR_SLOTS)]
            self.holds_splits = all(self.is_sparse(self.files[hour]) for hour in due)
        return self.holds_splits


def _remove(numbers: list[int], number: int) -> None:
    at = bisect_left(numbers, number)
    if at < len(numbers) and numbers[at] == number:
        del numbers[at]
