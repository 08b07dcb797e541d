"""What a replica tells others of, and to whom: what it rejected, what is pending, what arrived."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from delayd.request import Reject
from delayd.wheel import Entry
from delayd.wheel.counts import PendingCounts


class Rejected(NamedTuple):
    """A record that will be dead-lettered: for the log."""

    partition: int
    offset: int
    reject: Reject


class Pending(NamedTuple):
    """Messages that are stored, not killed, and not in a slot that the frontier has passed."""

    total: int
    hours: dict[int, int]
    """By hour (hours since 1970) of their due time."""
    topics: dict[str, int]
    """By target."""

    @classmethod
    def of(cls, counts: PendingCounts) -> "Pending":
        """Return what a wheel has counted."""
        hours = {hour: sum(topics.values()) for hour, topics in counts.hours.items()}
        return cls(counts.total, hours, dict(counts.topics))


class ArrivalListener(Protocol):
    """A mastership, which plans by what is stored."""

    @property
    def told_ms(self) -> int:
        """What is due later need not be told; read under the lock."""

    def arrived(self, entries: Iterable[Entry]) -> None:
        """Note what was stored; called under the lock."""
