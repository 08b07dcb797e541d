"""What a step writes into the buffer for local times: the message, resolved.

    a request                     resolved at once: the next step comes to it
    due in more than a day        written again, to come back a day before: tzdata may have changed
    due in a day, or less         written for its due time; delivered then as any message

Not here: which moment a local time is (`delayd.request.recurrence.local_times`).
Source: docs/design/local-times.md.
"""

from typing import Final

from delayd.request import (
    BufferRecord,
    LocalState,
    RequestLimits,
    asked_due_of,
    continuation,
    local_of,
    planned_of,
    resolved_body,
)
from delayd.request.recurrence.local_times import problem_of, resolved_ms
from delayd.request.recurrence.zones import UnknownZoneError
from delayd.wheel import Frame

AGAIN_MS: Final = 24 * 60 * 60 * 1000
"""How long before it is due a local time is resolved for the last time."""

_REWRITTEN_MS_MIN: Final = 60 * 60 * 1000
"""Where the longest delay is shorter: the buffer keeps a record for a day more than that."""


class LocalStep:
    """What one step writes for local times."""

    def __init__(self, limits: RequestLimits, now_ms: int) -> None:
        self._limits = limits
        self._now_ms = now_ms

    def must_wait(self, frame: Frame) -> bool:
        """Return whether the step leaves a message to a later one: this node does not know the
        zone, as another did, and it is not due by what that one knew."""
        local = local_of(frame.body)
        assert local is not None, "it has a local time"
        is_waiting = local.state == LocalState.EXPECTED and asked_due_of(frame.body) > self._now_ms
        return is_waiting and problem_of(local.zone) is not None

    def problem_of(self, frame: Frame) -> str | None:
        """Return why a message has no due time; None if it has one, or may have."""
        local = local_of(frame.body)
        if local is None or local.state != LocalState.OVER:
            return None
        return problem_of(local.zone) or "a step did not know its time zone"

    def in_place_of(self, frame: Frame) -> BufferRecord | None:
        """Return the record that stands for a message from now on; None if that of the frame
        does."""
        local = local_of(frame.body)
        assert local is not None, "it has a local time"
        if local.state == LocalState.FINAL:
            return None
        try:
            due_ms = resolved_ms(local.text, local.zone)
        except UnknownZoneError:
            if local.state == LocalState.EXPECTED:
                due_ms = asked_due_of(frame.body)
                planned_ms = planned_of(frame.body, frame.partition, frame.offset)
                return self._record(frame, due_ms, LocalState.FINAL, planned_ms)
            return self._record(frame, asked_due_of(frame.body), LocalState.OVER, self._now_ms)
        body = resolved_body(frame.body, local, due_ms)
        planned_ms = planned_of(body, frame.partition, frame.offset)
        farthest_ms = self._now_ms + max(self._limits.max_delay_ms, _REWRITTEN_MS_MIN)
        again_ms = due_ms - AGAIN_MS
        if again_ms <= self._now_ms and planned_ms <= farthest_ms:
            return self._record(frame, due_ms, LocalState.FINAL, planned_ms)
        if again_ms <= self._now_ms:
            again_ms = farthest_ms
        return self._record(frame, due_ms, LocalState.EXPECTED, min(again_ms, farthest_ms))

    def _record(
        self, frame: Frame, due_ms: int, state: LocalState, next_due_ms: int
    ) -> BufferRecord:
        local = local_of(frame.body)
        assert local is not None, "it has a local time"
        return continuation(
            resolved_body(frame.body, local._replace(state=state), due_ms),
            partition=frame.partition,
            offset=frame.offset,
            rank_due_ms=frame.due_ms,
            next_due_ms=next_due_ms,
            limits=self._limits,
            is_retry=False,
        )
