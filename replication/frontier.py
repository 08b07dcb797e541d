"""The frontier: how far a shard has been delivered, as one value that only moves forward.

    Done(K, O) = { m : rank(m) < K[lane(m)] and offset(m) < O[partition(m)] }

is exactly the set of messages that have been delivered, continued, expired or found killed. The
master commits the frontier in the same transaction as the deliveries that it covers, so the last
committed frontier says exactly what is left to do.

Invariants: every component of (K, O, R) moves forward only, and the term never decreases.
Source: docs/design/frontier.md.
"""

from dataclasses import dataclass, replace
from math import lcm

from replication.rank import START, Rank

ALL_SHARDS = -1
"""The number of no shard: of a joint frontier (`replication.shards`)."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Cursor K by lane, offsets O and own writes R by buffer partition, term and step."""

    shard: int
    """ALL_SHARDS of a joint frontier."""
    cursors: tuple[Rank, ...]
    """K: exclusive bound of the delivered ranks, by lane; in a joint one by shard and lane."""
    offsets: tuple[int, ...]
    """O: 1 + the last buffer offset that a step has taken into account, by partition."""
    own_writes: tuple[int, ...]
    """R: the highest offset that the shard's own steps wrote, by partition; -1 for none."""
    term: int
    step: int
    shards: int = 1
    """How many the cluster has."""

    def covers(self, lane: int, rank: Rank) -> bool:
        """Return True if the message is in Done(K, O)."""
        if self.shard == ALL_SHARDS:
            lane += rank.partition % self.shards * (len(self.cursors) // self.shards)
        return rank < self.cursors[lane] and rank.offset < self.offsets[rank.partition]

    def owns(self, partition: int) -> bool:
        """Return True if messages of this partition of the buffer are its own."""
        return self.shard == ALL_SHARDS or partition % self.shards == self.shard

    def cursors_of(self, partition: int) -> tuple[Rank, ...]:
        """Return K by lane, for messages of this partition."""
        if self.shard != ALL_SHARDS:
            return self.cursors
        lanes = len(self.cursors) // self.shards
        first = partition % self.shards * lanes
        return self.cursors[first : first + lanes]

    def cursor_at(self, lane: int, partition: int) -> int:
        """Return which of `cursors` is K of a lane, for messages of this partition."""
        if self.shard != ALL_SHARDS:
            return lane
        return partition % self.shards * (len(self.cursors) // self.shards) + lane

    @property
    def lowest_cursor(self) -> Rank:
        """The cursor that people see: the minimum over the lanes."""
        return min(self.cursors)

    @property
    def highest_cursor(self) -> Rank:
        """The cursor of the lane that is furthest."""
        return max(self.cursors)

    def reached_by(self, offsets: tuple[int, ...]) -> bool:
        """Return True if a node that ingested up to `offsets` has seen all that this one covers."""
        return all(own >= needed for own, needed in zip(offsets, self.offsets, strict=True))

    def is_within(self, other: "Frontier") -> bool:
        """Return True if no component of (K, O, R) is beyond the other's: then the other covers
        whatever this one covers."""
        return (
            self._stands_within(other)
            and all(o <= q for o, q in zip(self.offsets, other.offsets, strict=True))
            and all(r <= s for r, s in zip(self.own_writes, other.own_writes, strict=True))
        )

    def _stands_within(self, other: "Frontier") -> bool:
        """Return True if no K is beyond the other's; of joint ones by partition, which may have
        been shared out among more or fewer shards."""
        if (self.shard, self.shards) == (other.shard, other.shards):
            return all(k <= j for k, j in zip(self.cursors, other.cursors, strict=True))
        if not (self._is_of_all and other._is_of_all):
            return False
        # Partitions that are a multiple of both numbers apart have the same shards in both.
        return all(
            k <= j
            for partition in range(min(lcm(self.shards, other.shards), len(self.offsets)))
            for k, j in zip(self.cursors_of(partition), other.cursors_of(partition), strict=True)
        )

    @property
    def _is_of_all(self) -> bool:
        return self.shard == ALL_SHARDS or (self.shard, self.shards) == (0, 1)

    def precedes(self, other: "Frontier") -> bool:
        """Return True if `other` may follow: no component lower, and a higher step."""
        return self.term <= other.term and self.step < other.step and self.is_within(other)


def first_frontier(shard: int, partitions: int, lanes: int) -> Frontier:
    """Return the frontier of a cluster that has just been initialised: nothing is done."""
    return Frontier(
        shard=shard,
        cursors=(START,) * lanes,
        offsets=(0,) * partitions,
        own_writes=(-1,) * partitions,
        term=0,
        step=0,
    )


def stand_still(last: Frontier) -> Frontier:
    """Return what a step writes that only renews the broker's bound: only its number moves."""
    return replace(last, step=last.step + 1)


def begin_term(last: Frontier) -> Frontier:
    """Return what a master's first step writes: the next term, and nothing else moves.

    Source: docs/design/frontier.md, "Term".
    """
    return replace(last, term=last.term + 1, step=last.step + 1)
