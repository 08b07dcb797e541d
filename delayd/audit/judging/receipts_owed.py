"""The receipts that are owed: by whom, what they must say, and whether it can be judged.

Source: docs/design/audit.md, "Verdicts".
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import (
    GIVEN_UP,
    PLACE,
    ColumnOrName,
    column,
    is_below,
    is_steady_at,
    is_true,
    source_text,
)
from delayd.audit.judging.held import MOVES, UNMOVED
from delayd.audit.judging.moves import with_moves
from delayd.audit.judging.retention import is_uncertain, trimmed_in_ms
from replication.settings import RECEIPTS_ALL


def answers_owed(logged: DataFrame, messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return the requests that are owed an answer: place, kind, told_id, told_op, expected, due_ms,
    is_owed, is_judged, is_gone (it may have been deleted), is_mark, log_ms; of cancel markers also
    what they killed (`victims`), and what the cancel marker before did (`before`)."""
    settings = bounds.settings
    logged = with_moves(logged, logged)
    op, answer = F.col("op"), F.col("answer")
    is_unmoved = is_true(answer.isin(*UNMOVED))
    is_move = op.isin(*MOVES) & ~is_unmoved
    is_redrive = op == "redrive"
    is_all = F.lit(settings.receipts_written == RECEIPTS_ALL) & F.col("id").isNotNull()
    wants_all = is_all | is_true(F.col("is_told"))
    is_loud = (op == "debounce") & (wants_all | ~is_true(F.col("is_quiet")))
    is_mark = op.isin("cancel", "replace") | is_loud
    is_told = wants_all & (op == "schedule")
    is_scheduled = F.col("stored") & (is_redrive | is_told)
    expected = (
        F.when(is_mark | is_move, "a verdict")
        .when(is_true(F.col("reason") == "over-quota"), "over-quota")
        .when((op == "reject") | is_unmoved, "rejected")
        .when(answer.isNotNull(), answer)
        .when(is_scheduled, "scheduled")
    )
    told_id = F.coalesce("id", "redrive", _own_source())
    # What is accepted under an id lies in the id's partition, and so do its receipts, because both
    # topics have as many partitions and the same keys; of others the receipt may be anywhere.
    receipts = settings.receipts.name
    is_placed = F.col("id").isNotNull() & (op != "reject")
    trimmed_ms = F.when(is_placed, trimmed_in_ms(bounds, receipts)).otherwise(
        bounds.trimmed_before_ms(receipts)
    )
    is_sure = ~is_uncertain(bounds)
    is_passed = is_below(bounds.frontier.offsets)
    rows = logged.where(expected.isNotNull() & told_id.isNotNull()).select(
        *(*PLACE, "op", "killed", "killed_before"),
        # A replace that was sent before is told what came of that one.
        F.coalesce("repeats", "offset").alias("told_as"),
        F.coalesce("repeats_ms", "log_ms").alias("log_ms"),
        F.lit("answer").alias("kind"),
        told_id.alias("told_id"),
        F.col("asked_op").alias("told_op"),
        expected.alias("expected"),
        F.when((op != "reject") & ~is_unmoved, F.col("due_ms")).alias("due_ms"),
        (is_passed & (is_mark | is_move | is_redrive | is_sure)).alias("is_owed"),
        is_sure.alias("is_judged"),
        (F.col("append_ms") < trimmed_ms).alias("is_gone"),
        is_mark.alias("is_mark"),
        is_move.alias("is_move"),
        *("moves", "new_dues_ms", "is_taken"),
    )
    with_members = _with_members(rows.where("is_mark"), messages, bounds)
    owed = rows.where(~F.col("is_mark")).unionByName(with_members, allowMissingColumns=True)
    return owed.drop("op", "killed", "killed_before", "told_as")


