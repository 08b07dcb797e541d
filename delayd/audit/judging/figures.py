"""Figures over time besides lateness: the heat map of what is pending, and time travel."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from delayd.audit.judging.columns import PLACE, source_text
from delayd.audit.report import EXAMPLES_MAX, Travel

HEAT_BUCKETS_MAX: Final = 96

HOUR_MS: Final = 3_600_000
_SECOND, _MINUTE, _DAY = 1_000, 60_000, 86_400_000

WIDTHS_MS: Final = (
    *(_SECOND * n for n in (1, 2, 5, 10, 20, 30)),
    *(_MINUTE * n for n in (1, 2, 5, 10, 20, 30)),
    *(HOUR_MS * n for n in (1, 2, 4, 6, 12, 24)),
)
"""The widths of the intervals of a figure: few and round ones."""

NEVER_PENDING: Final = ("rejected", "duplicate", "conflict", "recurring")
UNKNOWN_END: Final = ("lost", "unproven")
"""Fates of which nothing says when they were met: pending until they were due, that is all."""


def width_of(least_ms: int, most_ms: int, count_max: int) -> int:
    """Return a round width, ms, by which at most `count_max` intervals, aligned to it, hold both
    ends."""
    assert count_max > 1, "two ends may lie in two intervals"
    for width_ms in WIDTHS_MS:
        if most_ms // width_ms - least_ms // width_ms < count_max:
            return width_ms
    return _DAY * -(-(most_ms - least_ms) // (_DAY * (count_max - 1)))


def heat_of(expected: DataFrame, pending: DataFrame, found: DataFrame) -> DataFrame:
    """Return how many messages are pending by due time and node, and how many of them differ, as
    report.HeatCell; of each node at most HEAT_BUCKETS_MAX. `found` is what judge_replicas found."""
    held = expected.select("node", "due_ms").unionByName(pending.select("node", "due_ms"))
    [(least_ms, most_ms)] = held.agg(F.min("due_ms"), F.max("due_ms")).collect()
    width_ms = width_of(least_ms or 0, most_ms or 0, HEAT_BUCKETS_MAX)
    at = F.expr(f"due_ms div {width_ms} * {width_ms}").alias("at_ms")
    differ = found.where("node is not null and due_ms is not null")
    counted = held.withColumns({"pending": F.lit(1), "differ": F.lit(0)}).unionByName(
        differ.select("node", "due_ms", F.lit(0).alias("pending"), F.lit(1).alias("differ"))
    )
    return (
        counted.groupBy(at, "node")
        .agg(F.sum("pending").alias("pending"), F.sum("differ").alias("differ"))
        .orderBy("at_ms", "node")
    )


def travel_of(messages: DataFrame, at_ms: int) -> Travel:
    """Return how many MESSAGES had been accepted at `at_ms` (Unix ms) and were neither delivered,
    cancelled, replaced nor dead yet. The due time is the one asked for, or the acceptance if that
    was later: a retry changes when it comes, not when it was due."""
    ended_ms = F.when(F.col("fate").isin(*UNKNOWN_END), F.col("rank_ms")).otherwise(
        F.coalesce("delivered_ms", "dead_ms", "killed_ms")
    )
    pending = messages.where(
        ~F.col("fate").isin(*NEVER_PENDING)
        & (F.col("append_ms") <= at_ms)
        & (ended_ms.isNull() | (ended_ms > at_ms))
    ).select(*PLACE, "topic", F.greatest("planned_ms", "append_ms").alias("due_ms"))
    count = F.count("*").alias("pending")
    hour = F.expr(f"due_ms div {HOUR_MS} * {HOUR_MS}").alias("hour_ms")
    by_topic = pending.groupBy("topic").agg(count).orderBy(F.desc("pending"), "topic").collect()
    by_hour = pending.groupBy(hour).agg(count).orderBy("hour_ms").collect()
    next_due = pending.orderBy("due_ms", *PLACE).limit(EXAMPLES_MAX)
    return Travel(
        at_ms=at_ms,
        pending=sum(row.pending for row in by_topic),
        by_topic=tuple(map(tuple, by_topic)),
        by_hour=tuple(map(tuple, by_hour)),
        next_due=tuple(map(tuple, next_due.select(source_text(), "topic", "due_ms").collect())),
    )
