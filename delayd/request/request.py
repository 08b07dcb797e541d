"""A valid request, and the limits that the cluster fixed for all requests."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from delayd.bus import Headers
from replication.holds import Order
from replication.ids import Settlement
from replication.rules import Rules
from replication.settings import RULES_VERSION, Settings


class Op(IntEnum):
    """The operation of a request."""

    SCHEDULE = 0
    CANCEL = 1
    REPLACE = 2
    CONTINUE = 3
    """The master's own: it requeues a message under a later due time."""
    REDRIVE = 4
    """A schedule that sends a dead letter again, at most once."""
    SWITCH = 5
    """A barrier: what is behind it in its partition is ruled by another version of the rules."""
    SETTLE = 6
    """The master's own: what cancel markers came to."""
    RESCHEDULE = 7
    """Give what is pending under the id another due time."""
    FIRE = 8
    """A reschedule to now."""
    DEBOUNCE = 9
    """A replace that goes out so long after the last of several."""
    HOLD = 10
    """An operator's: pause a target topic, or resume it."""

    @property
    def slug(self) -> str:
        """Return the `op` of a receipt; to its user, a continued message is the scheduled one."""
        return _SLUGS[self]


MARKING: Final = frozenset({Op.CANCEL, Op.REPLACE, Op.RESCHEDULE, Op.FIRE, Op.DEBOUNCE})
"""Operations about what is pending under an id."""

_SLUGS = (
    *("schedule", "cancel", "replace", "schedule", "redrive", "switch", "settle"),
    *("reschedule", "fire", "debounce", "hold"),
)


NEWEST_RULES: Final = Rules(RULES_VERSION)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits that were fixed for all requests when the cluster's topics were created."""

    max_delay_ms: int
    record_bytes_max: int
    partitions: int
    """Of the buffer."""
    cluster: str
    """Its name, which proofs are bound to."""
    proof_key: bytes = field(repr=False)
    """The cluster's keys, one a line: the first signs, and what any of them signed is valid. Empty
    in a client, which has none: then no proof is valid."""
    prefix: str = "delayd-"
    """Prefix of delayd's own topics, which cannot be targets."""
    rules: Rules = NEWEST_RULES
    """What version rules a record, by its place."""
    tracing_headers: tuple[str, ...] = ()
    """The cluster's own (`Settings.tracing_headers`)."""
    shards: int = 1

    @classmethod
    def of(
        cls, settings: Settings, proof_key: bytes, rules: Rules | None = None
    ) -> "RequestLimits":
        """Return the limits of a cluster with these settings; `rules` if it was switched."""
        return cls(
            max_delay_ms=settings.max_delay_ms,
            record_bytes_max=settings.record_bytes_max,
            partitions=settings.partitions,
            cluster=settings.cluster,
            proof_key=proof_key,
            prefix=settings.prefix,
            rules=Rules(settings.rules_version) if rules is None else rules,
            tracing_headers=settings.tracing_headers,
            shards=settings.shards,
        )

    def __post_init__(self) -> None:
        assert self.prefix, "an empty prefix would forbid every target"
        assert self.max_delay_ms >= 0, "max_delay_ms is negative"
        assert self.record_bytes_max > 0, "record_bytes_max must be positive"
        assert self.partitions > 0, "the buffer has at least one partition"


class Turn(NamedTuple):
    """The time when a smoothed message may go out (`replication.smoothing`). Times are Unix ms."""

    turn_ms: int
    """As it was assigned, without any shift."""
    since_ms: int
    """Its ranking due when it was first deferred: from then on smoothing makes it late."""


class Wishes(NamedTuple):
    """How a message is handled beside its delivery, through all that continues it. New fields are
    added at the end: a stored body may have fewer."""

    is_told: bool = False
    """All receipts, whatever the cluster's setting; without an id under its source."""
    late_ms: int | None = None
    """How much later than its due time it is still worth delivering; None: always."""
    window_ms: int | None = None
    """How far its due time is spread (`spreading.py`); None: not at all."""
    group: str | None = None
    """A name that it shares with others; None: none."""


class SeriesState(IntEnum):
    """What follows an occurrence of a series, as its record says."""

    GOES_ON = 0
    """Another one: the step that comes to it writes that into the buffer."""
    LAST = 1
    """Nothing: it ends the series."""
    OVER = 2
    """It is no occurrence itself: there is none, and the series ends without it."""


