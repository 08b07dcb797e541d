"""What random requests come to: the reference model, fed by the cluster's own parser.

Not here: the rules about ids (chaos/reference_model.py), whether they were kept (chaos/judge.py).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from outcomes_read import Found, OutcomesRead

from chaos.asked import Asked, Content, Op, read_asked, series_of
from chaos.judge import Findings, judge_outcomes
from chaos.records import Logged
from chaos.reference_model import Model
from delayd.bus import Record
from delayd.request import Reject, Request, RequestLimits, parse
from delayd.request.local_times import shown
from delayd.request.spreading import planned_ms_of

TIMES = ("due", "delay", "level")


@dataclass(slots=True)
class RandomModel:
    """Fed with the buffer's records, in order within a partition."""

    limits: RequestLimits
    far_ms: int
    """What is due later is not waited for."""
    model: Model = field(default_factory=Model)
    ends: dict[int, int] = field(default_factory=dict)
    """By partition: 1 + the last offset."""
    horizon_ms: int = 0
    """When the last message that is waited for is due."""

    def __post_init__(self) -> None:
        self.model.max_delay_ms = self.limits.max_delay_ms

    def take(self, record: Record) -> None:
        """Apply the next record of its partition."""
        self.ends[record.partition] = record.offset + 1
        asked = asked_of(record, self.limits)
        self.model.take(asked)
        if asked.op is not Op.REJECTED and asked.rank[0] < self.far_ms:
            self.horizon_ms = max(self.horizon_ms, asked.rank[0])

    def judge(self, seen: OutcomesRead) -> Findings:
        """Return what is wrong with what was read. Call it once."""
        receipts = [
            Logged(
                *("receipts", 0, 0, 0, told["id"].encode(), json.dumps(told).encode()),
                (("delayd-source", told["source"].encode()),),
            )
            for each in seen.receipts.values()
            for told in each
        ]
        parts = (logged_as(seen.delivered.values()), logged_as(seen.letters.values()))
        return judge_outcomes(self.model, *parts, receipts, until_ms=self.far_ms - 1)


def asked_of(record: Record, limits: RequestLimits) -> Asked:
    """Return what a record of the buffer asks for, as a node would read it."""
    logged = Logged(
        *("buffer", record.partition, record.offset, record.append_ms, record.key, record.value),
        tuple(record.headers),
    )
    request = parse(record, limits)
    if isinstance(request, Reject):
        rejected = read_asked(logged, None, request.reason.slug)
        return replace(rejected, id=request.id, is_truncated=request.truncated)
    return Asked(
        logged,
        Op[request.op.name],
        request.id,
        content_of(request),
        tuple((name, logged.fields[name]) for name in TIMES if name in logged.fields),
        next_due_ms=request.due_ms,
        refers_to=refers_to(request, record.partition),
        is_told=request.is_told,
        late=logged.fields.get("late", ""),
        late_ms=None if request.wishes is None else request.wishes.late_ms,
        window=logged.fields.get("window", ""),
        planned_ms=planned_of(request, f"{record.partition}/{record.offset}"),
        group=logged.fields.get("group", ""),
        series=series_of(logged.fields) if request.series is not None else (),
        occurrence=0 if request.series is None else request.series.occurrence,
        state=logged.fields.get("resolved", "no" if request.local else "")
        or logged.fields.get("series", "on"),
        local="" if request.local is None else shown(request.local),
        follows="follows" in logged.fields,
        by_ms=request.by_ms,
        new_due_ms=request.asked_due_ms,
        moved_by=f"{record.partition}/{request.moved_by}" if request.moved_by >= 0 else "",
        max_wait_ms=request.max_wait_ms,
    )


def planned_of(request: Request, source: str) -> int | None:
    """Return when a request with a window is to be delivered; None without one."""
    window_ms = None if request.wishes is None else request.wishes.window_ms
    if window_ms is None:
        return None
    if request.local is None or request.continues is None:
        return request.due_ms
    return planned_ms_of(request.asked_due_ms, window_ms, request.id or request.origin or source)


def content_of(request: Request) -> Content | None:
    """Return what a request asks to deliver; None for a cancel."""
    if request.topic is None:
        return None
    what = (request.topic, request.partition, request.key, request.value, tuple(request.headers))
    return Content(*what, due_ms=request.asked_due_ms)


def refers_to(request: Request, partition: int) -> str:
    """Return the source that a continuation or a redrive names."""
    if request.continues is not None:
        return f"{partition}/{request.continues[1]}"
    return request.redrive or ""


def logged_as(found: Iterable[list[Found]]) -> list[Logged]:
    """Return what was found as the judge reads it, with the time at which it was received."""
    return [
        Logged(each.topic, each.partition, 0, each.received_ms, each.key, each.value, headers)
        for group in found
        for each in group
        for headers in [tuple(each.headers)]
    ]
