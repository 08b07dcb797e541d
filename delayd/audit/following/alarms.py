"""The findings of a batch. Pure: tables in, tables out.

A delivered record may be early and altered at once; one that is a ghost or unknown is nothing else.
`rows` are those of rules.py, as they stand before the batch's deliveries.
"""

import json
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.following.batch_context import BatchContext
from delayd.audit.judging.columns import findings, of_partition, several_findings, source_text
from delayd.audit.judging.faults import Fault

BEFORE_WATCH_MS: Final = 1_000
"""A delivery that is at most so much younger than the frontier at which watching began is of what
that frontier covered: a record's time is its producer's."""

_OVER: Final = ("delivered", "dead", "continued")
_NEVER: Final = ("killed", "refused", "rejected", "mark")


def of_deliveries(deliveries: DataFrame, rows: DataFrame, context: BatchContext) -> DataFrame:
    """Return what is wrong with delivered records."""
    met = _met(deliveries, rows)
    kind = F.col("kind")
    is_found = F.col("op").isNotNull()
    is_ghost = is_found & kind.isin(*_NEVER)
    is_before_claim = (kind == "killed") & (F.col("d_fired_ms") < F.col("claimed_ms"))
    is_late_copy = (kind == "before") & (
        F.col("d_timestamp_ms") > context.watch_ms + BEFORE_WATCH_MS
    )
    is_again = kind.isin(*_OVER) | is_late_copy | (kind.isNull() & (F.col("copy") > 1))
    is_judged = is_found & ~F.coalesce(is_ghost, F.lit(False))
    came_ms = F.least("d_timestamp_ms", "d_fired_ms")
    return several_findings(
        met,
        {
            Fault.UNKNOWN: F.when(
                ~is_found & _is_known_place(context),
                "it names a source that is not pending and was not over lately",
            ),
            Fault.GHOST: F.when(
                is_ghost & ~F.coalesce(is_before_claim, F.lit(False)),
                F.concat(F.lit("it was delivered, but its request was "), _said_of(kind)),
            ),
            Fault.VERDICT_FALSE: F.when(
                is_ghost & is_before_claim,
                "a receipt says that it is never delivered, but it was before",
            ),
            Fault.DUPLICATE: F.when(is_judged & is_again, "it came again"),
            Fault.EARLY: F.when(
                is_judged & (came_ms < F.col("due_ms")),
                F.format_string("%d ms before it was due", F.col("due_ms") - came_ms),
            ),
            Fault.ALTERED: F.when(is_judged, _alteration(context)),
        },
        source=F.col("d_source"),
        id=F.coalesce("id", "d_id"),
        topic=F.col("d_topic"),
        partition=F.col("d_partition"),
        offset=F.col("d_offset"),
        due_ms=F.coalesce("due_ms", "d_due_ms"),
    )


def of_claims(claims: DataFrame, rows: DataFrame, receipts_topic: str) -> DataFrame:
    """Return a finding for each receipt that calls killed what was delivered in an earlier
    batch."""
    over = rows.where(F.col("was") == "delivered").select(
        *("partition", "origin", "id", "due_ms", "fired_ms")
    )
    met = claims.join(over, ["partition", "origin"])

    is_before = F.coalesce(F.col("fired_ms") < F.col("at_ms"), F.lit(True))
    told = "a receipt says that it is never delivered, but it was"
    return several_findings(
        met,
        {Fault.VERDICT_FALSE: F.when(is_before, told), Fault.GHOST: F.when(~is_before, told)},
        source=source_text(F.col("partition"), F.col("origin")),
        id=F.col("id"),
        topic=F.lit(receipts_topic),
        partition=F.col("receipt_partition"),
        offset=F.col("receipt_offset"),
        due_ms=F.col("due_ms"),
    )


def of_losses(rows: DataFrame) -> DataFrame:
    """Return a finding for each row of `rules.settled` that became lost."""
    lost = rows.where(became("lost"))
    return findings(
        lost,
        Fault.LOST,
        F.concat(
            F.lit("the frontier covers it since "),
            F.date_format(F.timestamp_millis(F.col("covered_ms")), "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"),
            F.lit(", and nothing came out"),
        ),
        source=source_text(F.col("partition"), F.col("offset")),
        id=F.col("id"),
        topic=F.col("topic"),
        due_ms=F.col("due_ms"),
    )


