"""What a step writes into the buffer for a reschedule: each message that it moves, with another due
time.

Not here: whether it moves any (`replication.verdict`), which records stand for them (`planner.py`).
Source: docs/design/rescheduling.md.
"""

from collections.abc import Iterator

from delayd.node.replica.cancel_marks import Judged
from delayd.request import BufferRecord, RequestLimits, continuation, moved_body


def moved_records(judged: Judged, limits: RequestLimits) -> Iterator[BufferRecord]:
    """Yield a record for each message: value, headers and attempts are as they were."""
    for frame, due_ms in judged.moved:
        yield continuation(
            moved_body(frame.body, due_ms),
            partition=frame.partition,
            offset=frame.offset,
            rank_due_ms=frame.due_ms,
            next_due_ms=due_ms,
            limits=limits,
            is_retry=False,
            moved_by=judged.marker.offset,
        )
