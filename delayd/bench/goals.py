"""The goals of the figures, at full size, on two cores that brokers and nodes share."""

from dataclasses import dataclass
from operator import ge, le
from typing import Final

from delayd.bench.figures import Figure
from delayd.bench.result import number_text


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits of one figure, all of which are to be kept; None is no limit."""

    median_min: float | None = None
    median_max: float | None = None
    worst_max: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None

    def text(self) -> str:
        """Return the limits, for people."""
        limits = (
            ("at least", self.median_min),
            ("at most", self.median_max),
            ("each at most", self.worst_max),
            ("ratio at least", self.ratio_min),
            ("ratio at most", self.ratio_max),
        )
        return ", ".join(
            f"{words} {number_text(limit)}" for words, limit in limits if limit is not None
        )

    def is_met(self, figure: Figure) -> bool:
        """Return whether this figure keeps all limits."""
        kept = (
            (figure.value, ge, self.median_min),
            (figure.value, le, self.median_max),
            (max(figure.runs), le, self.worst_max),
            (figure.ratio, ge, self.ratio_min),
            (figure.ratio, le, self.ratio_max),
        )
        return all(
            limit is None or (value is not None and holds(value, limit))
            for value, holds, limit in kept
        )


GOALS: Final[dict[str, Goal]] = {
    "ingest": Goal(median_min=100_000, ratio_min=0.35),
    "deliver": Goal(ratio_min=0.8),
    "hot-second-p50": Goal(median_max=2_000),
    "hot-second-last": Goal(median_max=4_000),
    "hot-second-other-lane-last": Goal(median_max=250),
    "hot-second-memory": Goal(median_max=500),
    "hot-second-follower-cpu": Goal(ratio_max=0.4),
    "lateness-p50": Goal(median_max=5),
    "lateness-p99": Goal(median_max=25),
    "lateness-p999": Goal(median_max=100),
    "lateness-follower-cpu": Goal(ratio_max=0.4),
    "failover-gap": Goal(median_max=800, worst_max=1_500, ratio_max=1.4),
    "freeze-gap": Goal(worst_max=2_500),
    "handover-gap": Goal(median_max=100, worst_max=250),
    "scale-ingest-cpu": Goal(ratio_max=1.3),
    "scale-deliver-cpu": Goal(ratio_max=1.3),
    "scale-lateness-p99": Goal(ratio_max=2),
    "window-p99": Goal(median_max=50),
    "memory-anon": Goal(median_max=250),
    "startup-ready": Goal(median_max=5_000),
}
"""By figure."""


def goal_of(figure: Figure) -> Goal | None:
    """Return its goal; a count of faults has the goal 0."""
    return Goal(worst_max=0) if figure.is_fault else GOALS.get(figure.name)
