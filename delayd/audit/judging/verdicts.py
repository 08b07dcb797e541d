"""Receipts, held against what the log and the evidence say: each owed one is there once, and true.

A request gets receipts of two kinds: an *answer*, what was decided about it, and an *outcome*, what
came of its message (`dead`; with `receipts = all` also `delivered`).

Whether a mark killed is not taken from the master: it killed exactly those of its killed set that
never came out. What came out no earlier than a receipt says that it was killed, though, is a ghost:
then the delivery is wrong, not the receipt.

Source: docs/design/audit.md, "Verdicts".
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import is_below, several_findings, source_text
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.joins import few
from delayd.audit.judging.retention import is_uncertain, trimmed_in_ms, was_not_read
from delayd.audit.judging.too_late import not_due_yet
from replication.settings import RECEIPTS_ALL

MARK_VERDICTS: Final = ("cancelled", "replaced", "too-late", "not-found", "scheduled")

_OWED: Final = (
    *("partition", "offset", "kind", "told_id", "told_op", "expected", "due_ms", "is_owed"),
    *("is_judged", "is_gone", "is_mark", "log_ms", "victims", "before"),
)

_MEMBERS: Final = (
    "array<struct<source string, rank_ms bigint, is_out boolean, out_ms bigint,"
    " is_unproven boolean>>"
)


def judge_verdicts(
    logged: DataFrame,
    messages: DataFrame,
    receipts: DataFrame,
    frontiers: DataFrame,
    bounds: Bounds,
) -> DataFrame:
    """What is wrong with receipts (FINDINGS)."""
    sound = receipts.where(F.col("flaw").isNull() & F.col("source_offset").isNotNull())
    owed = _answers(logged, messages, bounds).unionByName(_outcomes(messages, bounds))
    matched = _told(sound).join(owed, ["partition", "offset", "kind"], "full").localCheckpoint()
    stray = _of_strays(matched.where("told_op is null"), logged, messages, bounds)
    broken = receipts.where(F.col("flaw").isNotNull() | F.col("source_offset").isNull())
    return (
        _of_owed(matched.where("told_op is not null"), frontiers, bounds)
        .unionByName(stray)
        .unionByName(
            several_findings(
                broken,
                {Fault.VERDICT_UNKNOWN: F.coalesce("flaw", F.lit("its source is no place at all"))},
                source=F.col("source"),
                id=F.col("id"),
                topic=F.lit(bounds.settings.receipts.name),
                partition=F.col("partition"),
                offset=F.col("offset"),
            )
        )
    )


def marks_of(logged: DataFrame, receipts: DataFrame) -> DataFrame:
    """What cancels and replaces came to by their receipts: verdict, count."""
    marks = logged.where(F.col("op").isin("cancel", "replace")).select("partition", "offset")
    told = receipts.where(
        F.col("flaw").isNull()
        & F.col("verdict").isin(*MARK_VERDICTS)
        & F.col("op").isin("cancel", "replace")
    ).select(
        F.col("source_partition").alias("partition"),
        F.col("source_offset").alias("offset"),
        "verdict",
    )
    return (
        told.distinct()
        .join(marks, ["partition", "offset"], "left_semi")
        .groupBy("verdict")
        .agg(F.count("*").alias("count"))
    )


def _told(receipts: DataFrame) -> DataFrame:
    """All receipts of a request and kind as one array, `told`."""
    is_outcome = F.col("verdict").isin("dead", "delivered", "expired")
    return receipts.groupBy(
        F.col("source_partition").alias("partition"),
        F.col("source_offset").alias("offset"),
        F.when(is_outcome, "outcome").otherwise("answer").alias("kind"),
    ).agg(
        F.collect_list(
            F.struct(
                *("id", "verdict", "op", "killed", "due_ms", "at_ms"),
                F.col("partition").alias("at_partition"),
                F.col("offset").alias("at_offset"),
            )
        ).alias("told")
    )


def _answers(logged: DataFrame, messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Requests that are told what was decided about them."""
    settings = bounds.settings
    op, answer = F.col("op"), F.col("answer")
    is_mark = op.isin("cancel", "replace")
    is_redrive = op == "redrive"
    is_told = F.lit(settings.receipts_written == RECEIPTS_ALL) & (op == "schedule")
    is_scheduled = F.col("stored") & (is_redrive | (is_told & F.col("id").isNotNull()))
    expected = (
        F.when(is_mark, "a verdict")
        .when(op == "reject", "rejected")
        .when(answer.isNotNull(), answer)
        .when(is_scheduled, "scheduled")
    )
    told_id = F.coalesce("id", "redrive")
    # What is accepted under an id lies in the id's partition, and so do its receipts; of others
    # the receipt may be anywhere.
    is_placed = F.col("id").isNotNull() & (op != "reject")
    trimmed_ms = F.when(is_placed, _trimmed_beside_ms(bounds)).otherwise(
        bounds.trimmed_before_ms(settings.receipts.name)
    )
    is_uncertain_now = is_uncertain(bounds)
    rows = logged.where(expected.isNotNull() & told_id.isNotNull()).select(
        *("partition", "offset", "log_ms", "op", "killed", "killed_before"),
        F.lit("answer").alias("kind"),
        told_id.alias("told_id"),
        F.col("asked_op").alias("told_op"),
        expected.alias("expected"),
        F.when(op != "reject", F.col("due_ms")).alias("due_ms"),
        (
            is_below(bounds.frontier.offsets, F.col("partition"), F.col("offset"))
            & (is_mark | is_redrive | ~is_uncertain_now)
        ).alias("is_owed"),
        (~is_uncertain_now).alias("is_judged"),
        (F.col("append_ms") < trimmed_ms).alias("is_gone"),
        is_mark.alias("is_mark"),
    )
    return (
        rows.where(~F.col("is_mark"))
        .select(*_OWED[:-2], *(F.lit(None).cast(_MEMBERS).alias(name) for name in _OWED[-2:]))
        .unionByName(_with_members(rows.where("is_mark"), messages).select(*_OWED))
    )


