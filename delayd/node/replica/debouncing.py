"""A debounce at ingest: its marker, where it gets one, and its place in a half-known past. Pure.

Not here: what the rules say (`replication.debounce`).

Source: docs/design/debounce.md.
"""

from typing import Any

from delayd.bus import Record
from delayd.node.replica.cancel_marks import cancel_marker_body
from delayd.request import Request
from replication.ids import IdState
from replication.ingest import Decision
from replication.trimmed import MAYBE
from replication.verdict import CancelMarker


def debounce_body_of(
    record: Record, request: Request, decision: Decision, before: IdState
) -> tuple[Any, ...]:
    """Return what the frame of a debounce's marker keeps."""
    assert request.id is not None, "a debounce is about an id"
    as_of_ms = decision.state.as_of_ms(record.append_ms)
    place = record.partition, record.offset
    killed = decision.killed, before.killed
    marker = CancelMarker(True, *place, as_of_ms, *killed, is_debounce=True)
    return cancel_marker_body(marker, request.id, request.asked_due_ms)


def in_doubt(decision: Decision, offset: int) -> Decision:
    """Return the decision about a debounce whose due time a trimmed record may have changed."""
    assert decision.id is not None, "a debounce is remembered"
    live = [m._replace(digest=MAYBE) if m.offset == offset else m for m in decision.id.live]
    return decision._replace(id=decision.id._replace(live=tuple(live)))
