"""Records as the audit's reader hands them out (delayd/audit/tables.py, RECORDS), made naively."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from delayd.audit.bounds import Bounds, ShardCut
from delayd.audit.tables import CONTROL_HEADERS, RECORDS
from delayd.bus.murmur2 import murmur2
from delayd.request.headers import (
    DEBOUNCE_HEADERS,
    GROUP_HEADERS,
    INTERNAL_HEADERS,
    PLANNED_BEFORE_SERIES,
    PLANNED_BEFORE_WISHES,
    RESCHEDULE_HEADERS,
    SERIES_HEADERS,
    SETTLES,
    SUPPORTED_HEADERS,
    UNREADABLE_HEADERS,
    WISH_HEADERS,
)
from delayd.request.proof import proof_of
from delayd.request.request import RequestLimits
from replication.frontier import Frontier
from replication.settings import Settings

Headers = Sequence[tuple[str, bytes | None]]
Row = tuple[Any, ...]

_INTERNAL: Final = frozenset((*INTERNAL_HEADERS, SETTLES))
_OF_RULES_7: Final = (*RESCHEDULE_HEADERS, *GROUP_HEADERS, *DEBOUNCE_HEADERS)
_OF_CONTINUATIONS: Final = _INTERNAL | {
    *("delayd-rules", "delayd-hold", "delayd-quota"),
    *("delayd-topic", "delayd-due", "delayd-id", "delayd-key", "delayd-partition"),
    *("delayd-origin", "delayd-attempt", "delayd-turn"),
    *("delayd-occurrence", "delayd-series", "delayd-follows", "delayd-moved", "delayd-moved-by"),
    *("delayd-local", "delayd-resolved"),
    *WISH_HEADERS,
    *GROUP_HEADERS,
    *SERIES_HEADERS,
}
_OF_DELIVERIES: Final = frozenset(
    f"delayd-{name}"
    for name in (
        *("id", "group", "due", "planned", "fired"),
        *("source", "origin", "attempt", "occurrence"),
        "local",
    )
)
_APPENDED: Final = (
    *("delayd-reason", "delayd-detail", "delayd-source"),
    *("delayd-truncated", "delayd-origin", "delayd-attempt", "delayd-occurrence"),
)


def row_of(
    role: str,
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    *,
    is_append_time: bool = False,
    log_ms: int | None = None,
    limits: RequestLimits | None = None,
) -> Row:
    """One row of RECORDS for a record of a topic of this role; `limits`: proofs are checked."""
    own = [header for header in headers if header[0].startswith("delayd-")]
    user: Headers = [header for header in headers if not header[0].startswith("delayd-")]
    record: Headers | None = headers if role == "buffer" else None
    judged = own
    if role == "dead":
        judged, kept = [], list(headers)
        for name in reversed(_APPENDED):
            if kept and kept[-1][0] == name:
                judged.insert(0, kept.pop())
        record = kept
        user = [header for header in kept if not header[0].startswith("delayd-")]
    named = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "is_append_time": is_append_time or role == "buffer",
        "log_ms": log_ms,
        "key": None if key is None else bytearray(key),
        "value": None if value is None else bytearray(value),
        "headers": _plain(user),
        "record_headers": None if record is None else _plain(record),
        "control": _control(role, judged),
        "flaw": _flaw(role, judged),
        "older_flaw": _flaw(role, judged, (*WISH_HEADERS, *SERIES_HEADERS, *_OF_RULES_7)),
        "flaw_of_5": _flaw(role, judged, (*SERIES_HEADERS, *_OF_RULES_7)),
        "flaw_of_6": _flaw(role, judged, _OF_RULES_7),
        "size_bytes": _size(key, value, headers),
        "key_murmur2": None if key is None else murmur2(key) & 0x7FFFFFFF,
        "is_proved": _is_proved(limits, partition, key, value, headers)
        if limits is not None and role == "buffer"
        else None,
    }
    if role != "buffer":
        named |= {"older_flaw": None, "flaw_of_5": None, "flaw_of_6": None}
    return tuple(named[name] for name in RECORDS.fieldNames())


def bounds_at(
    settings: Settings,
    frontier: Frontier,
    offset: int,
    append_ms: int,
    ends: tuple[int, ...],
    target_partitions: Mapping[str, int],
) -> Bounds:
    """The bounds of an audit that cuts here, and for which Kafka has deleted nothing."""
    starts, cuts = (0,) * len(ends), (ShardCut(offset, append_ms),)
    return Bounds(
        *(settings, frontier, cuts, starts, ends, ends),
        trimmed_ms={},
        target_partitions=target_partitions,
        proofs_checked=True,
    )


def is_internal(headers: Headers) -> bool:
    """Has it a header that only the master's own records have?"""
    return any(name in _INTERNAL for name, _ in headers)


def _is_proved(
    limits: RequestLimits, partition: int, key: bytes | None, value: bytes | None, headers: Headers
) -> bool | None:
    """Does a record of the buffer end with the proof of a master? None if it needs none."""
    if not is_internal(headers):
        return None
    *others, (name, proof) = headers
    return name == "delayd-proof" and proof == proof_of(limits, partition, key, value, others)


def _plain(headers: Headers) -> list[tuple[str, bytearray | None]]:
    return [(name, None if value is None else bytearray(value)) for name, value in headers]


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = 128 + len(key or b"") + len(value or b"")
    return size + sum(10 + len(name.encode()) + len(value or b"") for name, value in headers)


def _known(role: str, own: Headers) -> frozenset[str]:
    if role == "buffer":
        if is_internal(own):
            return _OF_CONTINUATIONS
        return frozenset((*SUPPORTED_HEADERS, *WISH_HEADERS, *SERIES_HEADERS, *_OF_RULES_7))
    return _OF_DELIVERIES if role == "target" else frozenset(name for name, _ in own)


def _control(role: str, own: Headers) -> tuple[str | None, ...]:
    known = _known(role, own)
    texts = []
    for name in CONTROL_HEADERS:
        contents = [content for other, content in own if other == f"delayd-{name}"]
        text = None
        if f"delayd-{name}" in known and len(contents) == 1:
            text = _text(contents[0])
        texts.append(text)
    return tuple(texts)


def _text(content: bytes | None) -> str | None:
    try:
        return (content or b"").decode() or None
    except UnicodeDecodeError:
        return None


def _flaw(role: str, own: Headers, unknown: tuple[str, ...] = ()) -> str | None:
    known, seen = _known(role, own), set()
    if not is_internal(own):
        known -= {*unknown}
    for name, content in own:
        if name not in known:
            if name == UNREADABLE_HEADERS:
                return "not-utf8"
            if name in _INTERNAL:
                return "bad-proof"
            planned: tuple[str, ...] = (
                PLANNED_BEFORE_WISHES if len(unknown) > 4 else PLANNED_BEFORE_SERIES
            )
            planned = planned if unknown or is_internal(own) else ()
            return "not-supported" if name in planned else "unknown-header"
        if name in seen:
            return "repeated-header"
        seen.add(name)
        if not content:
            return "null-header" if content is None else "empty-header"
        if _text(content) is None:
            return "not-utf8"
    return None
