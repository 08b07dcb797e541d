"""A reschedule at ingest: its marker, and what its batch notes of the messages that it holds. Pure.

Not here: what the rules say (`replication.ingest`), and what the step that passes the marker makes
of it (`delayd.node.delivery`).

Source: docs/design/rescheduling.md.
"""

from typing import Any, Final

from delayd.bus import Record
from delayd.node.replica.cancel_marks import cancel_marker_body
from delayd.request import Request
from delayd.wheel.kills import Kill
from replication.ids import IdState, Reservation
from replication.ingest import Asked, Decision
from replication.verdict import CancelMarker, Move

NEVER_DELIVERED: Final = 0
"""In place of the marker that killed what is held: no step delivers it, however far O is."""

WRITES_MESSAGES: Final = 1
"""The lane of a marker whose step writes messages (`replication.delivery_queue`); 0 of others."""


def marker_body_of(
    record: Record, request: Request, asked: Asked, decision: Decision, before: IdState
) -> tuple[Any, ...]:
    """Return what the frame of a reschedule's marker keeps."""
    assert request.id is not None, "a reschedule is about an id"
    as_of_ms = decision.state.as_of_ms(record.append_ms)
    move = Move(asked.is_fire, decision.dues_ms)
    place = record.partition, record.offset
    marker = CancelMarker(False, *place, as_of_ms, decision.killed, before.killed, -1, move)
    return cancel_marker_body(marker, request.id, None)


def in_part(decision: Decision, offset: int) -> Decision:
    """Return the decision about a reschedule that may hold what a trimmed record brought, too."""
    assert decision.id is not None, "a marker says what becomes of the id"
    known = decision.id.reserved or Reservation(offset, ())
    partial = known._replace(is_whole=False)
    return decision._replace(id=decision.id._replace(reserved=partial, killed_by=offset))


def went_on(kill: Kill, decision: Decision) -> Kill:
    """Return the kill of a message after a continuation of it came: refused, held, or too late to
    be refused."""
    is_refused, place = kill.is_refused, kill.went_on
    if decision.is_refused and not is_refused:
        is_refused, place = True, None
    if decision.rank is not None:
        place = decision.rank.due_ms, decision.rank.offset
    return kill._replace(is_refused=is_refused, went_on=place)
