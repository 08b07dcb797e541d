"""The states, facts and orders of an election: its whole vocabulary, frozen.

Facts (`Event`) are in the past tense and carry `now_ms`, the monotonic time of their discovery.
Orders (`Effect`) are imperatives. Not here: which order follows from which fact (`election.py`).

Source: docs/design/election.md, "Facts and orders".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """The role of the node in this election."""

    FOLLOWER = "follower"
    CAMPAIGNING = "campaigning"
    MASTER = "master"
    ALONE = "alone"
    """A master whose lease may have run out: etcd does not answer. It goes on delivering."""
    RECLAIMING = "reclaiming"
    """A master whose lease or key is gone, as etcd says. It campaigns anew while it delivers."""
    RESIGNING = "resigning"
    STOPPED = "stopped"


LEADING = (State.MASTER, State.ALONE, State.RECLAIMING)
"""Delivery is started, and not asked to stop."""


class ResignReason(Enum):
    """Why a master stopped; the slug stands in logs and in the metrics."""

    LEASE_LOST = "lease-lost"
    """etcd says that the lease is dead, or that the leader key is no longer this leadership's."""
    LEASE_EXPIRED = "lease-expired"
    """The own deadline passed before a keepalive succeeded."""
    HIGHER_TERM = "higher-term"
    CLOCK_DRIFT = "clock-drift"
    DELIVERY_STALLED = "delivery-stalled"
    DELIVERY_FAILED = "delivery-failed"
    DISK_FAILED = "disk-failed"
    DISK_SHORT = "disk-short"
    """Another node takes in what this one has no room for."""
    PLACED = "placed"
    """Another node should lead this shard."""
    SHUTDOWN = "shutdown"


class Ended(Enum):
    """How delivery came to rest (`leadership_session.py`)."""

    ASKED = "asked"
    """The grant was withdrawn or ran out."""
    FENCED = "fenced"
    """A successor took the transactional id."""
    HIGHER_TERM = "higher-term"
    """A successor's term was read."""
    LEADERSHIP_LOST = "leadership-lost"
    """etcd refused this node's progress."""
    CLOCK_DRIFT = "clock-drift"
    FAILED = "failed"
    """Delivery could not get on, or died: another node may try."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The content of the leader key. The nonce tells two lives of a node apart, the lease two
    campaigns of one life; the create-revision guards the mirrored cursor."""

    nonce: str
    lease_id: int
    create_revision: int


# Facts


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed; useful at `Election.wake_ms`."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class LeaderRead:
    """Answers PollLeader and Depose, by a linearizable read: the holder of the key, None if it is
    absent."""

    now_ms: int
    leader: Leader | None


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """Answers GrantLease, with the TTL that was granted."""

    now_ms: int
    lease_id: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class CampaignAnswered:
    """Answers Campaign: the holder of the key now."""

    now_ms: int
    leader: Leader


@dataclass(frozen=True, slots=True)
class LeaseKept:
    """Answers KeepAlive, with the TTL that runs now."""

    now_ms: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class LeaseFoundDead:
    """Answers KeepAlive: etcd no longer knows the lease."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class CallFailed:
    """Answers any call: it failed, or took too long, and what it did is unknown."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class DeliveryProgressed:
    """The heartbeat of the delivery loop, takeovers included."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class DeliveryStopped:
    """Delivery is at rest and writes no more, asked or by itself."""

    now_ms: int
    ended: Ended


@dataclass(frozen=True, slots=True)
class FaultFound:
    """This node must not be master now, for a reason other than its lease."""

    now_ms: int
    reason: ResignReason


@dataclass(frozen=True, slots=True)
class TurnChanged:
    """For how long the node lets others campaign first is another."""

    now_ms: int
    behind: bool
    """Is it far behind the buffer?"""
    turns: int = 0
    """Of how many others that should lead rather than this node (`placement.py`)."""


@dataclass(frozen=True, slots=True)
class LeaderFoundDead:
    """The process that holds the leader key under this lease is taken for dead (`pulse.py`)."""

    now_ms: int
    lease_id: int


@dataclass(frozen=True, slots=True)
class LeaderParted:
    """The holder of the leader key said that it has given its lease back."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """The process is to end."""

    now_ms: int


Event = (
    Ticked
    | LeaderRead
    | LeaseGranted
    | CampaignAnswered
    | LeaseKept
    | LeaseFoundDead
    | CallFailed
    | DeliveryProgressed
    | DeliveryStopped
    | FaultFound
    | TurnChanged
    | LeaderFoundDead
    | LeaderParted
    | ShutdownRequested
)


# Orders


@dataclass(frozen=True, slots=True)
class PollLeader:
    """Read the leader key; answer LeaderRead."""


@dataclass(frozen=True, slots=True)
class Depose:
    """End another node's lease, and so the leader key if that one still holds it; then read the
    key and answer LeaderRead."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Ask for a lease; answer LeaseGranted."""

    ttl_s: int


@dataclass(frozen=True, slots=True)
class Campaign:
    """Create the leader key if absent, with this node's nonce and this lease in its value; answer
    CampaignAnswered."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Renew the lease; answer LeaseKept or LeaseFoundDead."""

    lease_id: int


@dataclass(frozen=True, slots=True)
class StartDelivery:
    """Take over and deliver, never at or past the deadline (monotonic ms)."""

    leader: Leader
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class ExtendDeadline:
    """Deliver up to this deadline (monotonic ms) instead of the last one. A master that can be
    fenced goes on past it with a term that it has begun, and begins none."""

    deadline_ms: int


@dataclass(frozen=True, slots=True)
class RenewGrant:
    """Deliver on, under this creation of the leader key and up to this deadline (monotonic ms)."""

    leader: Leader
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class StopDelivery:
    """Finish or abandon the step and deliver no more; report DeliveryStopped."""

    reason: ResignReason


@dataclass(frozen=True, slots=True)
class RevokeLease:
    """End the lease, once. Nothing waits for an answer: a lease not revoked runs out."""

    lease_id: int


Effect = (
    PollLeader
    | Depose
    | GrantLease
    | Campaign
    | KeepAlive
    | StartDelivery
    | ExtendDeadline
    | RenewGrant
    | StopDelivery
    | RevokeLease
)
Effects = tuple[Effect, ...]
Call = PollLeader | Depose | GrantLease | Campaign | KeepAlive
"""A call to etcd that exactly one event answers."""

ANSWERS: Mapping[type[Event], tuple[type[Call], ...]] = MappingProxyType(
    {
        LeaderRead: (PollLeader, Depose),
        LeaseGranted: (GrantLease,),
        CampaignAnswered: (Campaign,),
        LeaseKept: (KeepAlive,),
        LeaseFoundDead: (KeepAlive,),
        CallFailed: (PollLeader, Depose, GrantLease, Campaign, KeepAlive),
    }
)
"""The calls that each answer may belong to; without events that answer no call."""
