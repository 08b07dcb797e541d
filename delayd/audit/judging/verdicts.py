"""Receipts, compared with what the log and the evidence say: each owed one is there once, and true.

A request gets receipts of two kinds: an *answer*, what was decided about it, and an *outcome*, what
came of its message (`dead`; with `receipts = all` also `delivered`).

Whether a cancel marker killed is not taken from the master: it killed exactly those of its killed
set that never came out. What came out no earlier than a receipt says that it was killed, though, is
a ghost: then the delivery is wrong, not the receipt.

Source: docs/design/audit.md, "Verdicts".
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import (
    FEW,
    GIVEN_UP,
    PLACE,
    few,
    findings,
    is_true,
    named_place,
    source_text,
    table_of,
)
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.receipt_truth import counts_as_killed, is_true_receipt
from delayd.audit.judging.receipts_owed import answers_owed, kind_of, outcomes_owed
from delayd.audit.judging.retention import is_uncertain, was_not_read
from delayd.audit.judging.too_late import not_due_yet
from delayd.audit.tables import FINDINGS

MARK_VERDICTS: Final = ("cancelled", "replaced", "too-late", "not-found", "scheduled")


def judge_verdicts(
    logged: DataFrame,
    messages: DataFrame,
    receipts: DataFrame,
    frontiers: DataFrame,
    bounds: Bounds,
) -> DataFrame:
    """Return what is wrong with receipts (FINDINGS)."""
    is_placed = F.col("source_offset").isNotNull()
    problem = F.coalesce("flaw", F.when(~is_placed, "its source is no place at all"))
    owed = answers_owed(logged, messages, bounds).unionByName(
        outcomes_owed(messages, bounds), allowMissingColumns=True
    )
    series = logged.where("occurrence is not null").select(
        "partition", F.col("origin").alias("offset")
    )
    told = _told(receipts.where(problem.isNull()), few(series.distinct()))
    matched = told.join(owed, [*PLACE, "kind"], "full").localCheckpoint()
    return (
        _of_owed(matched.where("told_op is not null"), frontiers, bounds)
        .unionByName(_of_strays(matched.where("told_op is null"), logged, messages, bounds))
        .unionByName(
            findings(
                receipts,
                {Fault.VERDICT_UNKNOWN: problem},
                *("source", "id", *PLACE),
                topic=F.lit(bounds.settings.receipts.name),
            )
        )
    )


def marks_of(logged: DataFrame, receipts: DataFrame) -> DataFrame:
    """Return what cancels and replaces came to by their receipts: verdict, count."""
    is_mark = F.col("op").isin("cancel", "replace")
    told = receipts.where(
        F.col("flaw").isNull() & F.col("verdict").isin(*MARK_VERDICTS) & is_mark
    ).select(*named_place(), "verdict")
    return (
        told.distinct().join(logged.where(is_mark), PLACE, "left_semi").groupBy("verdict").count()
    )


def _told(receipts: DataFrame, series: DataFrame) -> DataFrame:
    """Return all receipts of a request and kind as one array, `told`; of requests for `series` an
    outcome is told for each occurrence."""
    is_outcome = F.col("verdict").isin("delivered", *GIVEN_UP)
    kind = F.when(is_outcome, "outcome").when(F.col("verdict") == "ended", "end")
    known = series.select(
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        F.lit(True).alias("is_series"),
    )
    of_series = F.when(is_outcome & is_true(F.col("is_series")), kind_of("outcome", "due_ms"))
    kind = F.coalesce(of_series, kind, F.lit("answer")).alias("kind")
    placed = receipts.join(known, ["source_partition", "source_offset"], "left")
    return placed.groupBy(*named_place(), kind).agg(
        F.collect_list(
            F.struct(
                *("id", "verdict", "op", "killed", "due_ms", "at_ms"),
                F.col("partition").alias("at_partition"),
                F.col("offset").alias("at_offset"),
            )
        ).alias("told")
    )


def _of_owed(matched: DataFrame, frontiers: DataFrame, bounds: Bounds) -> DataFrame:
    """Return findings about requests that are owed receipts."""
    false = F.filter("told", lambda receipt: ~is_true_receipt(receipt, bounds))
    checked = matched.withColumn(
        "false", F.when(F.col("is_judged") & F.col("told").isNotNull(), false)
    )
    is_missing = F.col("told").isNull() & F.col("is_owed") & ~F.col("is_gone")
    missing = F.format_string("it has no receipt, and is owed: %s", "expected")
    right = F.size("told") - F.coalesce(F.size("false"), F.lit(0))
    doubled = F.format_string("it has %d receipts that are right", right)
    place = {
        "source": source_text(),
        "id": F.col("told_id"),
        "topic": F.lit(bounds.settings.receipts.name),
    }
    counted = findings(
        checked,
        {
            Fault.VERDICT_MISSING: F.when(is_missing, missing),
            Fault.VERDICT_DOUBLED: F.when(right > 1, doubled),
        },
        "due_ms",
        **place,
    )
    each = checked.select("*", F.explode("false").alias("receipt"), _what_is_so().alias("why"))
    hasty = _of_hasty(checked, frontiers, bounds)
    return counted.unionByName(
        findings(
            each if hasty is None else each.unionByName(hasty),
            {Fault.VERDICT_FALSE: _said(F.col("receipt"), F.col("why"))},
            "due_ms",
            **place,
            partition=F.col("receipt.at_partition"),
            offset=F.col("receipt.at_offset"),
        )
    )


def _of_hasty(checked: DataFrame, frontiers: DataFrame, bounds: Bounds) -> DataFrame | None:
    """Return receipts `too-late` of what came out, but was not due yet when they were written;
    `checked` with each as `receipt`, and `why`. None if there are none."""
    counting = F.filter("victims", lambda member: counts_as_killed(member, bounds))
    latest_ms = F.array_max(F.transform(counting, lambda member: member["rank_ms"]))
    suspects = (
        checked.where("is_mark and is_judged and told is not null")
        .select("*", F.explode("told").alias("receipt"), latest_ms.alias("latest_ms"))
        .withColumn("at_ms", F.col("receipt.at_ms"))
        .where("receipt.verdict = 'too-late' and at_ms < latest_ms")
        .where(is_true_receipt(F.col("receipt"), bounds))
        .localCheckpoint()
    )
    # There are none as a rule: spare the frontier.
    if suspects.isEmpty():
        return None
    why = F.format_string("what it killed was due only at %d, and came out after that", "latest_ms")
    return not_due_yet(suspects, frontiers, bounds.shards).select(
        *checked.columns, "receipt", why.alias("why")
    )


def _said(receipt: Column, why: Column) -> Column:
    named = F.format_string(" that killed %s", F.concat_ws(", ", receipt["killed"]))
    killed = F.when(F.size(receipt["killed"]) > 0, named).otherwise("")
    said = (receipt["verdict"], receipt["op"], killed, why)
    return F.format_string("it says %s to a %s%s; %s", *said)


def _what_is_so() -> Column:
    """Return what a receipt should have said, of a row of `matched`."""

    def end_of(member: Column) -> Column:
        end = F.when(member["is_out"], " came out").otherwise(" never came out")
        return F.concat(member["source"], end)

    members = F.concat_ws(", ", F.transform("victims", end_of))
    killed = F.format_string("of what it killed, %s", members)
    of_mark = F.when(F.size("victims") > 0, killed).otherwise("nothing was live")
    due = F.coalesce(F.col("due_ms").cast("string"), F.lit("no time"))
    by_rules = F.format_string("by the rules: %s, to a %s due at %s", "expected", "told_op", due)
    return F.when(F.col("is_mark"), of_mark).otherwise(by_rules)


def _of_strays(
    strays: DataFrame, logged: DataFrame, messages: DataFrame, bounds: Bounds
) -> DataFrame:
    """Return findings about receipts that are owed to no request."""
    keys = strays.select(*PLACE).distinct()
    count = keys.limit(FEW + 1).count()
    if count == 0:  # as a rule: spare the log
        return table_of(strays.sparkSession, FINDINGS)
    keys = few(keys, count)
    there = logged.join(keys, PLACE, "left_semi").select(
        *PLACE, is_uncertain(bounds).alias("is_uncertain")
    )
    own = messages.where("origin = offset")
    of_message = own.join(keys, PLACE, "left_semi").select(
        *PLACE, "fate", "is_done", F.col("rank_ms").alias("now_rank_ms")
    )
    each = (
        strays.select(*PLACE, "kind", F.explode("told").alias("receipt"))
        .join(there, PLACE, "left")
        .join(of_message, PLACE, "left")
    )
    is_there = F.col("is_uncertain").isNotNull()
    is_unknown = ~is_there & ~was_not_read(bounds)
    receipt = F.col("receipt")
    # An outcome after the cut may be true although its evidence was not read; and of a message that
    # is lost, or may have been trimmed, everything is said by that.
    is_answer = F.col("kind") == "answer"
    may_be = ~is_answer & (
        F.col("fate").isin("lost", "unproven", "recurring")
        | (
            F.col("fate").isin("pending", "delivered", *GIVEN_UP)
            & ~F.col("is_done")
            & (F.col("now_rank_ms") <= receipt["at_ms"])
        )
    )
    is_false = is_there & ~is_true(F.col("is_uncertain") | may_be)
    return findings(
        each,
        {
            Fault.VERDICT_UNKNOWN: F.when(is_unknown, "nobody made the request there"),
            Fault.VERDICT_FALSE: F.when(is_false, _said(receipt, F.lit("nothing is told of it"))),
        },
        source=source_text(),
        id=receipt["id"],
        topic=F.lit(bounds.settings.receipts.name),
        partition=receipt["at_partition"],
        offset=receipt["at_offset"],
    )
