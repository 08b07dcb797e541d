"""From a record's headers to what it asks for.

What is looked at, in this order; the first problem found is the outcome:
1. the size of the record,
2. header names, then each `delayd-*` header in the order of the record,
3. operation, target topic, due time, distance of the due time, target partition.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Final, NamedTuple

from delayd.bus import Headers, Record
from delayd.request.reasons import Reason, RefusedError, Reject, quoted
from delayd.request.times import delay_ms_of, due_ms_of, level_delay_ms_of
from replication.settings import RULES_VERSION

HEADER_PREFIX: Final = "delayd-"
"""Of headers; fixed, unlike the prefix of delayd's topics."""

SUPPORTED_HEADERS: Final = (
    "delayd-topic",
    "delayd-due",
    "delayd-delay",
    "delayd-level",
    "delayd-key",
    "delayd-partition",
    "delayd-op",
)
PLANNED_HEADERS: Final = (
    "delayd-id",
    "delayd-cron",
    "delayd-zone",
    "delayd-until",
    "delayd-late",
    "delayd-continues",
    "delayd-redrive",
    "delayd-proof",
)
"""In the wire contract, not in this rules version."""

WRITTEN_HEADERS: Final = (
    "delayd-fired",
    "delayd-source",
    "delayd-origin",
    "delayd-attempt",
    "delayd-occurrence",
    "delayd-reason",
    "delayd-detail",
    "delayd-truncated",
)
"""On what delayd delivers or dead-letters; on a request they are a record sent back as it was."""

UNREADABLE_HEADERS: Final = "delayd-unreadable-headers"
"""What a driver hands out in place of headers whose names are not UTF-8."""

RECORD_ALLOWANCE_BYTES: Final = 128
"""Kafka's record batch header (61) and the longest record fields (36), rounded up."""

HEADER_ALLOWANCE_BYTES: Final = 10
"""The two longest length fields of a header."""

PARTITION_MAX: Final = 2**31 - 1
"""Kafka's partition numbers are int32."""

PARTITION_DIGITS_MAX: Final = 10

_SUPPORTED = frozenset(SUPPORTED_HEADERS)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Op(IntEnum):
    """What a request wants done."""

    SCHEDULE = 0
    CANCEL = 1
    REPLACE = 2


_OPS = {"schedule": Op.SCHEDULE, "cancel": Op.CANCEL, "replace": Op.REPLACE}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What the cluster fixed for all requests when its topics were created."""

    max_delay_ms: int
    record_bytes_max: int
    partitions: int
    """Of the buffer."""
    prefix: str = "delayd-"
    """Of delayd's own topics, which are no targets."""

    def __post_init__(self) -> None:
        assert self.prefix, "an empty prefix would forbid every target"
        assert self.max_delay_ms >= 0, "max_delay_ms is negative"
        assert self.record_bytes_max > 0, "record_bytes_max must be positive"
        assert self.partitions > 0, "the buffer has at least one partition"


class Schedule(NamedTuple):
    """A request that may be done. Later operations and fields are added at the end."""

    op: Op
    topic: str | None
    """The target; None only for operations that have none (cancel)."""
    asked_due_ms: int
    """Unix ms as asked, in the past too; `replication.rank.due_of` makes the ranking due of it."""
    key: bytes | None
    """The key to deliver: `delayd-key`, else the record's own."""
    value: bytes | None
    headers: Headers
    """The user's, in their order, with their repeats."""
    partition: int | None = None
    id: str | None = None


