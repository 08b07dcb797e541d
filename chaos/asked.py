"""What a record of the buffer asks for, as a reader of the log says it. Pure.

Independent of the product, as the model that is made of it (`reference_model.py`): it imports
neither `delayd` nor `replication`.

Source: docs/reference/requests.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import NamedTuple

from chaos.records import Logged

TRACING = re.compile(
    r"traceparent|tracestate|baggage|b3|x-b3-.*|sentry-trace|uber-trace-id|x-datadog-.*"
    r"|elastic-apm-traceparent"
)
"""Headers that do not tell two requests apart."""

Rank = tuple[int, int, int]
"""When it may be delivered (Unix ms), partition, offset."""


class Op(Enum):
    """What a record asks for."""

    SCHEDULE = "schedule"
    REDRIVE = "redrive"
    CANCEL = "cancel"
    REPLACE = "replace"
    RESCHEDULE = "reschedule"
    FIRE = "fire"
    DEBOUNCE = "debounce"
    CONTINUE = "continue"
    SETTLE = "settle"
    SWITCH = "switch"
    REJECTED = "rejected"


class Content(NamedTuple):
    """What is to be delivered."""

    topic: str | None
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    due_ms: int

    @property
    def asked(self) -> tuple[object, ...]:
        """All that two requests are compared by, except when they are due."""
        headers = [header for header in self.headers if not TRACING.fullmatch(header[0].lower())]
        return (*self[:-2], headers)


@dataclass(frozen=True, slots=True)
class Asked:
    """A record of the buffer, read. Only a cancel has no content."""

    record: Logged
    op: Op
    id: str | None = None
    content: Content | None = None
    times: tuple[tuple[str, str], ...] = ()
    """The header that asks for a time, as it was written: `5s` and `5000ms` are not the same."""
    next_due_ms: int = 0
    """Of a continuation: when it is tried again."""
    refers_to: str = ""
    """Of a continuation: the source it continues. Of a redrive: that of the dead letter."""
    reason: str | None = None
    """Of a rejected request: of its dead letter, where that is known."""
    is_truncated: bool = False
    """A rejected request whose dead letter does without the value."""
    is_told: bool = False
    """It asks for all its receipts itself."""
    late: str = ""
    """As it was written: how much later than due it is worth delivering."""
    late_ms: int | None = None
    window: str = ""
    """As it was written: how far its due time is spread."""
    planned_ms: int | None = None
    """Where in the window it is to be delivered, Unix ms."""
    group: str = ""
    """A name that it shares with others."""
    series: tuple[str, ...] = ()
    """Of a series: expression, zone, end and catch-up, as they were written."""
    occurrence: int = 0
    """Of a series: its number, 0 as its user sent it."""
    state: str = "on"
    """Of a series: on, last or over. Of a local time: no, expected, final or over."""
    follows: bool = False
    """Of a continuation: what it continues came out."""
    by_ms: int | None = None
    """Of a reschedule: how much later, if it says that; else `new_due_ms` says when."""
    new_due_ms: int = 0
    moved_by: str = ""
    """Of a continuation: the source of the reschedule that it carries out."""
    local: str = ""
    """Of a local time: as it was written, with its zone: `2027-03-28T09:00[Europe/Berlin]`."""
    max_wait_ms: int = 0
    """Of a debounce: how long after the first one of its run it goes out at the latest."""

    @property
    def goes_on(self) -> bool:
        """Return whether another record of its series, or of its local time, must follow."""
        open_states = ("on",) if self.series else ("no", "expected") if self.local else ()
        return self.state in open_states

    @property
    def source(self) -> str:
        """`partition/offset`."""
        return self.record.place

    @property
    def rank(self) -> Rank:
        """Nothing ranks before its own acceptance."""
        due_ms = self.content.due_ms if self.content is not None else 0
        due_ms = due_ms if self.planned_ms is None else self.planned_ms
        at_ms = max(self.next_due_ms if self.op is Op.CONTINUE else due_ms, self.record.append_ms)
        return (at_ms, self.record.partition, self.record.offset)

    def is_as(self, other: "Asked") -> bool:
        """Return whether both ask for the same message, as far as a duplicate is concerned."""
        assert self.content is not None and other.content is not None
        wishes = [
            (each.late, each.window, each.group, each.series, each.local, each.max_wait_ms)
            for each in (self, other)
        ]
        same_times = self.times == other.times and wishes[0] == wishes[1]
        return same_times and self.content.asked == other.content.asked


def read_asked(record: Logged, due_ms: int | None, reason: str | None = None) -> Asked:
    """Return what a user's record asks for by its headers. `due_ms` None: it is rejected."""
    fields = record.fields
    id = fields.get("id")
    if record.is_settlement:
        return Asked(record, Op.SETTLE)
    if record.is_barrier or record.is_order:
        return Asked(record, Op.SWITCH)
    if due_ms is None:
        return Asked(record, Op.REJECTED, id, content_of(record, 0), reason=reason)
    op = Op.REDRIVE if "redrive" in fields else Op(fields.get("op", "schedule"))
    if op is Op.CANCEL:
        return Asked(record, op, id)
    if op in (Op.RESCHEDULE, Op.FIRE):
        by = fields.get("by", "")
        by_ms = span_ms(by[1:]) * (-1 if by[0] == "-" else 1) if by else None
        new_due_ms = record.append_ms
        if "delay" in fields:
            new_due_ms += span_ms(fields["delay"])
        new_due_ms = int(fields.get("due", new_due_ms))
        return Asked(record, op, id, by_ms=by_ms, new_due_ms=new_due_ms)
    times = tuple((name, fields[name]) for name in ("due", "delay", "level") if name in fields)
    content = content_of(record, due_ms)
    late, local = fields.get("late", ""), local_of(fields)
    planned_ms = planned_of(due_ms, fields, record.place)
    return Asked(
        *(record, op, id, content, times),
        refers_to=fields.get("redrive", ""),
        is_told="receipt" in fields,
        late=late,
        late_ms=span_ms(late) if late else None,
        window=fields.get("window", ""),
        planned_ms=None if local else planned_ms,
        group=fields.get("group", ""),
        series=series_of(fields),
        state="no" if local else "on",
        local=local,
        max_wait_ms=span_ms(fields["max-wait"]) if op is Op.DEBOUNCE else 0,
    )


