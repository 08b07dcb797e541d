"""What comes out of the API, and, from `asked.py`, what goes into it. Times are Unix ms."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from delayd.node.monitoring.api.asked import BATCH_MAX as BATCH_MAX
from delayd.node.monitoring.api.asked import MS_MAX as MS_MAX
from delayd.node.monitoring.api.asked import SOURCES_MAX as SOURCES_MAX
from delayd.node.monitoring.api.asked import BatchIn as BatchIn
from delayd.node.monitoring.api.asked import DebounceIn as DebounceIn
from delayd.node.monitoring.api.asked import Delivered as Delivered
from delayd.node.monitoring.api.asked import HeaderIn as HeaderIn
from delayd.node.monitoring.api.asked import Ms as Ms
from delayd.node.monitoring.api.asked import RedriveIn as RedriveIn
from delayd.node.monitoring.api.asked import RescheduleIn as RescheduleIn
from delayd.node.monitoring.api.asked import ScheduleIn as ScheduleIn


class Placed(BaseModel):
    """The place of a request in the buffer: Kafka has it."""

    source: str
    append_ms: int
    due_ms: int | None = None


class Judged(BaseModel):
    """The verdict on a request, as in its receipt."""

    verdict: str
    killed: list[str]
    due_ms: int | None
    at_ms: int
    detail: str
    source: str
    old_due_ms: Annotated[
        int | None, Field(description="Of rescheduled: when it was due before.")
    ] = None
    forecast_messages: Annotated[
        int | None,
        Field(description="Of scheduled: messages of the same target due in the same span."),
    ] = None
    forecast_span_ms: Annotated[
        int | None, Field(description="A second; an hour while the due time is far.")
    ] = None
    forecast_late_ms: Annotated[
        int | None, Field(description="How late the last of that second is expected to be.")
    ] = None


class Problem(BaseModel):
    """RFC 9457, with the code of docs/operations.md and what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str
    errors: list[str] = []


class BatchOut(BaseModel):
    """One outcome for each message, in their order."""

    outcomes: list[Placed | Problem]
    failed: int


class PendingItem(BaseModel):
    """A message that waits for its time."""

    source: str
    """Its record in the buffer; of a message that is retried, the last one."""
    origin: str
    """The user's own request."""
    id: str | None
    topic: str
    group: str | None = None
    """The group that it is of."""
    due_ms: int
    attempts: int
    """Attempts to deliver it so far."""
    bytes: int
    """Of its frame on the disk."""
    cron: str | None = None
    """Of a series: its expression, in `zone`."""
    zone: str | None = None
    local: str | None = None
    """Of a local time, in `zone`; `due_ms` is when it is looked at next."""
    resolved_ms: int | None = None
    """Of a local time: when that is, if it is resolved."""
    occurrence: int | None = None
    """Of a series: which one this is, from 1; 0 until the first one is found."""


class PendingPage(BaseModel):
    """Some pending messages, as of the node's last checkpoint: a second ago at most.

    A page may have fewer messages than asked, even none, and still not be the last one.
    """

    messages: list[PendingItem]
    next: str | None
    """The cursor of the next page; null: there is none."""


class PendingCount(BaseModel):
    """How many messages match in what this page has looked at."""

    messages: int
    next: str | None
    """Add what the page at this cursor counts; null: that is all."""


class HourCount(BaseModel):
    """Pending messages that are due within an hour."""

    from_ms: int
    messages: int


class PendingCounts(BaseModel):
    """All pending messages by hour and by target; 100 targets by name, the rest as `other`."""

    total: int
    hours: list[HourCount]
    topics: dict[str, int]


class SeriesShown(BaseModel):
    """The series that a message is of."""

    cron: str
    zone: str
    occurrence: int
    """From 1; 0 until the first one is found."""