def parse(record: Record, limits: RequestLimits) -> Schedule | Reject:
    """What `record` asks for under the cluster's `limits`. Never raises.

    The hot path of ingest: one pass over the headers, no allocation for those of the user.
    """
    key, value = record.key, record.value
    size = RECORD_ALLOWANCE_BYTES
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    user: Headers = []
    asked: Headers = []
    ascii_names = True
    for header in record.headers:
        name, content = header
        size += HEADER_ALLOWANCE_BYTES + len(name)
        if content is not None:
            size += len(content)
        if not name.isascii():
            ascii_names = False
            size += len(_name_bytes(name)) - len(name)
        if name.startswith(HEADER_PREFIX):
            asked.append(header)
        else:
            user.append(header)
    if size > limits.record_bytes_max:
        return _too_large(size, limits.record_bytes_max)
    try:
        if not ascii_names:
            _check_names(record.headers)
        fields = _fields(asked)
        op = _op(fields)
        topic = _target(fields, limits.prefix)
        due_ms = _due_ms(fields, record.append_ms)
        if due_ms - record.append_ms > limits.max_delay_ms:
            raise _too_far(due_ms - record.append_ms, limits.max_delay_ms)
        delivered_key = fields.get("delayd-key")
        return Schedule(
            op,
            topic,
            due_ms,
            key if delivered_key is None else delivered_key.encode(),
            value,
            user,
            _partition(fields),
        )
    except RefusedError as refusal:
        return Reject(refusal.reason, refusal.detail)


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes that count against `record_bytes_max`: the decompressed record and an allowance."""
    size = RECORD_ALLOWANCE_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += HEADER_ALLOWANCE_BYTES + len(_name_bytes(name)) + len(content or b"")
    return size


def _name_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _too_large(size: int, record_bytes_max: int) -> Reject:
    return Reject(
        Reason.TOO_LARGE,
        f"the record counts {size} bytes of key, value and headers, this cluster takes"
        f" {record_bytes_max}: send a smaller one, for instance a reference to the data",
        truncated=True,
    )


def _too_far(distance_ms: int, max_delay_ms: int) -> RefusedError:
    return RefusedError(
        Reason.TOO_FAR,
        f"the due time is {distance_ms} ms after the append time, this cluster's max_delay is"
        f" {max_delay_ms} ms: choose an earlier time",
    )


def _check_names(headers: Headers) -> None:
    for name, _ in headers:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise RefusedError(
                Reason.NOT_UTF8, f"the header name {quoted(name)} is not UTF-8: encode it as UTF-8"
            ) from error


def _fields(asked: Headers) -> dict[str, str]:
    """The request headers as text, each known, present once, and not empty."""
    fields: dict[str, str] = {}
    for name, content in asked:
        if name not in _SUPPORTED:
            raise _unsupported(name)
        if name in fields:
            raise RefusedError(
                Reason.REPEATED_HEADER, f"the header {name} is there more than once: send it once"
            )
        if not content:
            if content is None:
                raise RefusedError(
                    Reason.NULL_HEADER, f"the header {name} is null: give it a value or omit it"
                )
            raise RefusedError(
                Reason.EMPTY_HEADER, f"the header {name} is empty: give it a value or omit it"
            )
        try:
            fields[name] = content.decode()
        except UnicodeDecodeError as error:
            raise RefusedError(
                Reason.NOT_UTF8,
                f"the header {name} is not UTF-8 (byte {error.start}): encode it as UTF-8 text",
            ) from error
    return fields


def _unsupported(name: str) -> RefusedError:
    if name in PLANNED_HEADERS:
        return RefusedError(
            Reason.NOT_SUPPORTED,
            f"the header {name} is not supported by rules version {RULES_VERSION}, which this"
            " cluster runs: leave it out, or upgrade the cluster",
        )
    if name in WRITTEN_HEADERS:
        return RefusedError(
            Reason.UNKNOWN_HEADER,
            f"the header {name} is one that delayd writes, a request may not carry it: when you"
            " send a delivered record or a dead letter again, drop its delayd-* headers first",
        )
    if name == UNREADABLE_HEADERS:
        return RefusedError(
            Reason.NOT_UTF8,
            "a header name of the record is not UTF-8, so none of its headers can be read: encode"
            " header names as UTF-8",
        )
    known = [known.removeprefix(HEADER_PREFIX) for known in SUPPORTED_HEADERS + PLANNED_HEADERS]
    nearest = get_close_matches(name.removeprefix(HEADER_PREFIX)[:64].lower(), known, n=1)
    hint = (
        f"did you mean {HEADER_PREFIX}{nearest[0]}?"
        if nearest
        else f"known are {', '.join(SUPPORTED_HEADERS)}"
    )
    return RefusedError(
        Reason.UNKNOWN_HEADER,
        f"the header {quoted(name)} is unknown, and names that start with delayd- are reserved:"
        f" {hint}",
    )


def _op(fields: Mapping[str, str]) -> Op:
    name = fields.get("delayd-op")
    if name is None:
        return Op.SCHEDULE
    op = _OPS.get(name)
    if op is None:
        raise RefusedError(
            Reason.BAD_OP,
            f"delayd-op {quoted(name)} is no operation: use one of {', '.join(_OPS)}",
        )
    if op is not Op.SCHEDULE:
        raise RefusedError(
            Reason.NOT_SUPPORTED,
            f"the header delayd-op with {name} is not supported by rules version {RULES_VERSION},"
            " which this cluster runs: only schedule is",
        )
    return op


def _target(fields: Mapping[str, str], prefix: str) -> str:
    topic = fields.get("delayd-topic")
    if topic is None:
        raise RefusedError(
            Reason.MISSING_TOPIC,
            "the header delayd-topic is missing: it names the topic to deliver to",
        )
    if _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
        raise RefusedError(
            Reason.BAD_TOPIC,
            f"delayd-topic {quoted(topic)} is no legal topic name: 1 to 249 letters, digits,"
            " dots, underscores and hyphens, but not . or ..",
        )
    if topic.startswith((prefix, "__")):
        raise RefusedError(
            Reason.FORBIDDEN_TOPIC,
            f"delayd-topic {quoted(topic)} is never a target: it belongs to delayd ({prefix}*) or"
            " to Kafka (__*)",
        )
    return topic


def _due_ms(fields: Mapping[str, str], append_ms: int) -> int:
    due = fields.get("delayd-due")
    delay = fields.get("delayd-delay")
    level = fields.get("delayd-level")
    if due is not None and delay is None and level is None:
        return due_ms_of(due)
    if delay is not None and due is None and level is None:
        return append_ms + delay_ms_of(delay)
    if level is not None and due is None and delay is None:
        return append_ms + level_delay_ms_of(level)
    given = [name for name in ("delayd-due", "delayd-delay", "delayd-level") if name in fields]
    if given:
        raise RefusedError(
            Reason.SEVERAL_DUES, f"{' and '.join(given)} contradict each other: keep one of them"
        )
    raise RefusedError(
        Reason.MISSING_DUE,
        "no due time: add one of the headers delayd-due, delayd-delay, delayd-level",
    )


def _partition(fields: Mapping[str, str]) -> int | None:
    text = fields.get("delayd-partition")
    if text is None:
        return None
    if text.isdigit() and text.isascii() and len(text) <= PARTITION_DIGITS_MAX:
        partition = int(text)
        if partition <= PARTITION_MAX:
            return partition
    raise RefusedError(
        Reason.BAD_PARTITION,
        f"delayd-partition {quoted(text)} is not an integer from 0 to {PARTITION_MAX}",
    )
