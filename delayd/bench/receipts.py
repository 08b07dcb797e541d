"""What a reader received of a load, and what that proves. Pure.

Lateness is the time of receipt minus the due time, of first copies, in ms; of a load with a window
minus the planned time, as the message's place in the buffer has it. A record belongs to a
successor if it was received, and by its `delayd-fired` sent, after the end of the killed master's
process: on one host with one clock a dead process sends nothing.
"""

from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from delayd.bench.load import Load
from delayd.dev.ledger import FirstCopies, nearest_rank


class Faults(NamedTuple):
    """Messages by what is wrong with them."""

    lost: int
    doubled: int
    early: int
    altered: int
    """Records that differ from every message of the load."""


class Planned(NamedTuple):
    """What a record of a load with a window says: its place in the buffer, and when it was to be
    delivered (Unix ms)."""

    source: str
    at_ms: int


class Receipts(FirstCopies):
    """The first copies of a load."""

    def __init__(self, load: Load) -> None:
        super().__init__(load.count)
        self.load = load
        self.seen = 0
        """Messages with a receipt."""
        self.altered = 0
        self._planned_ms = array("q", bytes(8 * load.count if load.window_ms else 0))
        """By number; of a load with a window."""

    def write_down(
        self, received_ms: int, value: bytes | None, fired_ms: int = 0, said: Planned | None = None
    ) -> None:
        """Count one more record; `said` is of a load with a window."""
        number = self.load.number_of(value)
        if number is None or not self._is_as_planned(number, said):
            self.altered += 1
        elif self.note_copy(number, received_ms, fired_ms) == 1:
            self.seen += 1
            if said is not None:
                self._planned_ms[number] = said.at_ms

    def _is_as_planned(self, number: int, said: Planned | None) -> bool:
        if not self.load.window_ms:
            return True
        return said is not None and said.at_ms == self.load.planned_ms(number, said.source)

    def faults(self) -> Faults:
        """Return what is wrong, given that nothing more is to come."""
        return Faults(
            lost=self.copies.count(0),
            doubled=sum(copies > 1 for copies in self.copies),
            early=sum(late_ms < 0 for late_ms in self.latenesses_ms()),
            altered=self.altered,
        )

    def latenesses_ms(self) -> Iterator[int]:
        """Yield the lateness of all that arrived."""
        due_ms = self._planned_ms.__getitem__ if self.load.window_ms else self.load.due_ms
        for number, received_ms in enumerate(self.received_ms):
            if received_ms:
                yield received_ms - due_ms(number)

    def quantiles_ms(self, *per_mille: int) -> list[int]:
        """Return these quantiles of lateness, nearest rank; 1000 is the largest. All are 0 if
        nothing arrived."""
        found = sorted(self.latenesses_ms()) or [0]
        return [nearest_rank(found, each) for each in per_mille]

    def silence_ms(self, since_ms: int, until_ms: int) -> int:
        """Return the longest time without a receipt that began or ended between these."""
        times = sorted({at for at in self.received_ms if at})
        return max(
            (
                later - earlier
                for earlier, later in pairwise(times)
                if later > since_ms and earlier < until_ms
            ),
            default=0,
        )
