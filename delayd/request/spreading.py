"""Where in its window a message is delivered: a function of its name alone. Pure.

    planned = asked + floor(window * n / 2**32)
    n       = the first four bytes of SHA-256(name), as an unsigned number, big endian
    name    = the id, else the source of the user's own request; in UTF-8

So every replica, and every replay, plans alike, and a crowd that is due at one time is spread
evenly.

Source: docs/design/wishes.md.
"""

from hashlib import sha256
from typing import Final

NUMBER_BYTES: Final = 4


def planned_ms_of(asked_due_ms: int, window_ms: int | None, name: str) -> int:
    """Return the planned due time (Unix ms) of a message; `name` is its id, else its origin."""
    if window_ms is None:
        return asked_due_ms
    number = int.from_bytes(sha256(name.encode()).digest()[:NUMBER_BYTES], "big")
    return asked_due_ms + (window_ms * number >> 8 * NUMBER_BYTES)
