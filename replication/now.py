"""`now`, as a master may use it: never ahead of its own clock, nor of the broker's.

    now = min(wall clock, B + monotonic time since B arrived)

B is the broker's append time in the delivery report of the master's last frontier record. When the
report arrives the broker's clock shows at least B, so the second term never runs ahead of it. A
master whose clock is fast therefore delivers nothing early; one whose clock is far off resigns.

Source: docs/design/frontier.md, "Now".
"""

from typing import NamedTuple

BOUND_AGE_MAX_MS = 60_000
"""An older bound is renewed by an empty step first: monotonic clocks drift too."""

CLOCK_DRIFT_MAX_MS = 500
"""How far the broker's clock and the master's may be apart."""


class BrokerBound(NamedTuple):
    """B, and the master's monotonic time when its report arrived (both ms)."""

    append_ms: int
    arrived_monotonic_ms: int

    def is_stale(self, monotonic_ms: int) -> bool:
        """Too old to deliver by."""
        return monotonic_ms - self.arrived_monotonic_ms > BOUND_AGE_MAX_MS


def bounded_now_ms(wall_ms: int, monotonic_ms: int, bound: BrokerBound) -> int:
    """The time by which a step may deliver."""
    return min(wall_ms, bound.append_ms + monotonic_ms - bound.arrived_monotonic_ms)


def drift_ms(append_ms: int, sent_wall_ms: int, reported_wall_ms: int) -> int:
    """How far a broker's append time lies outside of the wall-clock interval that contains it.

    Positive: the broker is ahead of this machine; negative: behind; 0: consistent.
    """
    if append_ms > reported_wall_ms:
        return append_ms - reported_wall_ms
    if append_ms < sent_wall_ms:
        return append_ms - sent_wall_ms
    return 0
