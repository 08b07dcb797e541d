"""The fates: each request of a user has exactly one.

A request's *family* is the request and all records that continue it. Facts are counted by the
record that they name, then by family; most families are one record, and are not grouped at all.
Source: docs/design/audit.md, "Fates".
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import as_table, is_below, is_done
from delayd.audit.judging.contents import together
from delayd.audit.judging.lateness import delivered_at
from delayd.audit.judging.retention import is_uncertain, trimmed_ms
from delayd.audit.tables import MESSAGES

MARK_HIDDEN_MS_MAX: Final = 900_000
"""How long before O passes it a cancel marker may have been appended: Kafka's longest transaction
of a user (`transaction.max.timeout.ms`), which hides what is behind it."""

_FACTS: Final = ("deliveries", "letters", "fired_ms", "delivered_ms", "dead_ms")

_OWN: Final = (
    *("partition", "offset", "id", "topic", "append_ms", "due_ms", "op", "stored", "answer"),
    "is_uncertain",
)
_NEWEST: Final = ("newest", "rank_ms", "lane", "killed_by", "killed_ms", "killed_op")


def judge_messages(
    logged: DataFrame, deliveries: DataFrame, letters: DataFrame, bounds: Bounds
) -> DataFrame:
    """Return one row for each request of a user that is no valid cancel (tables.MESSAGES).

    Two shuffles of the size of all messages: the log's, and that of what came out. Receipts are
    claims, and change no fate.
    """
    facts = _facts(deliveries, letters)
    records = logged.where(F.col("op") != "cancel").select(
        *(name for name in _OWN if name != "is_uncertain"),
        *("rank_ms", "lane", "killed_by", "killed_ms", "killed_op", "origin", "is_refused"),
        F.col("offset").alias("newest"),
        is_uncertain(bounds).alias("is_uncertain"),
        (F.col("continued_by").isNotNull() | (F.col("op") == "continue")).alias("is_continued"),
        _content().alias("content"),
    )
    known = records.join(facts, ["partition", "offset"], "left").fillna(
        0, subset=["deliveries", "letters"]
    )
    alone = known.where(~F.col("is_continued")).withColumn("is_changed", F.lit(False))
    families = _families(known.where("is_continued"))
    columns = [*_OWN, *_NEWEST, *_FACTS, "is_refused", "is_changed"]
    return _with_fates(alone.select(*columns).unionByName(families.select(*columns)), bounds)


def _facts(deliveries: DataFrame, letters: DataFrame) -> DataFrame:
    """Return what names a record, by the record."""
    nothing = F.lit(None).cast("bigint")
    delivered = deliveries.where("source_offset is not null").select(
        F.col("source_partition").alias("partition"),
        F.col("source_offset").alias("offset"),
        "fired_ms",
        delivered_at(F.col("timestamp_ms"), F.col("is_append_time"), F.col("fired_ms")).alias(
            "delivered_ms"
        ),
        nothing.alias("dead_ms"),
        F.lit(False).alias("is_letter"),
    )
    dead = letters.where("reason = 'dead' and source_offset is not null").select(
        F.col("source_partition").alias("partition"),
        F.col("source_offset").alias("offset"),
        nothing.alias("fired_ms"),
        nothing.alias("delivered_ms"),
        F.col("timestamp_ms").alias("dead_ms"),
        F.lit(True).alias("is_letter"),
    )
    return (
        delivered.unionByName(dead)
        .groupBy("partition", "offset")
        .agg(
            F.count_if(~F.col("is_letter")).alias("deliveries"),
            F.count_if("is_letter").alias("letters"),
            F.min("fired_ms").alias("fired_ms"),
            F.min("delivered_ms").alias("delivered_ms"),
            F.min("dead_ms").alias("dead_ms"),
        )
    )


def _content() -> Column:
    """Return what must be the same in all records of a family."""
    names = ("topic", "key_hash", "value_hash", "headers_hash", "id", "due_ms", "target_partition")
    return together(*(F.col(name) for name in names))


def _families(members: DataFrame) -> DataFrame:
    """Return one row for each family of several records whose own request is in the log."""
    is_own = F.col("op") != "continue"
    is_member = is_own | F.col("stored")
    grouped = members.groupBy("partition", "origin").agg(
        F.max(F.when(is_own, F.struct(*_OWN))).alias("own"),
        F.max(F.when(is_member, F.struct(*_NEWEST))).alias("last"),
        F.max("is_refused").alias("is_refused"),
        (F.min("content") != F.max("content")).alias("is_changed"),
        F.sum("deliveries").alias("deliveries"),
        F.sum("letters").alias("letters"),
        *(F.min(name).alias(name) for name in ("fired_ms", "delivered_ms", "dead_ms")),
    )
    return grouped.where("own is not null").select(
        *(F.col("own")[name].alias(name) for name in _OWN),
        *(F.col("last")[name].alias(name) for name in _NEWEST),
        *_FACTS,
        "is_refused",
        "is_changed",
    )


def _with_fates(messages: DataFrame, bounds: Bounds) -> DataFrame:
    newest = (F.col("lane"), F.col("rank_ms"), F.col("partition"), F.col("newest"))
    is_over = F.col("stored") & is_done(bounds.frontier, *newest)
    judged = messages.withColumn("is_done", F.coalesce(is_over, F.lit(False)))
    fated = judged.withColumn("fate", _fate(bounds))
    delivered_ms = F.when(F.col("fate") == "delivered", F.col("delivered_ms"))
    return as_table(fated, MESSAGES, delivered_ms=delivered_ms)


def _fate(bounds: Bounds) -> Column:
    rank_ms = F.col("rank_ms")
    dead_trimmed_ms = bounds.trimmed_before_ms(bounds.settings.dead.name)
    is_trimmed = F.greatest(trimmed_ms(bounds, F.col("topic")), F.lit(dead_trimmed_ms)) > rank_ms
    # A cancel marker counts once O has passed it; or if a continuation was refused because of it.
    is_marked = F.col("killed_by").isNotNull() & (
        is_below(bounds.frontier.offsets, F.col("partition"), F.col("killed_by"))
        | F.col("is_refused")
    )
    # It may have come too late, although it was appended before.
    may_be_gone = is_trimmed & (F.col("killed_ms") + MARK_HIDDEN_MS_MAX >= rank_ms)
    killed = F.when(F.col("killed_op") == "replace", "replaced").otherwise("cancelled")
    came_out = F.when(F.col("deliveries") > 0, "delivered").when(F.col("letters") > 0, "dead")
    return (
        F.when(F.col("op") == "reject", "rejected")
        .when(F.col("answer").isNotNull() & ~F.col("is_uncertain"), F.col("answer"))
        .when(came_out.isNotNull(), came_out)
        .when(is_marked, F.when(may_be_gone, "unproven").otherwise(killed))
        .when(F.col("stored") & ~F.col("is_done"), "pending")
        .when(is_trimmed | F.col("is_uncertain"), "unproven")
        .otherwise("lost")
    )