def became(kind: str) -> Column:
    """Return whether a row is of this kind since this batch."""
    return F.coalesce(F.col("kind") == kind, F.lit(False)) & ~F.col("was").eqNullSafe(kind)


def places_of(deliveries: DataFrame) -> DataFrame:
    """Return the requests that deliveries name: (partition, offset, came_ms)."""
    return (
        deliveries.where(F.col("source_offset").isNotNull())
        .groupBy(
            F.col("source_partition").alias("partition"),
            F.col("source_offset").cast("long").alias("offset"),
        )
        .agg(F.min("fired_ms").alias("came_ms"))
    )


def _met(deliveries: DataFrame, rows: DataFrame) -> DataFrame:
    """Return each delivery (`d_...`) beside the request that it names, and which copy of it it
    is."""
    of_source = Window.partitionBy("d_source_partition", "d_source_offset").orderBy(
        "d_timestamp_ms", "d_topic", "d_partition", "d_offset"
    )
    named = deliveries.select(
        *(F.col(name).alias(f"d_{name}") for name in deliveries.columns)
    ).withColumn("copy", F.row_number().over(of_source))
    return named.join(
        rows,
        (F.col("d_source_partition") == F.col("partition"))
        & (F.col("d_source_offset") == F.col("offset")),
        "left",
    )


def _is_known_place(context: BatchContext) -> Column:
    """Return whether a place is not before the beginning of the buffer, where nothing is known."""
    start = of_partition(context.buffer_starts, F.col("d_source_partition"))
    return F.coalesce(F.col("d_source_offset") >= start, F.lit(True))


def _said_of(kind: Column) -> Column:
    return (
        F.when(kind == "killed", "cancelled or replaced")
        .when(kind == "mark", "a cancel")
        .otherwise(kind)
    )


def _alteration(context: BatchContext) -> Column:
    """Return what differs from what was sent; null if nothing does."""
    counts = F.from_json(F.lit(json.dumps(dict(context.target_partitions))), "map<string,bigint>")
    count = F.try_element_at(counts, F.col("topic"))
    by_key = F.pmod(F.col("key_murmur2"), count)
    partition = F.coalesce("target_partition", F.when(F.col("key_hash").isNotNull(), by_key))
    is_retry = F.col("op") == "continue"
    origin = F.when(is_retry, source_text(F.col("d_source_partition"), F.col("origin")))
    attempt = F.when(is_retry, F.col("attempt"))
    wrong: list[tuple[Column, str]] = [
        (_differs(F.col("d_topic"), F.col("topic")), "another topic"),
        (partition.isNotNull() & (F.col("d_partition") != partition), "another partition"),
        (_differs(F.col("d_key_hash"), F.col("key_hash")), "another key"),
        (_differs(F.col("d_value_hash"), F.col("value_hash")), "another value"),
        (
            _differs(F.col("d_headers_hash"), F.col("headers_hash"))
            & ~_differs(F.col("d_headers_set_hash"), F.col("headers_set_hash")),
            "its headers in another order",
        ),
        (_differs(F.col("d_headers_hash"), F.col("headers_hash")), "other headers"),
        (_differs(F.col("d_id"), F.col("id")), "another delayd-id"),
        (_differs(F.col("d_due_ms"), F.col("due_ms")), "another delayd-due"),
        (_differs(F.col("d_origin"), origin), "another delayd-origin"),
        (_differs(F.col("d_attempt"), attempt), "another delayd-attempt"),
        (F.col("d_flaw").isNotNull() | F.col("d_fired_ms").isNull(), "malformed delayd headers"),
    ]
    first = F.coalesce(*(F.when(is_wrong, F.lit(what)) for is_wrong, what in wrong))
    return F.concat(F.lit("it was delivered with "), first)


def _differs(one: Column, other: Column) -> Column:
    return ~one.eqNullSafe(other)
