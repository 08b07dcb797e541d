"""Time travel: what was pending at a moment of the past, and what had been promised for when."""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from delayd.audit.judging.columns import source_text
from delayd.audit.judging.lateness import HOUR_MS
from delayd.audit.report import EXAMPLES_MAX

NEVER_PENDING: Final = ("rejected", "duplicate", "conflict")
UNKNOWN_END: Final = ("lost", "unproven")
"""Fates of which nothing says when they were met: pending until they were due, that is all."""


@dataclass(frozen=True, slots=True)
class Travelled:
    """The tables of report.Travel."""

    by_topic: DataFrame
    """topic, pending; most first"""
    by_hour: DataFrame
    """hour_ms, pending; in order"""
    next_due: DataFrame
    """source, topic, due_ms; at most EXAMPLES_MAX"""


def travel_of(messages: DataFrame, at_ms: int) -> Travelled:
    """MESSAGES that had been accepted at `at_ms` (Unix ms) and were neither delivered, cancelled,
    replaced nor dead yet. The due time is the one asked for, or the acceptance if that was later:
    a retry changes when it comes, not when it was due."""
    ended_ms = F.when(F.col("fate").isin(*UNKNOWN_END), F.col("rank_ms")).otherwise(
        F.coalesce("delivered_ms", "dead_ms", "killed_ms")
    )
    pending = messages.where(
        ~F.col("fate").isin(*NEVER_PENDING)
        & (F.col("append_ms") <= at_ms)
        & (ended_ms.isNull() | (ended_ms > at_ms))
    ).select("partition", "offset", "topic", F.greatest("due_ms", "append_ms").alias("due_ms"))
    count = F.count("*").alias("pending")
    hour = F.expr(f"due_ms div {HOUR_MS} * {HOUR_MS}").alias("hour_ms")
    return Travelled(
        by_topic=pending.groupBy("topic").agg(count).orderBy(F.desc("pending"), "topic"),
        by_hour=pending.groupBy(hour).agg(count).orderBy("hour_ms"),
        next_due=pending.orderBy("due_ms", "partition", "offset")
        .limit(EXAMPLES_MAX)
        .select(
            source_text(F.col("partition"), F.col("offset")).alias("source"), "topic", "due_ms"
        ),
    )
