"""Verdicts `too-late` about messages that were not due: no master can know that yet.

A verdict is judged under the frontier before the step that gives it, and `too-late` is said of what
that frontier covers. Its cursors never run ahead of the masters' clocks, so what is due beyond all
of them cannot have come out: that it does later only shows that the cancel marker was ignored.

The time that a receipt has is not compared itself: a master's `now` may lie behind that of an
earlier step. Only where the frontier's record is gone clocks must do.
Source: docs/design/audit.md, "Verdicts".
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.judging.columns import shard_of
from delayd.audit.judging.links import cursor_times_of

CLOCKS_APART_MS: Final = 10_000
"""How far a step's `now` may lie behind an earlier one's: two clocks that are each allowed to be
off by half a second, and a delivery report that took as long as it may (5 s)."""


def not_due_yet(told: DataFrame, frontiers: DataFrame, shards: int = 1) -> DataFrame:
    """Return those of `told` (with partition, at_ms, `now` of the step that told it, and latest_ms,
    the latest due time of what it was said of) whose time no step of their shard before had
    reached."""
    history = Window.partitionBy("shard").orderBy("offset")
    highest_ms = F.array_max(cursor_times_of(F.struct("cursor", "lanes")))
    follows = F.col("step") == F.lag("step").over(history) + 1
    reached = (
        frontiers.where(F.col("flaw").isNull())
        .select("shard", "offset", "step", "now_ms", highest_ms.alias("highest_ms"))
        .withColumn("before_ms", F.when(follows, F.lag("highest_ms").over(history)))
        .groupBy("shard", F.col("now_ms").alias("at_ms"))
        .agg(F.max(F.coalesce("before_ms", F.col("now_ms") + CLOCKS_APART_MS)).alias("reached_ms"))
    )
    by_clocks_ms = F.col("at_ms") + CLOCKS_APART_MS
    return (
        told.withColumn("shard", shard_of(shards))
        .join(reached, ["shard", "at_ms"], "left")
        .where(F.col("latest_ms") > F.coalesce("reached_ms", by_clocks_ms))
        .drop("reached_ms", "shard")
    )
