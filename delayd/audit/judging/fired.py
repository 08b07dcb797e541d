"""`delayd-fired`, compared with the frontier: it is the `now` of the step that delivered.

Which step that was is not asked: that would be a search for each delivery. A time at which no step
was made is wrong for sure. Only the last day is judged, of which Kafka keeps all frontier records;
not what lies where one of them is missing, nor the last seconds, because deliveries of steps beyond
those that were read are there too, by a clock that may be behind.
Source: docs/design/audit.md, "Deliveries".
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.links import COMPACTION_LAG_MS
from delayd.audit.judging.search import BROADCAST_ROWS_MAX
from delayd.audit.judging.too_late import CLOCKS_APART_MS

GAPS_MAX: Final = 100
"""More places where frontier records are missing, and nothing is judged."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When steps were made."""

    times: DataFrame
    """now_ms, each once"""
    gaps: tuple[tuple[int, int], ...]
    """Between these times steps may be missing."""
    since_ms: int
    until_ms: int

    def beside(self, deliveries: DataFrame) -> DataFrame:
        """Return deliveries (with fired_ms) and `off_step`: why no step can have made them; or
        null."""
        fired_ms = F.col("fired_ms")
        is_judged = (fired_ms > self.since_ms) & (fired_ms < self.until_ms)
        for first_ms, last_ms in self.gaps:
            is_judged &= ~fired_ms.between(first_ms, last_ms)
        said = F.format_string(
            "delivered with another time of delivery: no step was made at %d", fired_ms
        )
        return (
            deliveries.join(F.broadcast(self.times), fired_ms == F.col("now_ms"), "left")
            .withColumn("off_step", F.when(is_judged & F.col("now_ms").isNull(), said))
            .drop("now_ms")
        )


def step_times_of(frontiers: DataFrame, bounds: Bounds) -> StepTimes | None:
    """Return the times of steps from FRONTIERS; None if too many are missing, or there are too
    many."""
    since_ms = bounds.frontier_append_ms - COMPACTION_LAG_MS
    until_ms = bounds.frontier_append_ms - CLOCKS_APART_MS
    history = Window.partitionBy("shard").orderBy("offset")
    steps = frontiers.where(F.col("flaw").isNull() & (F.col("append_ms") >= since_ms)).withColumn(
        "last_ms", F.lag("now_ms").over(history)
    )
    follows = F.col("step") == F.lag("step").over(history) + 1
    gaps = (
        steps.withColumn("follows", follows)
        .where("not follows")
        .select(F.least("last_ms", "now_ms"), F.greatest("last_ms", "now_ms"))
        .limit(GAPS_MAX + 1)
        .collect()
    )
    times = steps.select("now_ms").distinct().localCheckpoint()
    if len(gaps) > GAPS_MAX or times.count() > BROADCAST_ROWS_MAX:
        return None
    return StepTimes(
        times,
        tuple((first_ms, last_ms) for first_ms, last_ms in gaps),
        since_ms + CLOCKS_APART_MS,
        until_ms,
    )
