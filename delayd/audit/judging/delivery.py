"""Deliveries and dead letters, compared with what was asked for.

lost        the fate says so
duplicate   a family is in the targets more than once
altered     a delivery differs in anything from the record that it names, or no step was made at its
            `delayd-fired`
early       `delayd-fired` or its timestamp is before the due time asked for
stale       `delayd-fired` is later than due time and `delayd-late` of the request allow
ghost       it names a request that was refused; or one that a cancel marker had killed, by its
            receipt, no later than it was fired; or, where Kafka has deleted the receipts, long
            before; or one whose step had passed the debounce that took its place
unknown     it names no request for a message

A ghost is not judged further. Of a request that Kafka has deleted from the buffer only the
deliveries themselves can tell: that there are two of it, or that one came before the due time that
it carries. Source: docs/design/audit.md, "Deliveries".
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import findings, is_true, of_partition, source_text, table_of
from delayd.audit.judging.debounces import with_superseded
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.fired import with_off_step
from delayd.audit.judging.held import MOVES
from delayd.audit.judging.letters import judge_letters
from delayd.audit.judging.local_times import judge_local_times
from delayd.audit.judging.moves import judge_moves
from delayd.audit.judging.retention import is_uncertain, trimmed_in_ms, was_not_read
from delayd.audit.judging.series import judge_series
from delayd.audit.tables import FINDINGS, TARGET_PARTITIONS

LAG_MAX_MS: Final = 24 * 60 * 60 * 1000
"""By then every step has passed a cancel marker: what comes out later is a ghost."""

_ASKED: Final = (
    *("op", "stored", "is_refused", "killed_by", "killed_ms", "topic", "target_partition"),
    *("key_hash", "value_hash", "headers_hash", "headers_set_hash", "id", "due_ms", "origin"),
    *("attempt", "reason", "answer", "late_ms"),
    *("window_ms", "planned_ms", "occurrence", "goes_on", "group"),
    *("clock", "zone", "is_open", "resolved", "killed_op"),
)


def judge_delivery(
    logged: DataFrame,
    messages: DataFrame,
    deliveries: DataFrame,
    letters: DataFrame,
    receipts: DataFrame,
    frontiers: DataFrame,
    bounds: Bounds,
) -> DataFrame:
    """Return what is wrong with deliveries and dead letters (FINDINGS).

    One join of all deliveries with the log, which is run at once and keeps only what is suspicious.
    """
    killers = killers_of(receipts)
    suspicious = _suspicious(logged, with_off_step(deliveries, frontiers, bounds), bounds)
    return (
        _of_messages(messages)
        .unionByName(_of_deliveries(suspicious, killers, frontiers, bounds))
        .unionByName(judge_letters(logged, messages, letters, killers, bounds))
        .unionByName(judge_series(logged, messages, bounds))
        .unionByName(judge_moves(logged, bounds))
        .unionByName(judge_local_times(logged, bounds))
    )


def killers_of(receipts: DataFrame) -> DataFrame:
    """Return the cancel markers that have a receipt: partition, killed_by (their offset); and, if a
    receipt says that they killed something, killed_at_ms and killed_sources, else null and none."""
    has_killed = F.col("verdict").isin("cancelled", "replaced")
    is_of_mark = has_killed | F.col("op").isin("cancel", "replace", "debounce")
    offset = F.col("source_offset")
    return (
        receipts.where(F.col("flaw").isNull() & is_of_mark & offset.isNotNull())
        .groupBy(F.col("source_partition").alias("partition"), offset.alias("killed_by"))
        .agg(
            F.min(F.when(has_killed, F.col("at_ms"))).alias("killed_at_ms"),
            F.flatten(F.collect_set(F.when(has_killed, F.col("killed")))).alias("killed_sources"),
        )
    )


def _of_messages(messages: DataFrame) -> DataFrame:
    is_lost, is_delivered = F.col("fate") == "lost", F.col("fate") == "delivered"
    is_doubled = is_delivered & (F.col("deliveries") > 1)
    is_changed = is_delivered & F.col("is_changed")
    reasons = {
        Fault.LOST: F.when(
            is_lost, "it was due, and is in no target, no dead letter, and under no mark"
        ),
        Fault.DUPLICATE: F.when(is_doubled, _times("deliveries")),
        Fault.ALTERED: F.when(
            is_changed, "a record that continues it carries something else than the request"
        ),
    }
    wrong = messages.where(is_lost | is_doubled | is_changed)
    return findings(wrong, reasons, "id", "topic", "due_ms", source=source_text())


def _times(count: str) -> Column:
    return F.format_string("it was delivered %d times", count)


def _suspicious(logged: DataFrame, deliveries: DataFrame, bounds: Bounds) -> DataFrame:
    """Return deliveries that something may be wrong with, and what that is: `unknown`, `refused`,
    `differences` and `early` are reasons or null. Computed at once."""
    asked = logged.select(
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        (F.col("answer").isNotNull() & ~is_uncertain(bounds)).alias("is_answered"),
        F.struct(*_ASKED).alias("asked"),
    )
    counts = table_of(logged.sparkSession, TARGET_PARTITIONS, [*bounds.target_partitions.items()])
    joined = (
        deliveries.withColumnsRenamed({"partition": "at_partition", "offset": "at_offset"})
        .join(asked, ["source_partition", "source_offset"], "left")
        .join(F.broadcast(counts), "topic", "left")
    )
    # Of a request not in the log, what the delivery itself says.
    due_ms = F.when(F.col("asked").isNull(), F.col("due_ms")).otherwise(F.col("asked.due_ms"))
    # With a window it may not come before it is planned.
    own_ms = F.coalesce(F.col("planned_ms"), F.col("due_ms"))
    early = _early(F.when(F.col("asked").isNull(), own_ms).otherwise(F.col("asked.planned_ms")))
    differences = F.coalesce(_differences(), F.when(early.isNull(), F.col("off_step")))
    # What kills an occurrence that came out before keeps the next one away: `series.py`.
    killed_by = F.when(~is_true(F.col("asked.goes_on")), F.col("asked.killed_by"))
    judged = joined.select(
        *("source", "source_partition", "source_offset", "at_partition", "at_offset", "topic"),
        *("id", "fired_ms", due_ms.alias("due_ms"), killed_by.alias("killed_by")),
        *("asked.killed_ms", "asked.killed_op"),
        source_text("source_partition", "asked.origin").alias("origin_source"),
        _nobody_asked(bounds).alias("unknown"),
        _refused().alias("refused"),
        differences.alias("differences"),
        early.alias("early"),
        _stale().alias("stale"),
        _copies(bounds).alias("copies"),
    )
    return judged.where(
        F.coalesce("unknown", "refused", "differences", "early", "stale").isNotNull()
        | F.col("killed_by").isNotNull()
        | (F.col("copies") > 1)
    ).localCheckpoint()


def _of_deliveries(
    suspicious: DataFrame, killers: DataFrame, frontiers: DataFrame, bounds: Bounds
) -> DataFrame:
    if suspicious.isEmpty():  # as a rule: spare the receipts
        return table_of(suspicious.sparkSession, FINDINGS)
    told = killers.withColumnRenamed("partition", "source_partition")
    killed = F.format_string(
        "delivered although %d/%d had killed it before", "source_partition", "killed_by"
    )
    is_over = _came_out_killed(bounds) | is_true(F.col("is_superseded"))
    ghost = F.coalesce("refused", F.when(is_over, killed))
    of_source = Window.partitionBy("source_partition", "source_offset").orderBy(
        "topic", "at_partition", "at_offset"
    )
    checked = (
        with_superseded(suspicious, frontiers, bounds.shards)
        .join(told, ["source_partition", "killed_by"], "left")
        .withColumn("ghost", F.when(F.col("unknown").isNull(), ghost))
        .withColumn("number", F.row_number().over(of_source))
    )
    is_meant = F.coalesce("unknown", "ghost").isNull()
    is_first_of_many = (F.col("copies") > 1) & (F.col("number") == 1)
    return findings(
        checked,
        {
            Fault.UNKNOWN: F.col("unknown"),
            Fault.GHOST: F.col("ghost"),
            Fault.DUPLICATE: F.when(is_first_of_many, _times("copies")),
            Fault.ALTERED: F.when(is_meant, F.col("differences")),
            Fault.EARLY: F.when(is_meant, F.col("early")),
            Fault.STALE: F.when(is_meant, F.col("stale")),
        },
        *("id", "topic", "due_ms"),
        source=F.coalesce("origin_source", "source"),
        partition=F.col("at_partition"),
        offset=F.col("at_offset"),
    )


def _came_out_killed(bounds: Bounds) -> Column:
    """Return whether a message that a cancel marker killed came out no earlier than that.

    The receipt of the cancel marker says when; one that says `too-late` is judged as a receipt.
    Where Kafka has deleted it, what came out long after the marker cannot have been done before it.
    """
    killed_ms, fired_ms, sources = F.col("killed_ms"), F.col("fired_ms"), F.col("killed_sources")
    trimmed_ms = trimmed_in_ms(bounds, bounds.settings.receipts.name, "source_partition")
    by_receipt = F.array_contains(sources, F.col("origin_source")) & (
        fired_ms >= F.col("killed_at_ms")
    )
    by_time = sources.isNull() & (killed_ms < trimmed_ms) & (fired_ms > killed_ms + LAG_MAX_MS)
    return is_true(by_receipt) | is_true(by_time)


def _copies(bounds: Bounds) -> Column:
    """Return how many deliveries name the same request, where that is deleted from the buffer; null
    of others. Deliveries lie by source already, for the join with the log."""
    if not any(bounds.buffer_starts):
        return F.lit(None).cast("bigint")
    copies = F.count("*").over(Window.partitionBy("source_partition", "source_offset"))
    start = of_partition(bounds.buffer_starts, "source_partition")
    return F.when(F.col("asked").isNull() & (F.col("source_offset") < start), copies)


def _nobody_asked(bounds: Bounds) -> Column:
    """Return why a delivery is of nothing that was asked for."""
    partition, offset = F.col("source_partition"), F.col("source_offset")
    is_nothing = F.col("asked").isNull() & ~was_not_read(bounds, partition, offset)
    is_nowhere = partition.isNull() | offset.isNull()
    return (
        F.when(is_nowhere, "its delayd-source names no place at all")
        .when(is_nothing, "no request is there in the buffer")
        .when(F.col("asked.op") == "cancel", "the request there is a cancel")
        .when(F.col("asked.op").isin(*MOVES), "the request there is a reschedule")
        .when(F.col("asked.occurrence") == 0, "the request there is for a series")
        .when(
            F.col("asked.is_open") | (F.col("asked.resolved") == "over"),
            "the record there has a local time that is not final",
        )
    )


def _refused() -> Column:
    """Return why the request that a delivery names was not to be delivered."""
    asked = F.col("asked")
    why = (
        F.when(asked["op"] == "reject", F.concat(F.lit("as "), asked["reason"]))
        .when(F.col("is_answered"), F.concat(F.lit("as "), asked["answer"]))
        .when(asked["is_refused"], "what it continues had been killed")
    )
    return F.concat(F.lit("delivered although it was refused: "), why)


def _differences() -> Column:
    """Return what is other than asked for; null if nothing is."""
    asked = F.col("asked")

    def differs(name: str, expected: Column | None = None) -> Column:
        return ~F.col(name).eqNullSafe(asked[name] if expected is None else expected)

    is_continuation = asked["op"] == "continue"
    own = source_text("source_partition", "asked.origin")
    is_reordered = F.col("headers_set_hash").eqNullSafe(asked["headers_set_hash"])
    wrong = {
        "topic": differs("topic"),
        "partition": _is_elsewhere(),
        "key": differs("key_hash"),
        "value": differs("value_hash"),
        "headers": differs("headers_hash") & ~is_reordered,
        "order of headers": differs("headers_hash") & is_reordered,
        "id": differs("id"),
        "group": differs("group"),
        "due time": differs("due_ms"),
        "planned time": differs(
            "planned_ms", F.when(asked["window_ms"].isNotNull(), asked["planned_ms"])
        ),
        "origin": differs("origin", F.when(is_continuation, own)),
        "attempt": differs("attempt", F.when(asked["attempt"] > 0, asked["attempt"])),
        "occurrence": differs("occurrence"),
        "local time": differs(
            "local", F.concat(asked["clock"], F.lit("["), asked["zone"], F.lit("]"))
        ),
        "time of delivery": F.col("fired_ms").isNull(),
    }
    named = F.concat_ws(", ", *(F.when(is_wrong, name) for name, is_wrong in wrong.items()))
    told = F.concat_ws(
        "; ",
        F.when(named != "", F.concat(F.lit("delivered with another "), named)),
        F.when(F.col("flaw").isNotNull(), F.concat(F.lit("its headers: "), F.col("flaw"))),
    )
    return F.when(asked.isNotNull() & (told != ""), told)


def _is_elsewhere() -> Column:
    """Return whether it is in another partition than asked for, or than its key belongs to."""
    asked, count = F.col("asked"), F.col("partitions")
    by_key = F.when(
        F.col("key_hash").eqNullSafe(asked["key_hash"]) & (count > 0),
        F.pmod(F.col("key_murmur2"), count),
    )
    expected = F.coalesce(asked["target_partition"], by_key)
    is_there = (F.col("at_partition") == expected) | (F.col("topic") != asked["topic"])
    return is_true(~is_there)


def _stale() -> Column:
    over_ms = F.col("fired_ms") - F.col("asked.planned_ms") - F.col("asked.late_ms")
    return F.when(over_ms > 0, F.format_string("delivered %d ms later than was worth it", over_ms))


def _early(due_ms: Column) -> Column:
    early_ms = due_ms - F.least("timestamp_ms", "fired_ms")
    return F.when(early_ms > 0, F.format_string("delivered %d ms before its due time", early_ms))