def _trimmed_beside_ms(bounds: Bounds) -> Column:
    """Before when receipts may be missing of requests under an id that lie in `partition`: both
    topics have as many partitions, and are written by the same key."""
    return trimmed_in_ms(bounds, bounds.settings.receipts.name, F.col("partition"))


def _with_members(marks: DataFrame, messages: DataFrame) -> DataFrame:
    """Marks with what they killed, `victims`, and with what the last mark before had, `before`."""
    came_out_ms = F.least("fired_ms", "dead_ms")
    killed = messages.where("killed_by is not null").select(
        *("partition", "killed_by", "newest"),
        F.struct(
            source_text(F.col("partition"), F.col("offset")).alias("source"),
            "rank_ms",
            (F.col("deliveries") + F.col("letters") > 0).alias("is_out"),
            came_out_ms.alias("out_ms"),
            (F.col("fate") == "unproven").alias("is_unproven"),
        ).alias("member"),
    )
    by_mark = killed.groupBy("partition", F.col("killed_by").alias("offset")).agg(
        F.collect_list("member").alias("victims")
    )
    repeated = marks.where("op = 'cancel' and size(killed_before) > 0").select(
        "partition", "offset", F.explode("killed_before").alias("newest")
    )
    before = (
        repeated.join(killed, ["partition", "newest"])
        .groupBy("partition", "offset")
        .agg(F.collect_list("member").alias("before"))
    )
    joined = marks.join(by_mark, ["partition", "offset"], "left").join(
        before, ["partition", "offset"], "left"
    )
    nothing = F.array().cast(_MEMBERS)
    whole = joined.withColumns(
        {name: F.coalesce(F.col(name), nothing) for name in ("victims", "before")}
    )
    is_whole = (F.size("victims") == F.size("killed")) & ~F.exists(
        "victims", lambda member: member["is_unproven"]
    )
    # After the cut evidence may be cut short: what a mark there found done may not have been read.
    return whole.withColumn("is_judged", F.col("is_judged") & F.col("is_owed") & is_whole)


