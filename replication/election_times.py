"""The times of an election: how often it asks, what a lease is good for, which node goes first.

Pure values and two tables. Not here: what the election does when a time has come (`election.py`).

Invariant: a deadline counts from when the grant or keepalive was ordered, which is not after it was
sent, and uses part of the TTL that was granted. A late answer moves it no further.

Source: docs/design/election.md, "Lease and deadline", "Keepalive" and "Cool-down".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from replication.election_facts import Ended, ResignReason

DEADLINE_PERCENT = 80
"""The part of the TTL that a master uses: the rest covers clocks that run at different rates."""

KEEP_ALIVES_PER_TTL = 3
"""One may fail, and its repetition be slow, before the deadline comes."""

TURN_POLLS = 2
"""One poll sees the key absent, and within another the campaign is over."""


@dataclass(frozen=True, slots=True)
class ElectionTimes:
    """The settings of an election."""

    lease_ttl_s: int = 3
    """The TTL asked of etcd; the TTL that it grants counts."""
    poll_ms: int = 150
    """How often a follower reads the leader key: part of every failover's duration."""
    stall_ms: int = 10_000
    """A delivery loop without a sign of life for this long counts as stuck."""
    behind_polls: int = 10
    """For how many poll intervals a node that is far behind lets others campaign first."""
    yield_polls: int = 0
    """How many a node does so that is not: in a rolling update the nodes restarted last yield."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease of this node, and what it is good for; times are monotonic ms."""

    id: int
    deadline_ms: int
    """Past it nothing is begun under the lease, whatever etcd says."""
    keep_alive_ms: int
    """When the next keepalive is due."""

    @classmethod
    def since(cls, ordered_ms: int, lease_id: int, ttl_ms: int) -> "HeldLease":
        """Return the lease that a call ordered then was granted, or kept alive, for this TTL."""
        return cls(
            lease_id,
            ordered_ms + ttl_ms * DEADLINE_PERCENT // 100,
            ordered_ms + ttl_ms // KEEP_ALIVES_PER_TTL,
        )


COOL_DOWN_POLLS: Mapping[ResignReason, int] = MappingProxyType(
    {
        # Another node sees the key absent first.
        ResignReason.LEASE_LOST: 2,
        ResignReason.LEASE_EXPIRED: 2,
        ResignReason.HIGHER_TERM: 2,
        # Delivery may well fail again here; a lone node still tries after 3 s.
        ResignReason.DELIVERY_STALLED: 20,
        ResignReason.DELIVERY_FAILED: 20,
        # The other may have died since it said so.
        ResignReason.DISK_SHORT: 20,
        # These last until a person or a time server has done something: 9 s, 30 s.
        ResignReason.CLOCK_DRIFT: 60,
        ResignReason.DISK_FAILED: 200,
        # The one that should lead may have died, and others may be behind it.
        ResignReason.PLACED: 20,
        ResignReason.SHUTDOWN: 0,
    }
)
"""For how many poll intervals a node does not campaign after each reason."""

RESIGNED_FOR: Mapping[Ended, ResignReason | None] = MappingProxyType(
    {
        Ended.ASKED: None,
        # The node that fenced has a later term, not read yet.
        Ended.FENCED: ResignReason.HIGHER_TERM,
        Ended.HIGHER_TERM: ResignReason.HIGHER_TERM,
        Ended.LEADERSHIP_LOST: ResignReason.LEASE_LOST,
        Ended.CLOCK_DRIFT: ResignReason.CLOCK_DRIFT,
        Ended.FAILED: ResignReason.DELIVERY_FAILED,
    }
)
"""The meaning of each end of delivery for the election; None: it asked for that end."""