def planned_of(due_ms: int, fields: Mapping[str, str], origin: str) -> int | None:
    """Return where in its window a message is to be delivered, Unix ms; None without one."""
    if "window" not in fields:
        return None
    return spread_ms(due_ms, span_ms(fields["window"]), fields.get("id", origin))


def spread_ms(due_ms: int, window_ms: int, name: str) -> int:
    """Return where in its window a message of that name is to be delivered, Unix ms."""
    return due_ms + window_ms * int(sha256(name.encode()).hexdigest()[:8], 16) // 2**32


def local_of(fields: Mapping[str, str]) -> str:
    """Return the local time of a request and its zone; nothing if it has none."""
    if "zone" not in fields or "cron" in fields:
        return ""
    return f"{fields['due']}[{fields['zone']}]"


def series_of(fields: Mapping[str, str]) -> tuple[str, ...]:
    """Return what makes a record one of a series, as it was written; nothing if it is of none."""
    if "cron" not in fields:
        return ()
    return tuple(fields.get(name, "") for name in ("cron", "zone", "until", "catchup"))


def span_ms(text: str) -> int:
    """Return the milliseconds that `10s` and the like stand for."""
    number, unit = text.rstrip("mshd"), text.lstrip("0123456789")
    factors = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return int(number) * factors[unit]


def read_continuation(record: Logged) -> Asked:
    """Return what a record of a master's asks for."""
    fields = record.fields
    return Asked(
        record,
        Op.CONTINUE,
        fields.get("id"),
        content_of(record, int(fields["due"])),
        next_due_ms=int(fields["next-due"]),
        refers_to=f"{record.partition}/{fields['continues']}",
        is_told="receipt" in fields,
        late_ms=span_ms(fields["late"]) if "late" in fields else None,
        window=fields.get("window", ""),
        planned_ms=planned_of(int(fields["due"]), fields, fields["origin"]),
        group=fields.get("group", ""),
        series=series_of(fields),
        occurrence=int(fields.get("occurrence", 0)),
        state=fields.get("resolved", fields.get("series", "on")),
        local=fields.get("local", ""),
        follows="follows" in fields,
        moved_by=f"{record.partition}/{fields['moved-by']}" if "moved-by" in fields else "",
    )


def content_of(record: Logged, due_ms: int) -> Content:
    """Return what a request asks to deliver at `due_ms`."""
    fields = record.fields
    partition = int(fields["partition"]) if fields.get("partition", "").isdigit() else None
    key = fields["key"].encode() if "key" in fields else record.key
    return Content(fields.get("topic"), partition, key, record.value, record.own, due_ms)
