"""A batch of messages whose every byte follows from the message's number. Pure.

The producer of a batch and the witness that watches it arrive share this rule and nothing else. So
the witness knows which messages are lost or altered without a list of what was sent.

    value    {"order":"<run>-<number, 7 digits>","do":"cancel if unpaid","due_ms":<due>}
    key      <run>-<number>
    headers  shop=<run>, trace=<number>, trace=<due>: a repeated name, so that order counts

Invariant: the due times are spread evenly and shuffled, so that they do not follow the numbers.
"""

import re
from dataclasses import dataclass
from typing import Final

_STRIDE: Final = 618_913  # a prime, so that stepping by it visits each place once

COUNT_MAX: Final = 600_000
"""Below the stride, so that it has no divisor in common with any count."""

_ORDER: Final = re.compile(rb"([0-9a-z]+)-([0-9]{7})(?![0-9])")


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