class KnownMessage(BaseModel):
    """A message that is, or was, known under an id."""

    source: str
    state: str
    """`pending`; `done`: delivered or dead; `delivered`, `dead`, `expired`: with its place;
    `asked`, `cancelled`, `replaced`."""
    due_ms: int
    killed_by: str | None = None
    """The request that cancelled or replaced it."""
    decided_ms: int | None = None
    topic: str | None = None
    bytes: int | None = None
    at: str | None = None
    """topic/partition/offset of the delivery or of the dead letter."""
    at_ms: int | None = None
    problem: str | None = None
    series: SeriesShown | None = None
    local: dict[str, str | int | None] | None = None
    """Of a local time: `at`, `zone`, and `due_ms` if it is resolved."""


class Known(BaseModel):
    """What a node knows of an id."""

    id: str
    node: str
    messages: list[KnownMessage]


class LetterSummary(BaseModel):
    """A dead letter without its record."""

    source: str
    reason: str
    detail: str
    dead_ms: int
    topic: str | None
    id: str | None
    origin: str | None
    attempts: int
    truncated_bytes: int | None


class Letters(BaseModel):
    """The newest letters that match, oldest first."""

    letters: list[LetterSummary]
    matching: int
    reasons: dict[str, int]


class Binary(BaseModel):
    """Bytes that are not UTF-8."""

    base64: str


class LetterOut(LetterSummary):
    """A dead letter with its record."""

    key: str | Binary | None
    value: str | Binary | None
    headers: list[tuple[str, str | Binary | None]]


class RedriveOutcome(BaseModel):
    """What came of one letter."""

    source: str
    outcome: str
    request: str | None
    detail: str


class Redriven(BaseModel):
    """The outcomes, and whether every letter has one: if no master answers, the rest is not
    sent."""

    letters: list[RedriveOutcome]
    complete: bool


class ShardView(BaseModel):
    """A shard: who leads it, and how far it has delivered."""

    shard: int
    leader: str | None
    owner: str
    term: int
    step: int
    cursor_ms: int
    cursor_age_ms: int
    lag: int
    """Records of the buffer that the frontier has not taken into account."""


class FailingTargetView(BaseModel):
    """A target that turns messages away."""

    topic: str
    problem: str
    since_ms: int
    messages: int
    attempts: int


class LatenessView(BaseModel):
    """How late the messages of one target were in the last five minutes. A quantile is the upper
    bound of its bucket; null: more than an hour."""

    topic: str
    messages: int
    p50_ms: int | None
    p99_ms: int | None
    p999_ms: int | None


class FailoverView(BaseModel):
    """A change of master that some node has seen since it was started."""

    term: int
    former: str
    owner: str
    last_ms: int
    """Last step of the former master."""
    begun_ms: int
    """First step of the new one."""
    gap_ms: int | None
    """How late the first messages were that it delivered; null: none was due yet, or it was started
    anew since."""


class ClockView(BaseModel):
    """The clock of a node that answered."""

    node: str
    offset_ms: int
    """How far it is ahead of the clock of the node that was asked, at least."""
    broker_drift_ms: int | None
    """How far the broker's was from it at its last step as master; null before the first."""


class ClusterView(BaseModel):
    """The cluster: its shards, its nodes as each says of itself, and what a person must see to."""

    cluster: str
    healthy: bool
    problems: list[str]
    shards: list[ShardView]
    failing_targets: list[FailingTargetView]
    paused: list[dict[str, Any]]
    limits: list[dict[str, Any]]
    lateness: list[LatenessView]
    failovers: list[FailoverView]
    """The newest first, at most 20."""
    clocks: list[ClockView]
    nodes: list[dict[str, Any]]


class Health(BaseModel):
    """This node."""

    node: str
    cluster: str
    version: str
    role: str
    ready: bool
    problem: str | None
    """Why it is not ready."""
    stalled: str | None
    """Which of its loops stands still."""
    delivery_lag_ms: int
    now_ms: int
