"""What a record asks of the ingest rules (`replication.ingest`)."""

from typing import Final

from delayd.request import Op, Request
from replication.ids import LOCAL_TIME, SERIES
from replication.ingest import Asked
from replication.ingest import Op as IngestOp
from replication.rank import lane_of

REJECT: Final = Asked(IngestOp.REJECT, 0)
SWITCH: Final = Asked(IngestOp.SWITCH, 0)
SETTLE: Final = Asked(IngestOp.SETTLE, 0)
CONTROLS: Final = frozenset({Op.SWITCH, Op.HOLD, Op.QUOTA, Op.GATE})
"""What stores nothing, and asks nothing about an id."""
_CANCEL: Final = Asked(IngestOp.CANCEL, 0, has_id=True)
# See `delayd.request.parser`: members of enums, without what they cost.
_CANCEL_OP: Final = Op.CANCEL
_OPS: Final[dict[Op, IngestOp]] = {
    op: IngestOp[op.name] for op in Op if op not in (Op.FIRE, Op.HOLD, Op.QUOTA, Op.GATE)
}
_RESCHEDULE, _FIRE, _CONTINUE = Op.RESCHEDULE, Op.FIRE, Op.CONTINUE


def asked_of(request: Request, lanes: int) -> Asked:
    """Return what a request asks, in a cluster of so many lanes."""
    if request.op is _CANCEL_OP:
        return _CANCEL
    if request.op is _RESCHEDULE or request.op is _FIRE:
        return Asked(
            IngestOp.RESCHEDULE,
            request.due_ms,
            has_id=True,
            by_ms=request.by_ms,
            is_fire=request.op is _FIRE,
            latest_ms=request.due_ms,
        )
    lane = 0 if request.topic is None else lane_of(request.topic, lanes)
    return Asked(
        _OPS[request.op],
        request.due_ms,
        lane,
        request.id is not None,
        request.digest,
        has_own_time=request.has_own_time,
        goes_on=_goes_on(request),
        moved_by=request.moved_by,
        follows=request.follows,
        max_wait_ms=request.max_wait_ms,
        waits=request.op is _CONTINUE and _waits(request),
    )


def _waits(request: Request) -> bool:
    """Return whether a continuation is of a message that was due, and only deferred."""
    is_single = request.series is None and request.local is None
    return is_single and request.attempt == 0 and request.moved_by < 0


def _goes_on(request: Request) -> int:
    """Return whether another record of the message follows, and of what kind."""
    if request.series is not None:
        return SERIES if request.series.goes_on else 0
    return LOCAL_TIME if request.local is not None and request.local.goes_on else 0
