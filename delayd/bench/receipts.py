"""What a reader received of a load, and what that proves. Pure.

Lateness is the time of receipt minus the due time, of first copies, in ms. A record belongs to a
successor if it was received, and by its `delayd-fired` sent, after the end of the killed master's
process: on one host with one clock a dead process sends nothing.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from delayd.bench.load import Load
from delayd.dev.ledger import nearest_rank, successor_times

COPIES_MAX: Final = 255


class Faults(NamedTuple):
    """Messages by what is wrong with them."""

    lost: int
    doubled: int
    early: int
    altered: int
    """Records that differ from every message of the load."""


@dataclass(slots=True)
class Receipts:
    """By number: when the first copy was received and fired (0: never, unknown), and how often."""

    load: Load
    received_ms: "array[int]" = field(init=False)
    fired_ms: "array[int]" = field(init=False)
    copies: bytearray = field(init=False)
    seen: int = 0
    """Messages with a receipt."""
    altered: int = 0

    def __post_init__(self) -> None:
        self.received_ms = array("q", bytes(8 * self.load.count))
        self.fired_ms = array("q", bytes(8 * self.load.count))
        self.copies = bytearray(self.load.count)

    def write_down(self, received_ms: int, value: bytes | None, fired_ms: int = 0) -> None:
        """Count one more record."""
        number = self.load.number_of(value)
        if number is None:
            self.altered += 1
            return
        copies = self.copies[number] = min(self.copies[number] + 1, COPIES_MAX)
        if copies == 1:
            self.seen += 1
            self.received_ms[number] = received_ms
            self.fired_ms[number] = fired_ms

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
        due_ms = self.load.due_ms
        for number, received_ms in enumerate(self.received_ms):
            if received_ms:
                yield received_ms - due_ms(number)

    def quantiles_ms(self, *per_mille: int) -> list[int]:
        """Return these quantiles of lateness, nearest rank; 1000 is the largest. All are 0 if
        nothing arrived."""
        found = sorted(self.latenesses_ms()) or [0]
        return [nearest_rank(found, each) for each in per_mille]

    def successor_times(self, gone_ms: int) -> tuple[int | None, int | None]:
        """Return when a successor's first record was received, and its first one in time."""
        return successor_times(gone_ms, self.load.due_ms, self.received_ms, self.fired_ms)

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
