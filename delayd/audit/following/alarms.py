"""The findings of a batch. Pure: tables in, tables out.

A delivered record may be early and altered at once; one that is a ghost or unknown is nothing else.
`rows` are those of rules.py, as they stand before the batch's deliveries.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.following.batch_context import BatchContext
from delayd.audit.judging.columns import (
    findings,
    is_true,
    looked_up,
    named_place,
    of_partition,
    source_text,
)
from delayd.audit.judging.faults import Fault

BEFORE_WATCH_MS: Final = 1_000
"""A delivery that is at most so much younger than the frontier at which watching began is of what
that frontier covered: a record's time is its producer's."""

_OVER: Final = ("delivered", "dead", "continued")
_NEVER: Final = ("killed", "refused", "rejected", "mark")


def of_deliveries(deliveries: DataFrame, rows: DataFrame, context: BatchContext) -> DataFrame:
    """Return what is wrong with delivered records."""
    kind = F.col("kind")
    is_found = F.col("op").isNotNull()
    # Nothing is known of what is before the beginning of the buffer.
    start = of_partition(context.buffer_starts, "d_source_partition")
    is_unknown = ~is_found & ~is_true(F.col("d_source_offset") < start)
    is_ghost = is_found & is_true(kind.isin(*_NEVER))
    said = F.when(kind == "killed", "cancelled or replaced").when(kind == "mark", "a cancel")
    ghost = F.format_string("it was delivered, but its request was %s", said.otherwise(kind))
    is_before_claim = (kind == "killed") & is_true(F.col("d_fired_ms") < F.col("claimed_ms"))
    watched_ms = context.watch_ms + BEFORE_WATCH_MS
    is_late_copy = (kind == "before") & (F.col("d_timestamp_ms") > watched_ms)
    is_again = kind.isin(*_OVER) | is_late_copy | (kind.isNull() & (F.col("copy") > 1))
    is_judged = is_found & ~is_ghost
    early_ms = F.col("planned_ms") - F.least("d_timestamp_ms", "d_fired_ms")
    early = F.format_string("%d ms before it was due", early_ms)
    reasons = {
        Fault.UNKNOWN: F.when(
            is_unknown, "it names a source that is not pending and was not over lately"
        ),
        Fault.GHOST: F.when(is_ghost & ~is_before_claim, ghost),
        Fault.VERDICT_FALSE: F.when(
            is_ghost & is_before_claim,
            "a receipt says that it is never delivered, but it was before",
        ),
        Fault.DUPLICATE: F.when(is_judged & is_again, "it came again"),
        Fault.EARLY: F.when(is_judged & (early_ms > 0), early),
        Fault.ALTERED: F.when(is_judged, _alteration(context)),
    }
    return findings(
        _met(deliveries, rows),
        reasons,
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
    over = rows.where((F.col("was") == "delivered") & F.col("occurrence").isNull()).select(
        *("partition", "origin", "id", "due_ms", "fired_ms")
    )
    is_after = is_true(F.col("fired_ms") >= F.col("at_ms"))
    told = "a receipt says that it is never delivered, but it was"
    return findings(
        claims.join(over, ["partition", "origin"]),
        {Fault.VERDICT_FALSE: F.when(~is_after, told), Fault.GHOST: F.when(is_after, told)},
        *("id", "due_ms"),
        source=source_text(offset="origin"),
        topic=F.lit(receipts_topic),
        partition=F.col("receipt_partition"),
        offset=F.col("receipt_offset"),
    )


def of_losses(rows: DataFrame) -> DataFrame:
    """Return a finding for each row of `rules.settled` that became lost."""
    covered = F.timestamp_millis(F.col("covered_ms"))
    why = F.format_string(
        "the frontier covers it since %s, and nothing came out",
        F.date_format(covered, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"),
    )
    lost = rows.where(became("lost"))
    return findings(lost, {Fault.LOST: why}, "id", "topic", "due_ms", source=source_text())


def became(kind: str) -> Column:
    """Return whether a row is of this kind since this batch."""
    return F.col("kind").eqNullSafe(kind) & ~F.col("was").eqNullSafe(kind)


def places_of(deliveries: DataFrame) -> DataFrame:
    """Return the requests that deliveries name: (partition, offset, came_ms)."""
    named = deliveries.where("source_offset is not null").groupBy(*named_place())
    return named.agg(F.min("fired_ms").alias("came_ms"))


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


def _alteration(context: BatchContext) -> Column:
    """Return what differs from what was sent; null if nothing does."""
    by_key = F.pmod(F.col("key_murmur2"), looked_up(context.target_partitions, "topic"))
    partition = F.coalesce("target_partition", F.when(F.col("key_hash").isNotNull(), by_key))
    is_retry = F.col("op") == "continue"
    attempt = F.when(F.col("attempt") > 0, F.col("attempt"))
    origin = F.when(is_retry, source_text("d_source_partition", "origin"))

    def differs(name: str, asked: Column | None = None) -> Column:
        return ~F.col(f"d_{name}").eqNullSafe(F.col(name) if asked is None else asked)

    wrong = {
        "another topic": differs("topic"),
        "another partition": F.col("d_partition") != partition,
        "another key": differs("key_hash"),
        "another value": differs("value_hash"),
        "its headers in another order": differs("headers_hash") & ~differs("headers_set_hash"),
        "other headers": differs("headers_hash"),
        "another delayd-id": differs("id"),
        "another delayd-group": differs("group"),
        "another delayd-due": differs("due_ms"),
        "another delayd-planned": differs(
            "planned_ms", F.when(F.col("window_ms").isNotNull(), F.col("planned_ms"))
        ),
        "another delayd-origin": differs("origin", origin),
        "another delayd-attempt": differs("attempt", attempt),
        "another delayd-occurrence": differs("occurrence"),
        "malformed delayd headers": F.col("d_flaw").isNotNull() | F.col("d_fired_ms").isNull(),
    }
    first = F.coalesce(*(F.when(is_wrong, what) for what, is_wrong in wrong.items()))
    return F.concat(F.lit("it was delivered with "), first)
