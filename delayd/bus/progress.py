"""Whether a reader takes what there is, asked of the partitions' ends.

After its brokers were away, or refused it for a while, librdkafka now and then fetches a partition
never again, without a word and while its other requests are answered (librdkafka issues 4916 and
5153). Only a new client reads on.

Not here: the request for the ends; what to do about it (`delayd.bus.guarded`,
`delayd.node.ingest_watch`).
"""

from collections.abc import Mapping
from typing import Final

from delayd.errors import ConsumerError

PROGRESS_CHECK_MS: Final = 1_000
"""How often an idle consumer asks for the ends of its partitions."""

STALL_MS: Final = 3_000
"""How long a position may stand still before an end that is beyond it."""


class StalledError(ConsumerError):
    """A reader does not read on, though there is something to read."""


class Progress:
    """When to ask for one topic's ends, and what the answers mean. Times are monotonic."""

    def __init__(self, topic: str, now_ms: int, stall_ms: int = STALL_MS) -> None:
        self._topic = topic
        self._stall_ms = stall_ms
        self._check_ms = now_ms + PROGRESS_CHECK_MS
        self._stands: dict[int, tuple[int, int]] = {}
        """By partition behind its end: where it stands, and since when."""

    def is_due(self, now_ms: int) -> bool:
        """Return whether it is time to ask."""
        return now_ms >= self._check_ms

    def put_off(self, now_ms: int) -> None:
        """Note that a consumer has asked brokers, whatever they answer."""
        self._check_ms = now_ms + PROGRESS_CHECK_MS

    def note(
        self, positions: Mapping[int, int], ends: Mapping[int, int], now_ms: int
    ) -> StalledError | None:
        """Take the ends that were answered; return the error if a reader stands still."""
        stands = {}
        for partition, end in ends.items():
            if (place := positions[partition]) < end:
                before, since_ms = self._stands.get(partition, (place, now_ms))
                stands[partition] = (place, since_ms if before == place else now_ms)
        self._stands = stands
        stalled = [p for p, (_, since_ms) in stands.items() if now_ms - since_ms >= self._stall_ms]
        if not stalled:
            return None
        where = ", ".join(f"{p} at {positions[p]} of {ends[p]}" for p in sorted(stalled))
        return StalledError(f"{self._topic} is not read on: partition {where}")
