"""A load: messages whose every byte follows from their number. Pure.

The sender of a load, its reader and the bare driver share this and nothing else. Values have 300
bytes, and each message two headers of its user.

    value    <due, 13 digits> <number, 9 digits> vvvv...

Each load has a target of its own, so nothing tells one load's messages from another's.

Invariant: within a block, due times do not follow the numbers.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

VALUE_BYTES: Final = 300
USER_HEADERS: Final[tuple[tuple[str, bytes], ...]] = (
    ("tenant", b"acme-4711"),
    ("trace", b"0af7651916cd43dd"),
)
DELIVERED_HEADERS: Final[tuple[tuple[str, bytes], ...]] = (
    *USER_HEADERS,
    ("delayd-due", b"1795257447533"),
    ("delayd-fired", b"1795257447534"),
    ("delayd-source", b"1/123456"),
)
"""For the bare driver: as many and as long as those of a delivered message."""

COUNT_MAX: Final = 100_000_000

_STRIDE: Final = 618_970_019  # a prime above all counts, so that stepping by it visits each place
_KEYS: Final = 10_000
_NUMBER: Final = slice(14, 23)
_PADDING: Final = b"v" * (VALUE_BYTES - 24)


@dataclass(frozen=True, slots=True)
class Load:
    """`count` messages to `target`, due at an even rate from `first_due_ms` on, for `spread_ms`.

    In blocks of `block` messages they are due in another order than that of their numbers; in
    blocks of 1, in that order. With `window_ms` each asks to be delivered in a window of that
    length, at its planned time.
    """

    target: str
    count: int
    first_due_ms: int
    spread_ms: int
    block: int = 1
    window_ms: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.count <= COUNT_MAX, f"a load of {self.count} messages"
        assert 0 < self.block <= COUNT_MAX, f"a block of {self.block} messages"

    def due_ms(self, number: int) -> int:
        """Return when it is due, Unix ms."""
        first = number - number % self.block
        place = first + (number - first) * _STRIDE % self.block
        return self.first_due_ms + place * self.spread_ms // self.count

    def planned_ms(self, number: int, source: str) -> int:
        """Return when it is to be delivered if this is its place in the buffer, Unix ms.

        Source: docs/reference/requests.md, "Wishes"; it shares no code with delayd's own.
        """
        share = int(sha256(source.encode()).hexdigest()[:8], 16)
        return self.due_ms(number) + self.window_ms * share // 2**32

    def value(self, number: int) -> bytes:
        """Return its value."""
        return b"%013d %09d " % (self.due_ms(number), number) + _PADDING

    def key(self, number: int) -> bytes:
        """Return its record key."""
        return b"key-%d" % (number % _KEYS)

    def number_of(self, value: bytes | None) -> int | None:
        """Return the number of a message; None if it is not of the load, or was altered."""
        digits = (value or b"")[_NUMBER]
        number = int(digits) if digits.isdigit() else self.count
        return number if number < self.count and value == self.value(number) else None

    def by_due(self) -> list[tuple[int, int]]:
        """Return (due, number) of all, the earliest first."""
        return sorted((self.due_ms(number), number) for number in range(self.count))

    @property
    def end_ms(self) -> int:
        """Return a time after which nothing is due, or planned."""
        blocks = -(-self.count // self.block)
        spread_ms = blocks * self.block * self.spread_ms // self.count
        return self.first_due_ms + spread_ms + self.window_ms


def shuffled(target: str, count: int, first_due_ms: int, spread_ms: int) -> Load:
    """Return a load in one block."""
    return Load(target, count, first_due_ms, spread_ms, block=count)