def _with_members(marks: DataFrame, messages: DataFrame, bounds: Bounds) -> DataFrame:
    is_settled = is_steady_at("killed_by", bounds.rules, bounds.settings.partitions)
    came_out_ms = F.least("fired_ms", "dead_ms")
    killed = messages.where("killed_by is not null").select(
        *("partition", F.col("killed_by").alias("told_as"), "newest"),
        F.struct(
            source_text(offset="origin").alias("source"),
            "rank_ms",
            # Of a series that is cut the next occurrence is what never comes.
            ((F.col("deliveries") + F.col("letters") > 0) & ~F.col("is_cut")).alias("is_out"),
            came_out_ms.alias("out_ms"),
            (F.col("fate") == "unproven").alias("is_unproven"),
            is_settled.alias("is_settled"),
        ).alias("member"),
    )
    repeated = marks.where("op = 'cancel' and size(killed_before) > 0").select(
        *PLACE, F.explode("killed_before").alias("newest")
    )
    joined = marks
    for name, place, members in (
        ("victims", ["partition", "told_as"], killed),
        ("before", PLACE, repeated.join(killed.drop("told_as"), ["partition", "newest"])),
    ):
        of_mark = members.groupBy(*place).agg(F.collect_list("member").alias("members"))
        known = F.coalesce("members", F.array())
        joined = joined.join(of_mark, place, "left").withColumn(name, known).drop("members")
    is_whole = F.lit(True)
    for name, found in (("killed", "victims"), ("killed_before", "before")):
        is_all_there = F.size(found) == F.size(name)
        is_proved = ~F.exists(found, lambda member: member["is_unproven"])
        # Of a replace nobody asks what was killed before.
        is_asked = F.lit(name == "killed") | (F.col("op") == "cancel")
        is_whole &= ~is_asked | (is_all_there & is_proved)
    # After the cut evidence may be cut short: what a cancel marker there found done may be unread.
    return joined.withColumn("is_judged", F.col("is_judged") & F.col("is_owed") & is_whole)


def outcomes_owed(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return the messages with an id that are owed an outcome, and those that are owed another one
    because they end a series; columns as of answers_owed."""
    is_all = F.lit(bounds.settings.receipts_written == RECEIPTS_ALL) | is_true(F.col("is_told"))
    is_told = F.col("fate").isin(*GIVEN_UP) | (is_all & (F.col("fate") == "delivered"))
    told_id, receipts = F.coalesce("id", _own_source()), bounds.settings.receipts.name
    trimmed_ms = F.when(F.col("id").isNotNull(), trimmed_in_ms(bounds, receipts)).otherwise(
        bounds.trimmed_before_ms(receipts)
    )
    came_out_ms = F.coalesce("delivered_ms", "dead_ms")
    # One that came out although it had been killed before is another finding.
    is_right = F.col("killed_by").isNull() | (came_out_ms < F.col("killed_ms"))
    is_series = F.col("occurrence").isNotNull()
    owed = messages.where(told_id.isNotNull() & is_told).select(
        *("partition", F.col("origin").alias("offset")),
        F.when(is_series, kind_of("outcome", "due_ms")).otherwise("outcome").alias("kind"),
        told_id.alias("told_id"),
        F.lit("schedule").alias("told_op"),
        F.col("fate").alias("expected"),
        "due_ms",
        (F.col("is_done") & is_right).alias("is_owed"),
        F.lit(True).alias("is_judged"),
        (came_out_ms < trimmed_ms).alias("is_gone"),
        F.lit(False).alias("is_mark"),
    )
    is_ended = F.col("is_last") & F.col("fate").isin("dead", "expired", "delivered")
    ended = messages.where(told_id.isNotNull() & is_ended).select(
        *("partition", F.col("origin").alias("offset")),
        F.lit("end").alias("kind"),
        told_id.alias("told_id"),
        F.lit("schedule").alias("told_op"),
        F.lit("ended").alias("expected"),
        "due_ms",
        (F.col("is_done") & is_right).alias("is_owed"),
        F.lit(True).alias("is_judged"),
        (came_out_ms < trimmed_ms).alias("is_gone"),
        F.lit(False).alias("is_mark"),
    )
    return owed.unionByName(ended)


def kind_of(kind: str, due_ms: ColumnOrName) -> Column:
    """Return the kind of receipt that there is once for each occurrence of a series."""
    return F.format_string(f"{kind} of %d", column(due_ms))


def _own_source() -> Column:
    """Return the id of the receipts of a message that wants them and has none."""
    return F.when(is_true(F.col("is_told")), source_text(offset="origin"))
