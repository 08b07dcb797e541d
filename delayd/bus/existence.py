"""A check that the partitions that a consumer reads still exist; no driver makes it by itself.

Not here: the request for metadata.
"""

from collections.abc import Iterable
from typing import Final

from delayd.errors import ConsumerError

EXISTENCE_CHECK_MS: Final = 5_000
"""How often an idle consumer asks whether its partitions still exist."""

EXISTENCE_RECHECK_MS: Final = 1_000
"""How long metadata may deny a partition before it counts as gone: a new topic shows late."""


class Existence:
    """When to ask about one topic's partitions, and what the answers mean. Times are monotonic."""

    def __init__(self, topic: str, now_ms: int) -> None:
        self._topic = topic
        self._check_ms = now_ms
        self._denied_since_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Return whether it is time to ask."""
        return now_ms >= self._check_ms

    def put_off(self, now_ms: int) -> None:
        """Note that a consumer has asked brokers, whatever they answer."""
        self._check_ms = now_ms + EXISTENCE_CHECK_MS

    def note(self, missing: Iterable[int], now_ms: int) -> ConsumerError | None:
        """Take an answer; return the error if partitions have been missing for too long."""
        numbers = sorted(missing)
        if not numbers:
            self._denied_since_ms = None
            return None
        if self._denied_since_ms is None:
            self._denied_since_ms = now_ms
        if now_ms - self._denied_since_ms >= EXISTENCE_RECHECK_MS:
            return ConsumerError(
                f"{self._topic} has no partition {', '.join(map(str, numbers))}",
                remedy="was the topic deleted, or its name changed?",
            )
        self._check_ms = now_ms + EXISTENCE_RECHECK_MS
        return None
