"""Every reason to reject a request, and the wording of a reject.

Invariants:
- a slug never changes: people alert on it;
- a detail is at most DETAIL_CHARS_MAX of printable ASCII, whatever bytes it quotes;
- a detail is the same on every replica, so it names the rules version, not the package's.
"""

from enum import Enum
from typing import Final, NamedTuple

from delayd.request.request import Op

DETAIL_CHARS_MAX = 500
QUOTE_CHARS_MAX = 80
"""How much of a hostile text a detail quotes: enough to find the sender, too little to flood a
log."""


class Reason(Enum):
    """Why a record is in the dead-letter topic: a stable slug, and what to do about it."""

    advice: str

    def __new__(cls, slug: str, advice: str = "") -> "Reason":
        member = object.__new__(cls)
        member._value_ = slug
        member.advice = advice
        return member

    @property
    def slug(self) -> str:
        """Return the value of `delayd-reason`."""
        return str(self._value_)

    MISSING_TOPIC = "missing-topic", "Name the target topic in the header `delayd-topic`."
    BAD_TOPIC = (
        "bad-topic",
        "Use a legal Kafka topic name in `delayd-topic`: 1 to 249 of a-z A-Z 0-9 . _ and -.",
    )
    FORBIDDEN_TOPIC = (
        "forbidden-topic",
        "Choose another target: delayd's own topics and Kafka's internal ones (`__*`) are refused.",
    )
    MISSING_DUE = (
        "missing-due",
        "Say when: one of the headers `delayd-due`, `delayd-delay`, `delayd-level`; a debounce has"
        " `delayd-delay` and `delayd-max-wait`.",
    )
    SEVERAL_DUES = (
        "several-dues",
        "Keep exactly one of the headers `delayd-due`, `delayd-delay`, `delayd-level`.",
    )
    BAD_DUE = (
        "bad-due",
        "Write `delayd-due` as Unix milliseconds or as RFC 3339 with Z or an offset.",
    )
    BAD_DELAY = (
        "bad-delay",
        "Write `delayd-delay` as an integer and a unit: `250ms`, `10s`, `5m`, `2h`, `30d`.",
    )
    BAD_LEVEL = (
        "bad-level",
        "Use a `delayd-level` from 1 to 18, or `delayd-delay` for any other time.",
    )
    TOO_FAR = (
        "too-far",
        "Choose an earlier time: the longest delay is fixed when the cluster is made.",
    )
    BAD_PARTITION = (
        "bad-partition",
        "Write `delayd-partition` as an integer from 0 to 2147483647, or leave it out.",
    )
    BAD_RECEIPT = "bad-receipt", "Write `delayd-receipt: yes`, or leave it out."
    BAD_LATE = (
        "bad-late",
        "Write `delayd-late` as an integer and a unit, from `1ms` to `365d`: `10s`, `5m`, `2h`.",
    )
    BAD_WINDOW = (
        "bad-window",
        "Write `delayd-window` as an integer and a unit, from `1ms` to `1d`: `10s`, `5m`, `2h`.",
    )
    BAD_GROUP = "bad-group", "Send 1 to 256 bytes of UTF-8 in `delayd-group`."
    BAD_CRON = (
        "bad-cron",
        "Write `delayd-cron` as five fields (minute, hour, day, month, weekday), six with seconds"
        " first, or a name such as `@daily`.",
    )
    BAD_ZONE = "bad-zone", "Write `delayd-zone` as an IANA name such as `Europe/Berlin`."
    BAD_UNTIL = (
        "bad-until",
        "Write `delayd-until` as Unix milliseconds or as RFC 3339 with Z or an offset.",
    )
    BAD_CATCHUP = (
        "bad-catchup",
        "Write `delayd-catchup: all` or `delayd-catchup: once`, or leave it out.",
    )
    BAD_BY = (
        "bad-by",
        "Write `delayd-by` as a sign, an integer and a unit: `+10m` is later, `-1h` is earlier.",
    )
    BAD_MAX_WAIT = (
        "bad-max-wait",
        "Write `delayd-max-wait` as an integer and a unit, at least as long as `delayd-delay`:"
        " `10s`, `5m`, `2h`.",
    )
    BAD_OP = (
        "bad-op",
        "Use `schedule`, `cancel`, `replace`, `reschedule`, `fire` or `debounce` in `delayd-op`, or"
        " leave it out.",
    )
    MISSING_ID = (
        "missing-id",
        "Name the message in `delayd-id`: all operations but `schedule` need it, and what has a"
        " `delayd-group` does.",
    )
    BAD_ID = (
        "bad-id",
        "Send 1 to 256 bytes of UTF-8 in `delayd-id`, and the same bytes as the record's key.",
    )
    WRONG_PARTITION = (
        "wrong-partition",
        "Let murmur2 of the key choose the partition: it is the default in Java, and"
        " `partitioner=murmur2_random` in clients that are made from librdkafka.",
    )
    UNEXPECTED_HEADER = (
        "unexpected-header",
        "Leave it out: a cancel takes `delayd-op` and `delayd-id` only, and `delayd-redrive` is for"
        " plain schedules.",
    )
    UNEXPECTED_VALUE = (
        "unexpected-value",
        "Send no value: a reschedule leaves the message as it is. Another value takes a `replace`.",
    )
    UNMOVABLE = (
        "unmovable",
        "A series is pending under the id: fire its next occurrence, or replace it by another"
        " series.",
    )
    BAD_REDRIVE = (
        "bad-redrive",
        "Use `delayd dead redrive`; or copy `delayd-source` of the dead letter to `delayd-redrive`,"
        " and send the record to that partition of the buffer.",
    )
    BAD_PROOF = (
        "bad-proof",
        "Leave the header out: it is of records that delayd's own master writes. If the master"
        " wrote it, give all nodes the same cluster key.",
    )
    CONFLICT = (
        "conflict",
        "Choose another id, or replace: another message is pending under this one.",
    )
    REPEATED_HEADER = "repeated-header", "Send each `delayd-*` header once."
    NULL_HEADER = "null-header", "Give the `delayd-*` header a value, or leave it out."
    EMPTY_HEADER = "empty-header", "Give the `delayd-*` header a value, or leave it out."
    NOT_UTF8 = "not-utf8", "Encode header names, and the values of `delayd-*` headers, as UTF-8."
    UNKNOWN_HEADER = (
        "unknown-header",
        "Correct the name: headers that start with `delayd-` are reserved. When you send a"
        " delivered record or a dead letter again, drop delayd's headers first.",
    )
    NOT_SUPPORTED = (
        "not-supported",
        "Upgrade the cluster to a version that knows the header, or leave the header out.",
    )
    TOO_LARGE = (
        "too-large",
        "Send a smaller record: the limit is fixed when the cluster is made.",
    )
    OVER_QUOTA = (
        "over-quota",
        "Wait until messages of the topic have gone out, or fewer requests come, or raise its quota"
        " (`delayd limits set`): then redrive.",
    )
    UNREADABLE_BATCH = (
        "unreadable-batch",
        "Send smaller batches (`batch.size`), or compress less: what was in this one is gone, ask"
        " its producer.",
    )
    EXPIRED = (
        "expired",
        "Nothing is wrong with it: its time was over (`delayd-late`). Redrive it, if it is still"
        " worth it.",
    )
    NO_OCCURRENCE = (
        "no-occurrence",
        "The detail says why the series has none (more): correct `delayd-cron`, `delayd-zone` or"
        " `delayd-until`, and send it again.",
    )
    DEAD = (
        "dead",
        "Mend the target, which the detail names: it does not exist, has no such partition, does"
        " not take such a size, or is compacted and the message has no key. Then redrive.",
    )


