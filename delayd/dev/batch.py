"""A batch of messages whose every byte follows from the message's number. Pure.

The producer of a batch and the witness that watches it arrive share this rule and nothing else. So
the witness knows which messages are lost or altered without a list of what was sent.

    value    {"order":"<run>-<number, 7 digits>","do":"cancel if unpaid","due_ms":<due>}
    key      <run>-<number>
    headers  shop=<run>, trace=<number>, trace=<due>: a repeated name, so that order counts

A batch may be one of orders, some of which are paid: a rule on the numbers, too. Each payment
cancels its order's time-out. The cashier (cashier.py) and the witness share this rule and nothing
else.

    every third order is paid; of those in turn
    two   at any time between the start and its due time
    one   within AROUND_MS of its due time, before or after
    one   up to AFTER_MS after its due time

Invariants: the due times are spread evenly and shuffled, so that they do not follow the numbers;
the times of payment follow neither the numbers nor the due times.
"""

import re
from dataclasses import dataclass
from typing import Final

_STRIDE: Final = 618_913  # a prime, so that stepping by it visits each place once

COUNT_MAX: Final = 600_000
"""Below the stride, so that it has no divisor in common with any count."""

_ORDER: Final = re.compile(rb"([0-9a-z]+)-([0-9]{7})(?![0-9])")


PAID_SHARE: Final = 3
"""One in so many orders is paid."""

AROUND_MS: Final = 200
"""Near enough to the due time that cancels meet deliveries under way."""

AFTER_MS: Final = 5_000
BEFORE_FIRST_MS: Final = 1_000
"""Payments begin so long before the first order is due."""

_PAYMENT_STRIDE: Final = 7_919
_PLACES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Batch:
    """`count` messages, the first due at `first_due_ms` (Unix ms), all within `spread_ms` of it.

    They go round the `topics`. `run` is of digits and small letters, new for each batch.
    """

    run: str
    topics: tuple[str, ...]
    count: int
    first_due_ms: int
    spread_ms: int

    def __post_init__(self) -> None:
        assert 0 < self.count <= COUNT_MAX, f"a batch of {self.count} messages"
        assert re.fullmatch("[0-9a-z]+", self.run), f"a run called {self.run!r}"

    def topic(self, number: int) -> str:
        """Return the topic that the message is delivered to."""
        return self.topics[number % len(self.topics)]

    def due_ms(self, number: int) -> int:
        """Return when it is due, Unix ms."""
        return self.first_due_ms + number * _STRIDE % self.count * self.spread_ms // self.count

    def key(self, number: int) -> bytes:
        """Return its record key, on the buffer and on the target."""
        return f"{self.run}-{number:07}".encode()

    def value(self, number: int) -> bytes:
        """Return its value."""
        return (
            f'{{"order":"{self.run}-{number:07}","do":"cancel if unpaid",'
            f'"due_ms":{self.due_ms(number)}}}'
        ).encode()

    def headers(self, number: int) -> list[tuple[str, bytes]]:
        """Return its own headers, in order."""
        trace = "trace"
        return [
            ("shop", self.run.encode()),
            (trace, str(number).encode()),
            (trace, str(self.due_ms(number)).encode()),
        ]

    def number_of(self, key: bytes | None, value: bytes | None) -> int | None:
        """Return the number of a message, read from its value or, if that is spoilt, from its
        key; None if it is not of the batch."""
        for content in (value, key):
            found = _ORDER.search(content or b"")
            if found is not None and found[1] == self.run.encode() and int(found[2]) < self.count:
                return int(found[2])
        return None


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
        place = payment * _PAYMENT_STRIDE % _PLACES
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
