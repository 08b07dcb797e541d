"""The orders of a batch that are paid, and when: a rule on their numbers, like the batch itself.
Pure.

Each payment cancels its order's time-out. The cashier (cashier.py) and the witness (ledger.py)
share this rule and nothing else.

    every third order is paid; of those in turn
    two   at any time between the start and its due time
    one   within AROUND_MS of its due time, before or after
    one   up to AFTER_MS after its due time

Invariant: the times follow neither the numbers nor the due times.
"""

from dataclasses import dataclass
from typing import Final

from delayd.dev.batch import Batch

PAID_SHARE: Final = 3
"""One in so many orders is paid."""

AROUND_MS: Final = 200
"""Near enough to the due time that cancels meet deliveries under way."""

AFTER_MS: Final = 5_000
BEFORE_FIRST_MS: Final = 1_000
"""Payments begin so long before the first order is due."""

_STRIDE: Final = 7_919
_PLACES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Payments:
    """The payments of a batch. Times are Unix ms."""

    batch: Batch

    @property
    def count(self) -> int:
        """Return how many orders are paid."""
        return -(-self.batch.count // PAID_SHARE)

    @property
    def last_ms(self) -> int:
        """Return a time after which no payment comes."""
        return self.batch.first_due_ms + self.batch.spread_ms + AFTER_MS

    def is_paid(self, number: int) -> bool:
        """Return whether this order is paid, sooner or later."""
        return number % PAID_SHARE == 0

    def at_ms(self, number: int) -> int:
        """Return when this order is paid; it is one of those that are."""
        assert self.is_paid(number), f"order {number} is not paid"
        payment = number // PAID_SHARE
        due_ms = self.batch.due_ms(number)
        place = payment * _STRIDE % _PLACES
        match payment % 4:
            case 0 | 1:
                begin_ms = self.batch.first_due_ms - BEFORE_FIRST_MS
                return begin_ms + (due_ms - begin_ms) * place // _PLACES
            case 2:
                return due_ms - AROUND_MS + 2 * AROUND_MS * place // _PLACES
            case _:
                return due_ms + AFTER_MS * place // _PLACES

    def in_order(self) -> list[int]:
        """Return the numbers of all orders that are paid, by the time of payment."""
        return sorted(range(0, self.batch.count, PAID_SHARE), key=self.at_ms)