DIED: Final = frozenset({Reason.DEAD.slug, Reason.EXPIRED.slug, Reason.NO_OCCURRENCE.slug})
"""Reasons of the letters that messages became in the step that gave them up; all others are of
requests, which they answer."""


class Reject(NamedTuple):
    """The outcome of a record that is no valid request."""

    reason: Reason
    detail: str
    """What is wrong and what to do: printable ASCII, at most DETAIL_CHARS_MAX, no payload."""
    truncated: bool = False
    """The record is too large: its dead letter goes without the value."""
    id: str | None = None
    """The id to send a receipt to, else the source that is redriven, if one could be read."""
    op: Op = Op.SCHEDULE
    """The operation, as far as it could be read."""


class RefusedError(Exception):
    """Raised by the grammar. It never leaves this package: `parse` turns it into a Reject."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def quoted(text: str) -> str:
    """Return `text` in quotes, cut to QUOTE_CHARS_MAX, all but printable ASCII escaped."""
    shown = ascii(text[:QUOTE_CHARS_MAX])
    if len(text) <= QUOTE_CHARS_MAX and len(shown) <= QUOTE_CHARS_MAX + 2:
        return shown
    return f"{shown[:QUOTE_CHARS_MAX]}... ({len(text)} characters)"


def bounded(detail: str) -> str:
    """Return `detail` in the form that the invariants above demand."""
    if not (detail.isascii() and detail.isprintable()):
        detail = ascii(detail[: DETAIL_CHARS_MAX + 1])[1:-1]
    if len(detail) > DETAIL_CHARS_MAX:
        detail = f"{detail[: DETAIL_CHARS_MAX - 3]}..."
    return detail
