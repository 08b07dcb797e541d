"""What a replica tells others of, and to whom: what it rejected, what is pending, what arrived."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from delayd.node.replica.request_rates import Asking, RequestRates
from delayd.request import Reject
from delayd.runtime.native.packing import Run
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
        """Note what was stored, perhaps of other shards too; called under the lock."""


class Arrivals:
    """Who is told what is stored: a mastership of each shard that this node leads. Under the
    replica's lock."""

    def __init__(self) -> None:
        self.listeners: tuple[ArrivalListener, ...] = ()
        self.soon_count = 0
        """Times that something was stored of which a listener had to be told. Any thread may read
        it."""
        self.rates = RequestRates()

    @property
    def has_listener(self) -> bool:
        """True if a mastership plans by what is stored. Any thread may ask."""
        return bool(self.listeners)

    @property
    def told_ms(self) -> int:
        """The due time beyond which nobody need be told; -1 if nobody listens."""
        return max((listener.told_ms for listener in self.listeners), default=-1)

    def tell(self, entries: Sequence[Entry], piece: Asking | Run) -> None:
        """Tell the listeners, if there are any, what was stored of a piece of the log, and count
        what is asked there of topics with a rate."""
        self.rates.note(piece)
        if self.listeners:
            told_ms = self.told_ms
            self.soon_count += any(entry.due_ms <= told_ms for entry in entries)
        for listener in self.listeners:
            listener.arrived(entries)
