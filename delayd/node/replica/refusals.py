"""What the sender of a request that is not stored is told: a receipt, and perhaps a dead letter.

Pure. Not here: which requests these are (`replication.ingest`), and rejects, which are wrong in
themselves (`delayd.request`).
"""

from typing import Any

from delayd.bus import Record
from delayd.request import (
    Op,
    Reason,
    Reject,
    Request,
    Verdict,
    conflict_body,
    receipt,
    redriven_before,
    source_of,
)
from replication.ids import REDRIVES_MAX, IdState, held_counting
from replication.ingest import Decision, PendingReply

Body = tuple[Any, ...]


def refusal_of(
    record: Record,
    request: Request,
    decision: Decision,
    before: IdState,
    redriven: IdState,
    id_memory_ms: int,
) -> tuple[Body, Body | None]:
    """Return the receipt, and the dead letter if there is one. `before`: the state of the id;
    `redriven`: that of the source which a redrive names."""
    dead: Body | None = None
    if request.op is Op.REDRIVE and decision.reply is PendingReply.CONFLICT:
        verdict = Verdict.CONFLICT
        detail = (
            f"{REDRIVES_MAX} messages or more are pending under the id: wait until they are "
            "delivered, or cancel them, and redrive then"
        )
        dead = conflict_body(record, detail)
    elif request.op is Op.REDRIVE:
        verdict = Verdict.DUPLICATE
        assert request.redrive is not None, "a redrive names a source"
        first = source_of(record.partition, redriven.live[-1].offset)
        detail = redriven_before(request.redrive, first)
    else:
        as_of_ms = decision.state.as_of_ms(record.append_ms)
        pending = [(m.digest, m.asked_at, m.due_ms) for m in before.live if m.is_pending(as_of_ms)]
        held = held_counting(before, as_of_ms, id_memory_ms)
        pending += [(m.digest, m.message.asked_at, m.new_due_ms) for m in held]
        same = [m for m in pending if m[0] == request.digest]
        _, asked_at, due_ms = (same or pending)[0]
        holder = source_of(record.partition, asked_at)
        if decision.reply is PendingReply.DUPLICATE:
            verdict = Verdict.DUPLICATE
            detail = f"the same request is scheduled as {holder}, due at {due_ms}"
        else:
            verdict = Verdict.CONFLICT
            detail = (
                f"the id is taken by {holder}, due at {due_ms}, which asks for something "
                "else: send delayd-op replace to have this one instead, or use another id"
            )
            dead = conflict_body(record, detail)
    return receipt_for(record, request, verdict, detail), dead


def unmoved_of(request: Request, reply: PendingReply, max_delay_ms: int) -> Reject:
    """Return the reject of a reschedule that changes nothing of what is pending."""
    if reply is PendingReply.UNMOVABLE:
        reason = Reason.UNMOVABLE
        detail = (
            "a series is pending under the id, and a reschedule moves a single message: send"
            " delayd-op fire to deliver its next occurrence at once, or replace it"
        )
        if request.by_ms is not None:
            detail = (
                "a series is pending under the id, or a local time before its last day: neither has"
                " a due time that delayd-by could count from: give a local time another one with"
                " delayd-due, or replace what is pending"
            )
    else:
        reason = Reason.TOO_FAR
        detail = (
            f"what is pending would be due more than {max_delay_ms} ms after the append time,"
            " which is this cluster's max_delay: choose an earlier time"
        )
    return Reject(reason, detail, id=request.id, op=request.op)


def receipt_for(record: Record, request: Request, verdict: Verdict, detail: str = "") -> Body:
    """Return a receipt that names the id; without one, the source that a redrive names, else the
    request's own, which wants to be told."""
    source = source_of(record.partition, record.offset)
    return receipt(
        id=request.id or request.redrive or source,
        verdict=verdict,
        op=request.op,
        source=source,
        due_ms=request.asked_due_ms,
        detail=detail,
    )
