"""A request that may be done, and what the cluster fixed for all of them."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from delayd.bus import Headers


class Op(IntEnum):
    """What a request wants done."""

    SCHEDULE = 0
    CANCEL = 1
    REPLACE = 2
    CONTINUE = 3
    """The master's own: a message goes on under a later due time."""
    REDRIVE = 4
    """A schedule that sends a dead letter again, at most once."""

    @property
    def slug(self) -> str:
        """What a receipt's `op` says; to its user a continued message is the one scheduled."""
        return _SLUGS[self]


_SLUGS = ("schedule", "cancel", "replace", "schedule", "redrive")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What the cluster fixed for all requests when its topics were created."""

    max_delay_ms: int
    record_bytes_max: int
    partitions: int
    """Of the buffer."""
    cluster: str
    """Its name, which proofs are bound to."""
    proof_key: bytes = field(repr=False)
    """The cluster's key. Empty where nobody can have one (a client): then no proof is valid."""
    prefix: str = "delayd-"
    """Of delayd's own topics, which are no targets."""

    def __post_init__(self) -> None:
        assert self.prefix, "an empty prefix would forbid every target"
        assert self.max_delay_ms >= 0, "max_delay_ms is negative"
        assert self.record_bytes_max > 0, "record_bytes_max must be positive"
        assert self.partitions > 0, "the buffer has at least one partition"


class Turn(NamedTuple):
    """When a smoothed message may go out (`replication.smoothing`). Times are Unix ms."""

    turn_ms: int
    """As it was given, without any shift."""
    since_ms: int
    """Its ranking due when it was deferred first: from then on smoothing makes it late."""


class Request(NamedTuple):
    """What one record of the buffer asks for. Later fields are added at the end."""

    op: Op
    topic: str | None
    """The target; None only for a cancel."""
    asked_due_ms: int
    """Unix ms as asked, in the past too; 0 for a cancel."""
    due_ms: int
    """What `replication.rank.due_of` makes the ranking due of: the asked one, or of a continuation
    the next one."""
    key: bytes | None
    """The key to deliver: `delayd-key`, else the record's own."""
    value: bytes | None
    headers: Headers
    """The user's, in their order, with their repeats."""
    partition: int | None = None
    """Of the target."""
    id: str | None = None
    digest: bytes = b""
    """Of the message as sent, 16 bytes, if it has an id; a cancel sends no message."""
    origin: str = ""
    """Of a continuation: the source of the user's own request."""
    attempt: int = 0
    """Of a continuation: it is the n-th retry, from 1. 0 for the user's own."""
    continues: tuple[int, int] | None = None
    """Of a continuation: ranking due (ms) and offset of the message that goes on, which is in the
    same partition."""
    redrive: str | None = None
    """The source of the dead letter that is sent again."""
    turn: Turn | None = None
    """Of a continuation that smoothing deferred."""
