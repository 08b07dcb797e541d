"""What must hold of local times: docs/design/local-times.md.

All zones of a run differ from UTC by the same all year (`simulated/users.py`): the moment that a
clock shows is counted here.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from delayd.node.delivery import local_step

if TYPE_CHECKING:
    from log_rules import Request
    from simulation_checker import Checker

AHEAD_MS = {"UTC": 0, "Asia/Kolkata": 19_800_000, "Pacific/Honolulu": -36_000_000}
"""Of UTC, by zone."""


def moment_ms(local: str) -> int | None:
    """Return when the clock shows it; None if there is no such zone."""
    text, _, zone = local.removesuffix("]").partition("[")
    shown = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return round(shown.timestamp() * 1_000) - AHEAD_MS[zone] if zone in AHEAD_MS else None


class LocalChecker:
    """One finished run, as `read` has it."""

    def __init__(self, read: Checker) -> None:
        self._read = read
        self.seen: Counter[str] = Counter()
        """By state: how many records the masters wrote; and how many messages were delivered."""

    def check(self) -> None:
        """Raise AssertionError, with the source that breaks a rule."""
        read = self._read
        by_source = {message.source: message for message in read.messages}
        for request in read.rules.by_source.values():
            before = by_source.get(f"{request.partition}/{request.continues}")
            if request.op == "continue" and before is not None and before.local:
                self._check_link(before, request)
        for message in read.messages:
            if message.local and read.produced[message.source]:
                assert not message.is_open, f"{message} was not resolved"
                self.seen["delivered"] += 1

    def _check_link(self, before: Request, after: Request) -> None:
        """Check what stands in the buffer behind a record with a local time."""
        where = f"{after} behind {before}"
        if after.moved_by >= 0:
            assert not after.local, where
            return
        assert after.local == before.local, where
        self.seen[after.state] += 1
        # What nobody has resolved yet is due when it came.
        was_asked = str(before.due_ms) if before.continues is None else before.asked
        if after.state == before.state and after.asked in (before.asked, was_asked):
            return  # a retry, or deferred
        assert before.is_open, where
        due_ms = moment_ms(after.local)
        assert (due_ms is None) == (after.state == "over"), where
        if due_ms is None:
            return
        assert int(after.asked) == due_ms, f"{where}: the clock shows it at {due_ms}"
        step = self._read.steps[self._read.step_of[before.source]]
        is_near = due_ms - step.fields["now_ms"] <= local_step.AGAIN_MS
        assert (after.state == "final") == is_near, where
        if not is_near:
            assert after.due_ms <= due_ms - local_step.AGAIN_MS, where