def _outcomes(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Messages with an id that are told what came of them."""
    is_all = F.lit(bounds.settings.receipts_written == RECEIPTS_ALL)
    is_told = (F.col("fate") == "dead") | (is_all & (F.col("fate") == "delivered"))
    came_out_ms = F.coalesce("delivered_ms", "dead_ms")
    nothing = {
        "log_ms": F.lit(None).cast("bigint"),
        "victims": F.lit(None).cast(_MEMBERS),
        "before": F.lit(None).cast(_MEMBERS),
    }
    columns = {
        "kind": F.lit("outcome"),
        "told_id": F.col("id"),
        "told_op": F.lit("schedule"),
        "expected": F.col("fate"),
        # One that came out although it had been killed before is another finding.
        "is_owed": F.col("is_done")
        & (F.col("killed_by").isNull() | (came_out_ms < F.col("killed_ms"))),
        "is_judged": F.lit(True),
        "is_gone": came_out_ms < _trimmed_beside_ms(bounds),
        "is_mark": F.lit(False),
    } | nothing
    return messages.where(F.col("id").isNotNull() & is_told).select(
        *(columns.get(name, F.col(name)).alias(name) for name in _OWED)
    )


def _of_owed(matched: DataFrame, frontiers: DataFrame, bounds: Bounds) -> DataFrame:
    """Findings about requests that are owed receipts of a kind."""
    is_missing = F.col("told").isNull() & F.col("is_owed") & ~F.col("is_gone")
    checked = matched.withColumn(
        "false",
        F.when(
            F.col("is_judged") & F.col("told").isNotNull(),
            F.filter("told", lambda receipt: ~_is_true(receipt, bounds)),
        ),
    )
    right = F.size("told") - F.coalesce(F.size("false"), F.lit(0))
    place = {
        "source": source_text(F.col("partition"), F.col("offset")),
        "id": F.col("told_id"),
        "topic": F.lit(bounds.settings.receipts.name),
        "due_ms": F.col("due_ms"),
    }
    counted = several_findings(
        checked,
        {
            Fault.VERDICT_MISSING: F.when(
                is_missing, F.concat(F.lit("it has no receipt, and is owed: "), F.col("expected"))
            ),
            Fault.VERDICT_DOUBLED: F.when(
                right > 1, F.format_string("it has %d receipts that are right", right)
            ),
        },
        **place,
    )
    each = checked.select("*", F.explode("false").alias("receipt"), _what_is_so().alias("why"))
    hasty = _of_hasty(checked, frontiers, bounds)
    return counted.unionByName(
        several_findings(
            each if hasty is None else each.unionByName(hasty),
            {Fault.VERDICT_FALSE: _said(F.col("receipt"), F.col("why"))},
            **place,
            partition=F.col("receipt")["at_partition"],
            offset=F.col("receipt")["at_offset"],
        )
    )


def _of_hasty(checked: DataFrame, frontiers: DataFrame, bounds: Bounds) -> DataFrame | None:
    """Receipts `too-late` of what came out, but was not due yet when they were written; `checked`
    with each as `receipt`, and `why`. None if there are none."""
    counting = F.filter("victims", lambda member: _counts(member, bounds))
    latest_ms = F.array_max(F.transform(counting, lambda member: member["rank_ms"]))
    told = F.filter(
        "told",
        lambda receipt: (
            (receipt["verdict"] == "too-late")
            & (receipt["at_ms"] < latest_ms)
            & _is_true(receipt, bounds)
        ),
    )
    suspects = (
        checked.where("is_mark and is_judged and told is not null")
        .select("*", F.explode(told).alias("receipt"), latest_ms.alias("latest_ms"))
        .withColumn("at_ms", F.col("receipt")["at_ms"])
        .localCheckpoint()
    )
    # There are none as a rule: spare the frontier.
    if suspects.isEmpty():
        return None
    why = F.concat(
        F.lit("what it killed was due only at "),
        F.col("latest_ms").cast("string"),
        F.lit(", and came out after that"),
    )
    return not_due_yet(suspects, frontiers).select(*checked.columns, "receipt", why.alias("why"))


def _said(receipt: Column, why: Column) -> Column:
    return F.concat(
        F.lit("it says "),
        receipt["verdict"],
        F.lit(" to a "),
        receipt["op"],
        F.when(
            F.size(receipt["killed"]) > 0,
            F.concat(F.lit(" that killed "), F.concat_ws(", ", receipt["killed"])),
        ).otherwise(F.lit("")),
        F.lit("; "),
        why,
    )


def _what_is_so() -> Column:
    """What a receipt should have said, of a row of `matched`."""
    members = F.transform(
        "victims",
        lambda member: F.concat(
            member["source"],
            F.when(member["is_out"], " came out").otherwise(F.lit(" never came out")),
        ),
    )
    killed = F.concat(F.lit("of what it killed, "), F.concat_ws(", ", members))
    of_mark = F.when(F.size("victims") > 0, killed).otherwise(F.lit("nothing was live"))
    by_rules = F.concat(
        F.lit("by the rules: "),
        F.col("expected"),
        F.lit(", to a "),
        F.col("told_op"),
        F.lit(" due at "),
        F.coalesce(F.col("due_ms").cast("string"), F.lit("no time")),
    )
    return F.when(F.col("is_mark"), of_mark).otherwise(by_rules)


def _is_true(receipt: Column, bounds: Bounds) -> Column:
    """Does a receipt say what is so? Of a row of `matched`."""
    is_of_it = (receipt["id"] == F.col("told_id")) & (receipt["op"] == F.col("told_op"))
    is_plain = (
        (receipt["verdict"] == F.col("expected"))
        & (F.size(receipt["killed"]) == 0)
        & receipt["due_ms"].eqNullSafe(F.col("due_ms"))
    )
    is_true = F.when(F.col("is_mark"), _is_true_mark(receipt, bounds)).otherwise(is_plain)
    return F.coalesce(is_of_it & is_true, F.lit(False))


def _counts(member: Column, bounds: Bounds) -> Column:
    """What came out, and was due longer ago than ids are remembered, does not count: nodes may
    have dropped it."""
    return member["rank_ms"] + bounds.settings.id_memory_ms >= F.col("log_ms")


def _is_true_mark(receipt: Column, bounds: Bounds) -> Column:
    """Does a mark's receipt say what came of its killed set? Of `too-late` see _of_hasty too."""
    victims, before, named = F.col("victims"), F.col("before"), receipt["killed"]
    verdict, at_ms = receipt["verdict"], receipt["at_ms"]
    is_replace = receipt["op"] == "replace"

    def counts(member: Column) -> Column:
        return _counts(member, bounds)

    def is_named(member: Column) -> Column:
        return F.array_contains(named, member["source"])

    def was_out(member: Column) -> Column:
        return member["is_out"] & (member["out_ms"] < at_ms)

    def are_of(members: Column) -> Column:
        """Is everything named one of these, once?"""
        sources = F.transform(members, lambda member: member["source"])
        is_once = F.size(F.array_distinct(named)) == F.size(named)
        return is_once & (F.size(F.array_except(named, sources)) == 0) & (F.size(named) > 0)

    def due_of(members: Column, is_meant: Callable[[Column], Column]) -> Column:
        meant = F.filter(members, is_meant)
        latest_ms = F.array_max(F.transform(meant, lambda member: member["rank_ms"]))
        asked_ms = F.when(is_replace, F.col("due_ms")).otherwise(latest_ms)
        return receipt["due_ms"].eqNullSafe(asked_ms)

    killed = (
        are_of(victims)
        & F.forall(
            victims,
            lambda member: F.when(is_named(member), ~was_out(member)).otherwise(member["is_out"]),
        )
        & due_of(victims, is_named)
    )
    too_late = (
        (F.size(named) == 0)
        & F.exists(victims, counts)
        & F.forall(victims, lambda member: member["is_out"])
        & due_of(victims, counts)
    )
    none_counts = F.forall(victims, lambda member: member["is_out"] & ~counts(member))
    # What an earlier mark killed and would not be due yet is proof of it, and must be named.
    proves = F.filter(before, lambda member: ~member["is_out"] & (member["rank_ms"] > at_ms))
    again = (
        none_counts
        & are_of(before)
        & F.forall(before, lambda member: ~(is_named(member) & was_out(member)))
        & F.forall(proves, is_named)
    )
    nothing = none_counts & (F.size(named) == 0)
    return (
        F.when(verdict == "replaced", is_replace & killed)
        .when(verdict == "cancelled", ~is_replace & (killed | again))
        .when(verdict == "too-late", too_late)
        .when(verdict == "scheduled", is_replace & nothing & due_of(victims, is_named))
        .when(verdict == "not-found", ~is_replace & nothing & (F.size(proves) == 0))
        .otherwise(F.lit(False))
    )


def _of_strays(
    strays: DataFrame, logged: DataFrame, messages: DataFrame, bounds: Bounds
) -> DataFrame:
    """Findings about receipts that nobody is owed."""
    keys = few(strays.select("partition", "offset").distinct())
    there = logged.join(keys, ["partition", "offset"], "left_semi").select(
        "partition", "offset", is_uncertain(bounds).alias("is_uncertain")
    )
    of_message = messages.join(keys, ["partition", "offset"], "left_semi").select(
        "partition", "offset", "fate", "is_done", F.col("rank_ms").alias("now_rank_ms")
    )
    each = (
        strays.select("partition", "offset", "kind", F.explode("told").alias("receipt"))
        .join(there, ["partition", "offset"], "left")
        .join(of_message, ["partition", "offset"], "left")
    )
    is_there = F.col("is_uncertain").isNotNull()
    is_gone = F.coalesce(was_not_read(bounds, F.col("partition"), F.col("offset")), F.lit(False))
    receipt = F.col("receipt")
    # An outcome after the cut may be true although its evidence was not read; and of a message that
    # is lost, or may have been trimmed, everything is said by that.
    may_be = (F.col("kind") == "outcome") & (
        F.col("fate").isin("lost", "unproven")
        | (
            F.col("fate").isin("pending", "delivered", "dead")
            & ~F.col("is_done")
            & (F.col("now_rank_ms") <= receipt["at_ms"])
        )
    )
    is_false = is_there & ~F.coalesce(F.col("is_uncertain") | may_be, F.lit(False))
    return several_findings(
        each,
        {
            Fault.VERDICT_UNKNOWN: F.when(~is_there & ~is_gone, "nobody made the request there"),
            Fault.VERDICT_FALSE: F.when(is_false, _said(receipt, F.lit("nothing is told of it"))),
        },
        source=source_text(F.col("partition"), F.col("offset")),
        id=receipt["id"],
        topic=F.lit(bounds.settings.receipts.name),
        partition=receipt["at_partition"],
        offset=receipt["at_offset"],
    )
