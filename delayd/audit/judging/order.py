"""Order: per target partition and shard, messages that were there in time come in rank order.

Excepted are continuations and what they continue, and late arrivals: those whose rank K had passed
before O passed them. What is another's finding is left aside, lest it be two: deliveries that are
doubled, early, in a wrong place, or of messages that had been killed.
Source: docs/design/audit.md, "Order".
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import (
    PLACE,
    findings,
    is_true,
    named_place,
    shard_of,
    source_text,
    table_of,
)
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.history import History, covered_by
from delayd.audit.tables import TARGET_PARTITIONS


def judge_order(
    logged: DataFrame, deliveries: DataFrame, history: History, bounds: Bounds
) -> DataFrame:
    """Return messages that came after one of a higher rank, as FINDINGS; the reason names that one.

    Those whose lateness the history does not tell are not judged.
    """
    placed = _placed(logged, deliveries, bounds.target_partitions)
    suspects = covered_by(_overtaken(placed, bounds.shards), history, late_too=False)
    is_ghost = is_true(F.col("killed_by") < F.col("step_end"))
    why = F.format_string(
        "it came after %d/%d, which ranks by %d, and it by %d",
        *("highest.partition", "highest.offset", "highest.rank_ms", "rank_ms"),
    )
    return findings(
        suspects.where(~F.col("is_late") & ~is_ghost),
        {Fault.ORDER: why},
        *("topic", "due_ms"),
        source=source_text(),
        partition=F.col("target_partition"),
        offset=F.col("target_offset"),
    )


def _placed(logged: DataFrame, deliveries: DataFrame, partitions: Mapping[str, int]) -> DataFrame:
    """Return where each message that counts was delivered. One shuffle of both tables, by
    source."""
    once = (
        deliveries.where("source_offset is not null")
        .select(
            *named_place(),
            F.col("topic").alias("found_topic"),
            F.col("partition").alias("found_partition"),
            F.col("offset").alias("target_offset"),
            F.least("timestamp_ms", "fired_ms").alias("found_ms"),
        )
        .withColumn("times", F.count("*").over(Window.partitionBy(*PLACE)))
        .where("times = 1")
    )
    is_alone = F.col("continues").isNull() & F.col("continued_by").isNull()
    asked = logged.where(F.col("stored") & is_alone).select(
        *("partition", "offset", "topic", "lane", "rank_ms", "due_ms", "planned_ms", "killed_by"),
        *("key_murmur2", F.col("target_partition").alias("asked_partition")),
    )
    known = table_of(logged.sparkSession, TARGET_PARTITIONS, [*partitions.items()])
    by_key = F.when(F.col("partitions") > 0, F.col("key_murmur2") % F.col("partitions"))
    wanted = F.coalesce("asked_partition", by_key, "found_partition")
    return (
        once.join(asked, PLACE)
        # Not a plain equality: that would become a key of the join, and shuffle once more for it.
        .where((F.col("topic") == F.col("found_topic")).eqNullSafe(F.lit(True)))
        .where(F.col("found_ms") >= F.col("planned_ms"))
        .join(F.broadcast(known), "topic", "left")
        .where(F.col("found_partition") == wanted)
        .select(
            *("topic", F.col("found_partition").alias("target_partition"), "target_offset"),
            *("partition", "offset", "lane", "rank_ms", "due_ms", "killed_by"),
        )
    )


def _overtaken(placed: DataFrame, shards: int) -> DataFrame:
    """Return messages behind one of their shard and of a higher rank, which is `highest`. Late ones
    do not set it: what comes after them in time ranks above them."""
    of_shard = [shard_of(shards)] if shards > 1 else []
    before = (
        Window.partitionBy("topic", "target_partition", *of_shard)
        .orderBy("target_offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    return placed.withColumn("highest", F.max(_rank()).over(before)).where(
        _rank() < F.col("highest")
    )


def _rank() -> Column:
    return F.struct("rank_ms", "partition", "offset")
