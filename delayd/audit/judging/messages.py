"""The fates: each request of a user has exactly one.

A request's *family* is the request and all records that continue it; each occurrence of a series,
and its request, is a family of its own. Facts are counted by the record that they name, then by
family; most families are one record, and are not grouped at all.
Source: docs/design/audit.md, "Fates".
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import (
    GIVEN_UP,
    NO_OCCURRENCE,
    PLACE,
    as_table,
    is_below,
    is_done,
    is_true,
    named_place,
)
from delayd.audit.judging.contents import together
from delayd.audit.judging.held import MOVES, UNMOVED
from delayd.audit.judging.retention import is_uncertain, trimmed_ms
from delayd.audit.tables import MESSAGES

MARK_HIDDEN_MS_MAX: Final = 900_000
"""How long before O passes it a cancel marker may have been appended: Kafka's longest transaction
of a user (`transaction.max.timeout.ms`), which hides what is behind it."""

_COUNTS: Final = ["deliveries", "letters", "expired"]
_TIMES: Final = ("fired_ms", "delivered_ms", "dead_ms")

_ASKED: Final = (
    *("partition", "offset", "id", "topic", "append_ms", "due_ms", "op", "stored", "answer"),
    *("is_told", "planned_ms", "occurrence"),
)
_OWN: Final = (*_ASKED, "is_uncertain")
_CONTENT: Final = (
    *("topic", "key_hash", "value_hash", "headers_hash", "id", "target_partition"),
    *("late_ms", "is_told", "series", "group"),
)
"""What must be the same in all records of a family."""
_TIME: Final = ("due_ms", "planned_ms")
"""The same, but of a series: an occurrence that was found late gives way to a later one."""
_NEWEST: Final = (
    *("newest", "rank_ms", "lane", "killed_by", "killed_ms", "killed_op"),
    *("goes_on", "is_over", "last_due_ms", "last_planned_ms", "continued_by"),
)


def judge_messages(
    logged: DataFrame, deliveries: DataFrame, letters: DataFrame, bounds: Bounds
) -> DataFrame:
    """Return one row for each request of a user that is no valid cancel (tables.MESSAGES).

    Two shuffles of the size of all messages: the log's, and that of what came out. Receipts are
    claims, and change no fate.
    """
    is_mark = F.col("op").isin("cancel", *MOVES) & ~is_true(F.col("answer").isin(*UNMOVED))
    records = logged.where(~is_mark).select(
        *(*_ASKED, "rank_ms", "lane", "killed_by", "killed_ms", "killed_op", "origin"),
        *("is_refused", F.col("offset").alias("newest"), "goes_on", "is_over", "continued_by"),
        F.col("due_ms").alias("last_due_ms"),
        F.col("planned_ms").alias("last_planned_ms"),
        is_uncertain(bounds).alias("is_uncertain"),
        (F.col("continued_by").isNotNull() | (F.col("op") == "continue")).alias("is_continued"),
        together(*_CONTENT).alias("content"),
        # Of a local time it is judged in local_times.py.
        F.when(F.col("occurrence").isNull() & F.col("clock").isNull(), together(*_TIME)).alias(
            "times"
        ),
        F.col("clock").isNotNull().alias("is_local"),
        F.col("moved_by").isNotNull().alias("is_moved"),
    )
    known = records.join(_facts(deliveries, letters), PLACE, "left").fillna(0, subset=_COUNTS)
    families = _families(known.where("is_continued"))
    alone = known.where(~F.col("is_continued")).withColumn("is_changed", F.lit(False))
    alone = alone.withColumns(_of_series())
    messages = alone.select(*families.columns).unionByName(families)
    is_over = F.col("stored") & is_done(bounds.frontier, "newest")
    fated = messages.withColumn("is_done", is_over).withColumn("fate", _fate(bounds))
    delivered_ms = F.when(F.col("fate") == "delivered", F.col("delivered_ms"))
    return as_table(fated, MESSAGES, delivered_ms=delivered_ms)


def _facts(deliveries: DataFrame, letters: DataFrame) -> DataFrame:
    """Return what names a record, by the record."""
    # A broker may say when a delivery was in its target; else the master's `now` does.
    broker_ms = F.when(F.col("is_append_time"), F.col("timestamp_ms"))
    delivered_ms = broker_ms.otherwise(F.col("fired_ms"))
    delivered = deliveries.where("source_offset is not null").select(
        *(*named_place(), "fired_ms", delivered_ms.alias("delivered_ms")),
        F.lit(1).alias("deliveries"),
    )
    is_given_up = F.col("reason").isin(*GIVEN_UP, NO_OCCURRENCE)
    dead = letters.where(is_given_up & F.col("source_offset").isNotNull()).select(
        *(*named_place(), F.col("timestamp_ms").alias("dead_ms"), F.lit(1).alias("letters")),
        F.when(F.col("reason") == "expired", 1).alias("expired"),
    )
    return (
        delivered.unionByName(dead, allowMissingColumns=True)
        .groupBy(*PLACE)
        .agg(*(F.count(name).alias(name) for name in _COUNTS), *_firsts())
    )


def _firsts() -> list[Column]:
    return [F.min(name).alias(name) for name in _TIMES]


def _families(members: DataFrame) -> DataFrame:
    """Return one row for each family of several records whose own request is in the log."""
    is_own = F.col("op") != "continue"
    is_member = is_own | F.col("stored")
    # The first record of an occurrence, unless it came behind the cancel that ended its series.
    is_first = (F.col("occurrence") > 0) & F.col("stored")
    own = F.max(F.when(is_own, F.struct(*_OWN)))
    first = F.min_by(F.when(is_first, F.struct(*_OWN)), F.when(is_first, F.col("offset")))
    grouped = members.groupBy("partition", "origin", F.coalesce("occurrence", F.lit(-1))).agg(
        F.coalesce(own, first).alias("own"),
        F.max(F.when(is_member, F.struct(*_NEWEST))).alias("last"),
        F.max("is_refused").alias("is_refused"),
        (
            (F.min("content") != F.max("content"))
            # A reschedule gives it another time: which, is judged in moves.py.
            | (is_true(F.min("times") != F.max("times")) & ~F.max("is_moved"))
        ).alias("is_changed"),
        (F.max("is_moved") | F.max("is_local")).alias("is_changing"),
        *(F.sum(name).alias(name) for name in _COUNTS),
        *_firsts(),
    )
    found = grouped.where("own is not null").select(
        *(f"own.{name}" for name in _OWN),
        *(f"last.{name}" for name in _NEWEST),
        *(*_COUNTS, *_TIMES, "is_refused", "is_changed", "origin", "is_changing"),
    )
    is_last = F.col("occurrence").isNotNull() | F.col("is_changing")
    times = {name: F.when(is_last, F.col(f"last_{name}")).otherwise(F.col(name)) for name in _TIME}
    return found.withColumns({**times, **_of_series()}).drop("is_changing")


def _of_series() -> dict[str, Column]:
    is_killed = F.col("killed_by").isNotNull()
    is_out = F.col("deliveries") + F.col("letters") > 0
    return {
        # Its continuation came behind the cancel marker, and was refused.
        "is_cut": is_true(F.col("goes_on") & is_killed & is_out),
        "is_last": is_true(~F.col("goes_on") & ~F.col("is_over")),
        "is_resolved": (F.col("occurrence") == 0) & F.col("continued_by").isNotNull(),
    }


def _fate(bounds: Bounds) -> Column:
    rank_ms = F.col("rank_ms")
    dead_trimmed_ms = bounds.trimmed_before_ms(bounds.settings.dead.name)
    is_trimmed = F.greatest(trimmed_ms(bounds), F.lit(dead_trimmed_ms)) > rank_ms
    # A cancel marker counts once O has passed it; or if a continuation was refused because of it.
    is_marked = F.col("killed_by").isNotNull() & (
        is_below(bounds.frontier.offsets, "killed_by") | F.col("is_refused")
    )
    # It may have come too late, although it was appended before.
    may_be_gone = is_trimmed & (F.col("killed_ms") + MARK_HIDDEN_MS_MAX >= rank_ms)
    is_replaced = F.col("killed_op").isin("replace", "debounce")
    killed = F.when(is_replaced, "replaced").otherwise("cancelled")
    # What a reschedule has killed goes on: with the step that passes it, if it did not come out.
    is_moving = is_true(F.col("killed_op").isin(*MOVES))
    is_passed = is_below(bounds.frontier.offsets, "killed_by")
    moving = F.when(~is_passed, "pending").when(may_be_gone, "unproven").otherwise("lost")
    came_out = (
        F.when(F.col("deliveries") > 0, "delivered")
        .when(F.col("expired") > 0, "expired")
        .when(F.col("letters") > 0, "dead")
    )
    is_over = is_true(F.col("occurrence").isNotNull() & F.col("is_resolved"))
    return (
        F.when(F.col("op").isin("reject", *MOVES), "rejected")
        .when(F.col("answer").isNotNull() & ~F.col("is_uncertain"), F.col("answer"))
        .when(came_out.isNotNull(), came_out)
        .when(is_moving, moving)
        .when(is_marked, F.when(may_be_gone, "unproven").otherwise(killed))
        .when(is_over, "recurring")
        .when(F.col("stored") & ~F.col("is_done"), "pending")
        .when(is_trimmed | F.col("is_uncertain"), "unproven")
        .otherwise("lost")
    )
