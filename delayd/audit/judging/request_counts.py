"""Counts of requests, by one pass: which targets they name, and what there is of what is rare.

What there is none of is left out of later plans, or need not be asked for by jobs of their own.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_OPS: Final = 15
"""More than there are: schedule, cancel, replace, reschedule, fire, redrive, continue, switch,
hold, quota, gate, debounce, reject."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which kinds of records, by their operations, are there beside schedules, cancels and
    replaces."""

    moves: bool = True
    """Reschedules and fires."""
    debounces: bool = True
    redrives: bool = True
    continuations: bool = True


ALL_KINDS: Final = Kinds()


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What REQUESTS hold."""

    targets: frozenset[str]
    """Topics that requests name; of what is refused they do not count."""
    continuations: int
    redrives: int
    moves: int
    """Reschedules and fires."""
    debounces: int
    switches: int
    """Records that switch the rules, or would."""
    orders: int
    """Records that pause a target, or resume it."""
    quotas: int
    """Records that limit a target, or say that it is full or open."""
    with_late: int
    """Requests with `delayd-late`, and records that say that a series is over."""

    @property
    def kinds(self) -> Kinds:
        """Return what is there at all."""
        counts = (self.moves, self.debounces, self.redrives, self.continuations)
        return Kinds(*(count > 0 for count in counts))


def counts_of(requests: DataFrame, targets_max: int) -> RequestCounts | None:
    """Count REQUESTS; None if they name more targets than that."""
    topic = F.when(F.col("op") != "reject", F.col("topic")).alias("topic")
    # A series that is over is given up whenever a step comes to it, as what has expired.
    is_timed = F.col("late_ms").isNotNull() | F.coalesce("is_over", F.lit(False))
    counted = requests.groupBy("op", topic).agg(
        F.count("*").alias("count"), F.count_if(is_timed).alias("with_late")
    )
    rows = counted.limit(_OPS * (targets_max + 1)).collect()
    targets = frozenset(row.topic for row in rows if row.topic is not None)
    if len(targets) > targets_max:
        return None

    def count(op: str) -> int:
        return sum(row["count"] for row in rows if row.op == op)

    return RequestCounts(
        targets,
        continuations=count("continue"),
        redrives=count("redrive"),
        moves=count("reschedule") + count("fire"),
        debounces=count("debounce"),
        switches=count("switch"),
        orders=count("hold"),
        quotas=count("quota") + count("gate"),
        with_late=sum(row.with_late for row in rows),
    )
