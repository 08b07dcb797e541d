"""What goes into the API and what comes out. Times are Unix ms."""

import base64
import binascii
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from delayd.client.asking import DebounceOptions, Options

BATCH_MAX: Final = 1_000
"""Messages of one request."""
SOURCES_MAX: Final = 100
"""Dead letters of one redrive."""
MS_MAX: Final = 2**53 - 1
"""The largest time: what every JSON reader reads exactly."""

Ms = Annotated[int, Field(ge=0, le=MS_MAX)]


class In(BaseModel):
    """What is asked: a field that is not known is refused, and so is a number for a text."""

    model_config = ConfigDict(extra="forbid", strict=True)


class HeaderIn(In):
    """A header of the delivered record; without a value it is null."""

    name: Annotated[str, Field(min_length=1, max_length=1_000)]
    value: str | None = None


class Message(In):
    """What will be delivered, and where."""

    topic: Annotated[str, Field(description="Target.", min_length=1, max_length=249)]
    value: Annotated[str | None, Field(description="The value as text; null is a null.")] = None
    value_base64: Annotated[
        str | None, Field(description="The value as bytes, in place of it.")
    ] = None
    key: Annotated[str | None, Field(description="Of the record; default: the id, or none.")] = None
    headers: Annotated[list[HeaderIn], Field(max_length=1_000)] = []
    partition: Annotated[int | None, Field(ge=0, le=2**31 - 1, description="Of the target.")] = None
    late: Annotated[
        str | None,
        Field(description="As delayd-late: later than due and this it expires.", max_length=64),
    ] = None
    group: Annotated[
        str | None,
        Field(description="As delayd-group: needs an id.", min_length=1, max_length=256),
    ] = None
    receipts: Annotated[
        bool, Field(description="Write all its receipts: scheduled and delivered, too.")
    ] = False

    @model_validator(mode="after")
    def _has_one_value(self) -> "Message":
        if self.value is not None and self.value_base64 is not None:
            raise ValueError("give value or value_base64, not both")
        self.content()
        return self

    def content(self) -> bytes | str | None:
        """Return the value of the record."""
        if self.value_base64 is None:
            return self.value
        try:
            return base64.b64decode(self.value_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError("value_base64 is not base64") from error


class Delivered(Message):
    """What will be delivered, where and when."""

    delay: Annotated[
        str | None, Field(description="As delayd-delay: 250ms, 10s, 5m, 2h, 30d.", max_length=64)
    ] = None
    at: Annotated[
        str | Ms | None,
        Field(description="Due time: RFC 3339, or Unix ms; with zone without offset."),
    ] = None
    window: Annotated[
        str | None,
        Field(description="As delayd-window: it may go out so much later.", max_length=64),
    ] = None
    cron: Annotated[
        str | None,
        Field(description="As delayd-cron: it recurs; in place of delay and at.", max_length=128),
    ] = None
    zone: Annotated[
        str | None,
        Field(description="As delayd-zone: of cron (default: UTC), of at.", max_length=64),
    ] = None
    until: Annotated[
        str | Ms | None, Field(description="As delayd-until: no occurrence of cron is later.")
    ] = None
    catchup: Annotated[
        str | None, Field(description="As delayd-catchup: once or all.", max_length=8)
    ] = None

    @model_validator(mode="after")
    def _has_one_time(self) -> "Delivered":
        if sum(each is not None for each in (self.delay, self.at, self.cron)) != 1:
            raise ValueError("give exactly one of delay, at and cron")
        return self

    def options(self) -> Options:
        """Return the rest, as the client takes it."""
        return {
            "key": self.key,
            "in_": self.delay,
            "at": self.at,
            "headers": [(each.name, each.value) for each in self.headers],
            "partition": self.partition,
            "late": self.late,
            "window": self.window,
            "group": self.group,
            "cron": self.cron,
            "zone": self.zone,
            "until": self.until,
            "catchup": self.catchup,
            "receipts": self.receipts,
        }


class ScheduleIn(Delivered):
    """A message to schedule. With an id, the same request again does nothing more."""

    id: Annotated[str | None, Field(description="Id to cancel or replace it by.")] = None


class RescheduleIn(In):
    """Another due time for what is pending under an id."""

    delay: Annotated[
        str | None, Field(description="From now on, as delayd-delay: 10s, 2h.", max_length=64)
    ] = None
    at: Annotated[
        str | Ms | None, Field(description="Due time: RFC 3339 with offset, or Unix ms.")
    ] = None
    by: Annotated[
        str | None,
        Field(description="As delayd-by: so much later, or earlier: +10m, -1h.", max_length=64),
    ] = None

    @model_validator(mode="after")
    def _has_one_time(self) -> "RescheduleIn":
        if sum(each is not None for each in (self.delay, self.at, self.by)) != 1:
            raise ValueError("give exactly one of delay, at and by")
        return self


class DebounceIn(Message):
    """A message of which only the last one counts."""

    delay: Annotated[
        str, Field(description="It goes out so long after the last one: 2s, 1m.", max_length=64)
    ]
    max_wait: Annotated[
        str,
        Field(description="And so long after the first one at the latest: 30s.", max_length=64),
    ]

    def options(self) -> DebounceOptions:
        """Return what is not id, target and value, as the client takes it."""
        return {
            "in_": self.delay,
            "max_wait": self.max_wait,
            "key": self.key,
            "headers": [(each.name, each.value) for each in self.headers],
            "partition": self.partition,
            "late": self.late,
            "group": self.group,
            "receipts": self.receipts,
        }


class BatchIn(In):
    """Messages to schedule, each with an outcome of its own."""

    messages: Annotated[list[ScheduleIn], Field(min_length=1, max_length=BATCH_MAX)]


class RedriveIn(In):
    """Dead letters to send again, each at most once, whoever asks how often."""

    sources: Annotated[
        list[Annotated[str, Field(pattern=r"^[0-9]{1,5}/[0-9]{1,19}$")]],
        Field(min_length=1, max_length=SOURCES_MAX, description="As delayd-source: 3/4711."),
    ]
    topic: Annotated[str | None, Field(min_length=1, max_length=249)] = None
    """Another target than they had."""
    delay: Annotated[str | None, Field(max_length=64)] = None
    at: Annotated[str | None, Field(max_length=64)] = None
    without_id: bool = False
    dry_run: bool = False


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
