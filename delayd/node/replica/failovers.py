"""The last changes of master, as the frontier topic shows them to every node.

Not here: an audit's failovers, which are of all that Kafka still has
(`delayd.audit.judging.frontiers`).

Invariants: at most FAILOVERS_MAX, the newest; only changes that this process has seen; a master
that takes over from itself, after a failed step, is none.
"""

from dataclasses import dataclass, replace
from typing import Final

from delayd.cluster.frontier_log import SeenFrontier

FAILOVERS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Failover:
    """One change of master. Times are append times of frontier records, Unix ms."""

    term: int
    """The one that it began."""
    former: str
    """Owner of the term before: node and life."""
    owner: str
    last_ms: int
    """Last step of the former master."""
    begun_ms: int
    """First step of the new one, which delivers nothing."""
    shard: int = 0
    gap_ms: int | None = None
    """How late the first messages were that the new master delivered, at most the time between the
    two masters' deliveries: what was idle is no gap. None: this node did not deliver them, or
    nothing was due yet."""


class Failovers:
    """The delivery thread writes, any thread reads `newest`."""

    def __init__(self) -> None:
        self.newest: tuple[Failover, ...] = ()
        """Oldest first; replaced as a whole."""
        self._last: dict[int, SeenFrontier] = {}
        """By shard."""

    def note(self, seen: SeenFrontier) -> None:
        """Note the next frontier record of a shard."""
        shard = seen.record.frontier.shard
        last, self._last[shard] = self._last.get(shard), seen
        if last is None or "/" not in last.record.owner:
            return  # No node has led before: a command wrote that record.
        record = seen.record
        if record.frontier.term == last.record.frontier.term or record.owner == last.record.owner:
            return
        found = Failover(
            record.frontier.term,
            last.record.owner,
            record.owner,
            last.append_ms,
            seen.append_ms,
            shard,
        )
        self.newest = (*self.newest, found)[-FAILOVERS_MAX:]

    def delivered_first(self, shard: int, term: int, late_ms: int, at_ms: int) -> None:
        """Note that this node's first messages of a shard's term were so late when they were
        delivered, by the broker's clock."""
        self.newest = tuple(
            replace(each, gap_ms=max(0, min(late_ms, at_ms - each.last_ms)))
            if (each.shard, each.term) == (shard, term)
            else each
            for each in self.newest
        )
