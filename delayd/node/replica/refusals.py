"""What the sender of a request that is not stored is told: a receipt, and perhaps a dead letter.

Pure. Not here: which requests these are (`replication.ingest`), and rejects, which are wrong in
themselves (`delayd.request`).
"""

from typing import Any

from delayd.bus import Record
from delayd.request import (
    Op,
    Request,
    Verdict,
    conflict_body,
    receipt,
    redriven_before,
    source_of,
)
from replication.ids import REDRIVES_MAX, IdState
from replication.ingest import Decision, PendingReply

Body = tuple[Any, ...]


def refusal_of(
    record: Record, request: Request, decision: Decision, before: IdState, redriven: IdState
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
        pending = [m for m in before.live if m.is_pending(as_of_ms)]
        same = [m for m in pending if m.digest == request.digest]
        taken = (same or pending)[0]
        holder = source_of(record.partition, taken.asked_at)
        if decision.reply is PendingReply.DUPLICATE:
            verdict = Verdict.DUPLICATE
            detail = f"the same request is scheduled as {holder}, due at {taken.due_ms}"
        else:
            verdict = Verdict.CONFLICT
            detail = (
                f"the id is taken by {holder}, due at {taken.due_ms}, which asks for something "
                "else: send delayd-op replace to have this one instead, or use another id"
            )
            dead = conflict_body(record, detail)
    return receipt_for(record, request, verdict, detail), dead


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
