"""Reschedules: what is moved is what was asked for, once, and a receipt says it.

A continuation that carries out a reschedule names it (`moved_by`). It must be about the same id, be
due when the reschedule says, and keep the place of an occurrence. That nothing else of the message
has changed, and that it comes out once, is judged with all other messages (`messages.py`).

Source: docs/design/rescheduling.md.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import findings, is_true, source_text, table_of
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.held import MOVES
from delayd.audit.judging.retention import is_uncertain, was_not_read
from delayd.audit.tables import FINDINGS


def judge_moves(logged: DataFrame, bounds: Bounds) -> DataFrame:
    """Return what is wrong with what reschedules have written (FINDINGS)."""
    moved = logged.where("moved_by is not null")
    if moved.isEmpty():  # as a rule: spare the joins
        return table_of(logged.sparkSession, FINDINGS)
    marks = logged.where(F.col("op").isin(*MOVES)).select(
        "partition",
        F.col("offset").alias("moved_by"),
        F.struct("id", "new_dues_ms", is_uncertain(bounds).alias("is_uncertain")).alias("mark"),
    )
    before = logged.select(
        "partition",
        F.col("offset").alias("continues"),
        F.struct("due_ms", "own_ms", "occurrence", "is_over").alias("before"),
    )
    joined = moved.join(marks, ["partition", "moved_by"], "left")
    checked = joined.join(before, ["partition", "continues"], "left").withColumn(
        "problem", _problem(bounds)
    )
    return findings(
        checked,
        {Fault.ALTERED: F.col("problem")},
        *("id", "partition", "offset", "due_ms"),
        topic=F.lit(bounds.settings.buffer.name),
        source=source_text(offset="origin"),
    )


def _problem(bounds: Bounds) -> Column:
    mark, before = F.col("mark"), F.col("before")
    is_there = mark.isNotNull()
    is_first = is_true(F.col("occurrence") == 0)
    at_ms = F.when(is_first, F.col("own_ms")).otherwise(F.col("due_ms"))
    is_over = is_true(F.col("is_over"))
    is_asked = is_true(F.array_contains(mark["new_dues_ms"], at_ms)) | is_over
    own_ms = F.coalesce(before["own_ms"], before["due_ms"])
    is_of_series = F.col("occurrence").isNotNull() & ~is_first & ~is_over
    is_elsewhere = is_of_series & before.isNotNull() & ~F.col("own_ms").eqNullSafe(own_ms)
    nothing_there = ~was_not_read(bounds, offset="moved_by")
    return (
        F.when(~is_there & nothing_there, "it was moved, and no reschedule is there")
        .when(~is_there | mark["is_uncertain"], None)
        .when(~mark["id"].eqNullSafe(F.col("id")), "it was moved by a reschedule of another id")
        .when(~is_asked, F.format_string("it was moved to %d, which nobody asked for", at_ms))
        .when(is_elsewhere, "it was fired, and has another place in its series")
    )


def with_moves(rows: DataFrame, logged: DataFrame) -> DataFrame:
    """Return rows of LOGGED with `moves`: how many records carry out each, if it is a reschedule;
    refused or not."""
    moved = logged.where("moved_by is not null")
    counts = moved.groupBy("partition", F.col("moved_by").alias("offset")).agg(
        F.count("*").alias("moves")
    )
    return rows.join(counts, ["partition", "offset"], "left").fillna(0, subset=["moves"])


def is_true_move(receipt: Column) -> Column:
    """Return whether what a reschedule was told is true, of a row of what is owed (verdicts.py)."""
    verdict, dues_ms = receipt["verdict"], F.col("new_dues_ms")
    is_due = is_true(F.array_contains(dues_ms, receipt["due_ms"]))
    is_named = F.size(receipt["killed"]) > 0
    is_moved = (F.col("moves") > 0) | is_true(F.col("is_taken"))
    return ~is_named & (
        F.when(verdict == "rescheduled", is_moved & is_due)
        .when(verdict.isin("too-late", "not-found"), F.col("moves") == 0)
        .otherwise(F.lit(False))
    )
