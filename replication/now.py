"""`now`, as a master may use it: never ahead of its own clock, nor of the broker's.

    now = min(wall clock, B + monotonic time since B arrived, less 200 ppm)

B is the broker's append time in the delivery report of the master's last frontier record. When the
report arrives, the broker's clock shows at least B. So the second term never runs ahead of it:

- B is what the broker's clock showed, cut to whole ms: never more than it showed;
- the time since is counted in ns and cut to whole ms at the end: two readings in ms, each cut,
  could be one ms further apart than the moments were;
- the clocks may run at different rates, and B + time since stays behind the broker's as long as
  these differ by less than 200 ppm.

So what is due by this now is stamped at its due time or later, to the ms, by a broker whose clock
does not step back (nor is slewed back faster than that). A master whose clock is fast delivers
nothing early; one whose clock is far off resigns.

Source: docs/design/frontier.md, "Now".
"""

from typing import NamedTuple

BOUND_AGE_MAX_MS = 60_000
"""An empty step renews an older bound first."""

RATES_PPM_MAX = 200
"""How much faster than the broker's clock this machine's may run: twice the tolerance of quartz. It
makes an idle master 1 ms late after 5 s without a step."""

MS_NS = 1_000_000


class BrokerBound(NamedTuple):
    """B (Unix ms), and the master's monotonic time (ns) when its report arrived, or later."""

    append_ms: int
    arrived_ns: int

    def is_stale(self, monotonic_ns: int) -> bool:
        """Return True if the bound is too old to deliver by."""
        return monotonic_ns - self.arrived_ns > BOUND_AGE_MAX_MS * MS_NS


def bounded_now_ms(wall_ms: int, monotonic_ns: int, bound: BrokerBound) -> int:
    """Return the time by which a step may deliver."""
    surely_ns = (monotonic_ns - bound.arrived_ns) * (1_000_000 - RATES_PPM_MAX) // 1_000_000
    return min(wall_ms, bound.append_ms + surely_ns // MS_NS)


def drift_ms(append_ms: int, sent_wall_ms: int, reported_wall_ms: int) -> int:
    """Return how far a broker's append time lies outside the interval of its sender's wall clock.

    Positive: the broker is ahead of this machine; negative: behind; 0: consistent.
    """
    if append_ms > reported_wall_ms:
        return append_ms - reported_wall_ms
    if append_ms < sent_wall_ms:
        return append_ms - sent_wall_ms
    return 0