class Series(NamedTuple):
    """A recurring message, and which of its occurrences a record stands for."""

    cron: str
    """An expression, as it was sent."""
    zone: str
    """An IANA name."""
    until_ms: int | None
    """No occurrence is later (Unix ms)."""
    catches_up: bool
    """Whether each occurrence is delivered that an outage missed; else the latest of them."""
    occurrence: int = 0
    """From 1; 0 as its user sent it, before a step has found the first one."""
    state: int = SeriesState.GOES_ON
    moved_ms: int | None = None
    """Of an occurrence that was fired: when it is due by the expression; of occurrence 0, when that
    was asked for. None of all others. Unix ms."""

    @property
    def goes_on(self) -> bool:
        """Return whether another record of the series follows this one."""
        return self.state == SeriesState.GOES_ON


class LocalState(IntEnum):
    """Whether the due time of a local time is known, as a record says."""

    UNRESOLVED = 0
    """As its user sent it."""
    EXPECTED = 1
    """It was resolved, and will be again: time zones may have changed by then."""
    FINAL = 2
    """It was resolved: the record is due then."""
    OVER = 3
    """It cannot be resolved: it names no time zone."""


class LocalTime(NamedTuple):
    """A due time by the clock of a zone, and what a record knows of it."""

    text: str
    """As it was sent: a date and a time of day."""
    zone: str
    """An IANA name."""
    state: int = LocalState.UNRESOLVED

    @property
    def goes_on(self) -> bool:
        """Return whether another record of the message follows this one."""
        return self.state in (LocalState.UNRESOLVED, LocalState.EXPECTED)


class Switch(NamedTuple):
    """The content of a barrier."""

    version: int
    """Of the rules that it switches to."""
    release: str
    """The first release of delayd that knows them."""


class Request(NamedTuple):
    """The request of one buffer record. New fields are added at the end."""

    op: Op
    topic: str | None
    """The target; None of what stores no message."""
    asked_due_ms: int
    """Unix ms as asked, in the past too; 0 for a cancel."""
    due_ms: int
    """Due time from which `replication.rank.due_of` derives the ranking due: the planned one, which
    is the asked one without a window; or the next one of a continuation."""
    key: bytes | None
    """The key to deliver: `delayd-key`, else the record's own."""
    value: bytes | None
    headers: Headers
    """The user's, in their order, with their repeats."""
    partition: int | None = None
    """Of the target."""
    id: str | None = None
    digest: bytes = b""
    """Of the message as sent, 16 bytes, if it has an id; empty for a cancel."""
    origin: str = ""
    """Of a continuation: the source of the user's own request."""
    attempt: int = 0
    """Of a continuation: number of the retry, from 1. 0 for the user's own request."""
    continues: tuple[int, int] | None = None
    """Of a continuation: ranking due (ms) and offset of the requeued message, in the same
    partition."""
    redrive: str | None = None
    """Of a redrive: the source of the dead letter that it sends again."""
    turn: Turn | None = None
    """Of a continuation that smoothing deferred."""
    switch: Switch | None = None
    """Of a barrier."""
    settled: tuple[tuple[str, Settlement], ...] = ()
    """Of a settlement: ids, and what the last marker of each came to."""
    has_own_time: bool = False
    """Of a replace: it names its due time, and not a delay."""
    wishes: Wishes | None = None
    """Of what is stored: None if it has none."""
    series: Series | None = None
    """Of what is stored: None if it is delivered once."""
    by_ms: int | None = None
    """Of a reschedule: how much later than now what is pending is to be due; then `due_ms` is the
    latest due time that the cluster takes."""
    moved_by: int = -1
    """Of a continuation: the offset of the reschedule that it carries out. -1 of all others."""
    follows: bool = False
    """Of a continuation: what it continues has come out, and this is the next occurrence."""
    local: LocalTime | None = None
    """Of what is stored: None if its due time is that of no zone's clock."""
    order: Order | None = None
    """Of an operator's order about a topic."""
    max_wait_ms: int = 0
    """Of a debounce: how long after the first request of its run it goes out at the latest. Its due
    time is as of itself, until ingest has found its run."""

    @property
    def is_told(self) -> bool:
        """Return whether it asks for all its receipts itself."""
        return self.wishes is not None and self.wishes.is_told
