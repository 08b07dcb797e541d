"""The receipts that are owed: by whom, what they must say, and whether it can be judged.

Source: docs/design/audit.md, "Verdicts".
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import is_below, source_text
from delayd.audit.judging.retention import is_uncertain, trimmed_in_ms
from replication.settings import RECEIPTS_ALL

_OWED: Final = (
    *("partition", "offset", "kind", "told_id", "told_op", "expected", "due_ms", "is_owed"),
    *("is_judged", "is_gone", "is_mark", "log_ms", "victims", "before"),
)

_MEMBERS: Final = (
    "array<struct<source string, rank_ms bigint, is_out boolean, out_ms bigint,"
    " is_unproven boolean>>"
)


def answers_owed(logged: DataFrame, messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return the requests that are owed an answer: a row of _OWED each."""
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
    """Return the time before which receipts may be missing of requests that lie in `partition` and
    have an id: both topics have as many partitions, and are written by the same key."""
    return trimmed_in_ms(bounds, bounds.settings.receipts.name, F.col("partition"))


def _with_members(marks: DataFrame, messages: DataFrame) -> DataFrame:
    """Return cancel markers with the messages that they killed (`victims`), and with those of the
    cancel marker before (`before`)."""
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
    # After the cut evidence may be cut short: what a cancel marker there found done may be unread.
    return whole.withColumn("is_judged", F.col("is_judged") & F.col("is_owed") & is_whole)


def outcomes_owed(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return the messages with an id that are owed an outcome: a row of _OWED each."""
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
