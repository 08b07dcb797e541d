"""The requests that a batch changes, and what becomes of them. Pure: tables in, tables out.

1. `touched`: of the requests that are watched, those that the batch may change: named by evidence,
   with the id of a new request, or passed by the frontier
2. `relogged`: the rules about ids, over those and the new requests
3. `claimed`: which of them a receipt calls killed
4. `standing`: what each is before deliveries are looked at
5. `settled`: and after

A request is over for what the log says (refused, killed, continued) or for what came out. It is
lost if the frontier has covered it, nothing came out, and all that could have come out was read at
a time that is GRACE_MS later. It is unproven if what came out may be in what is never read.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.following.batch_context import GRACE_MS, UNPROVEN_MS, BatchContext
from delayd.audit.following.watched_requests import FACTS, WATCHED
from delayd.audit.judging.columns import PLACE, is_below, is_done, is_true, looked_up
from delayd.audit.judging.ids import logged_of
from delayd.audit.judging.request_counts import counts_of
from delayd.audit.judging.texts import offset_of_source, partition_of_source
from delayd.audit.tables import REQUESTS

SMALL_ROWS: Final = 200_000
"""Keys that are so few are given to every task, so that the table need not be moved."""

COUNTED_TARGETS_MAX: Final = 10_000
"""Requests to more targets are not counted by kind: all rules about ids are planned."""

_KILLING: Final = ("cancelled", "replaced")
_OF_THE_LOG: Final = ("by_id", "by_place", "by_redrive")
_ALL: Final = (*_OF_THE_LOG, "by_source", "by_claim")


def touched(
    watched: DataFrame,
    new: DataFrame | None,
    named: DataFrame | None,
    claims: DataFrame | None,
    context: BatchContext,
    *,
    is_small: bool,
) -> DataFrame:
    """Return rows of WATCHED with why they are looked at: one flag for each of `by_...`.

    `new` are requests, `named` has places (partition, offset), `claims` is of `claims_of`; None
    says that there are none.
    """

    def flagged(rows: DataFrame, keys: DataFrame, on: list[str], flag: str) -> DataFrame:
        keys = keys.dropna().distinct().withColumn(flag, F.lit(True))
        return rows.join(F.broadcast(keys) if is_small else keys, on, "left")

    rows = watched
    if new is not None:
        rows = flagged(rows, new.select("partition", "id"), ["partition", "id"], "by_id")
        continued = new.select("partition", F.col("continues").alias("offset"))
        rows = flagged(rows, continued, PLACE, "by_place")
        rows = flagged(rows, new.select("redrive"), ["redrive"], "by_redrive")
    if named is not None:
        rows = flagged(rows, named, PLACE, "by_source")
    if claims is not None:
        keys = claims.select("partition", "origin")
        rows = flagged(rows, keys, ["partition", "origin"], "by_claim")
    frontier = context.frontier
    chosen = F.col("kind").isNull() & (is_done(frontier) | is_below(frontier.offsets, "killed_by"))
    for flag in _ALL:
        there = F.col(flag).isNotNull() if flag in rows.columns else F.lit(False)
        rows = rows.withColumn(flag, there)
        chosen |= F.col(flag)
    return rows.where(chosen).select(*WATCHED.fieldNames(), *_ALL)


def relogged(rows: DataFrame, new: DataFrame | None, context: BatchContext) -> DataFrame:
    """Return `touched` rows and new requests as WATCHED, with what the rules about ids say of them
    now; with `is_new`, and `was`: the kind that each had before."""
    known = rows.withColumns({"is_new": F.lit(False), "was": F.col("kind")})
    if new is None:
        return known.drop(*_ALL)
    asked = REQUESTS.fieldNames()
    facts = [field.name for field in FACTS]
    in_group = F.col("by_id") | F.col("by_place")
    group = rows.where(in_group | F.col("by_redrive")).select(*asked)
    ruled = group.unionByName(new)
    counts = counts_of(ruled, COUNTED_TARGETS_MAX)
    logged = logged_of(ruled, context.settings, counts).select(*asked, *facts)
    again = known.where(in_group).drop(*facts).join(logged.select(*PLACE, *facts), PLACE)
    fresh = logged.where(~is_below(context.buffer_before)).withColumn("is_new", F.lit(True))
    others = known.where(~in_group)
    return (
        others.drop(*_ALL)
        .unionByName(again.drop(*_ALL))
        .unionByName(fresh, allowMissingColumns=True)
    )


def claims_of(receipts: DataFrame) -> DataFrame:
    """Return each message that a receipt calls killed: (partition, origin, mark_offset, at_ms,
    receipt's place)."""
    told = receipts.where(F.col("flaw").isNull() & F.col("verdict").isin(*_KILLING))
    each = told.withColumn("source", F.explode("killed"))
    return each.select(
        partition_of_source(F.col("source")).cast("int").alias("partition"),
        offset_of_source(F.col("source")).alias("origin"),
        F.col("source_partition").alias("mark_partition"),
        F.col("source_offset").alias("mark_offset"),
        "at_ms",
        F.col("partition").alias("receipt_partition"),
        F.col("offset").alias("receipt_offset"),
    ).dropna(subset=["partition", "origin"])


def claimed(rows: DataFrame, claims: DataFrame | None) -> DataFrame:
    """Add the time of the first receipt that is right in calling an open one killed."""
    if claims is None:
        return rows
    first = (
        rows.where("kind is null and killed_by is not null")
        .select(*PLACE, "origin", "killed_by")
        .join(claims, ["partition", "origin"])
        .where("mark_partition = partition and mark_offset >= killed_by")
        .groupBy(*PLACE)
        .agg(F.min("at_ms").alias("first_ms"))
    )
    return (
        rows.join(first, PLACE, "left")
        .withColumn("claimed_ms", F.coalesce("claimed_ms", "first_ms"))
        .drop("first_ms")
    )


def standing(rows: DataFrame, context: BatchContext) -> DataFrame:
    """Set `kind` as the log, the frontier and the claims have it."""
    is_over = is_done(context.frontier)
    is_message = F.col("op").isin("schedule", "replace", "redrive", "continue", "debounce")
    is_killed = is_below(context.frontier.offsets, "killed_by") & ~is_over
    # Of a series the next occurrence may be what a cancel keeps away.
    may_be_out = is_true(F.col("goes_on")) & is_over
    kind = (
        F.when(F.col("kind").isNotNull(), F.col("kind"))
        .when(F.col("op") == "reject", "rejected")
        .when(~is_message, "mark")
        .when(~F.col("stored") | is_true(F.col("is_refused")), "refused")
        .when(F.col("continued_by").isNotNull() & ~is_true(F.col("is_followed")), "continued")
        .when(F.col("is_new") & is_done(context.watch), "before")
        .when(is_killed | (F.col("claimed_ms").isNotNull() & ~may_be_out), "killed")
    )
    since_ms = F.when(kind == "before", F.col("rank_ms")).otherwise(context.at_ms)
    ended_ms = F.when(kind.isNotNull(), F.coalesce("ended_ms", since_ms))
    seen_ms = F.when(is_message & is_over, context.frontier_ms)
    covered_ms = F.coalesce("covered_ms", seen_ms)
    return rows.withColumns(
        {"ended_ms": ended_ms.cast("long"), "covered_ms": covered_ms.cast("long"), "kind": kind}
    )


def settled(
    rows: DataFrame, delivered: DataFrame | None, letters: DataFrame | None, context: BatchContext
) -> DataFrame:
    """Set `kind` by what came out: `delivered` has (partition, offset, came_ms: its delayd-fired),
    one row for each place; `letters` has places."""
    rows = _flagged(rows, delivered, "came")
    if delivered is None:
        rows = rows.withColumn("came_ms", F.lit(None).cast("long"))
    rows = _flagged(rows, None if letters is None else letters.distinct(), "died")
    is_overdue = is_true(_read_ms(context) - F.col("covered_ms") >= GRACE_MS)
    is_below_mark = is_below(context.frontier.offsets, "killed_by")
    was_open = F.col("kind").isNull() | F.col("kind").isin("lost", "unproven")
    is_first = was_open & F.col("came")
    kind = (
        F.when(is_first, "delivered")
        .when(F.col("kind").isNotNull(), F.col("kind"))
        .when(F.col("died"), "dead")
        .when(is_overdue & is_below_mark, "killed")
        .when(is_overdue & _is_doubtful(context), "unproven")
        .when(is_overdue, "lost")
        .when(context.at_ms - F.col("covered_ms") >= UNPROVEN_MS, "unproven")
    )
    fired_ms = F.when(is_first, F.col("came_ms")).otherwise(F.col("fired_ms"))
    ended_ms = F.when(kind.isNotNull(), F.coalesce("ended_ms", F.lit(context.at_ms)))
    return rows.withColumns(
        {"fired_ms": fired_ms, "ended_ms": ended_ms.cast("long"), "kind": kind}
    ).drop("came", "came_ms", "died")


def _flagged(rows: DataFrame, places: DataFrame | None, flag: str) -> DataFrame:
    """Flag the rows that are among these places."""
    if places is None:
        return rows.withColumn(flag, F.lit(False))
    there = rows.join(places.withColumn(flag, F.lit(True)), PLACE, "left")
    return there.withColumn(flag, is_true(F.col(flag)))


def _read_ms(context: BatchContext) -> Column:
    """Return the time by which all that could come out of a request was read; null: never. What is
    retried comes out into the buffer."""
    settled_ms = context.settled_ms
    own = {context.settings.dead.name, context.settings.buffer.name}
    if not own <= settled_ms.keys():
        return F.lit(None).cast("long")
    own_ms = min(settled_ms[name] for name in own)
    return looked_up({topic: min(ms, own_ms) for topic, ms in settled_ms.items()}, "topic")


def _is_doubtful(context: BatchContext) -> Column:
    """Return whether it may have come out, been killed or retried in what is never read."""
    unread_ms = looked_up(context.unread_ms, "topic")
    dead_ms = F.lit(context.unread_ms.get(context.settings.dead.name))
    in_time = F.greatest(unread_ms, dead_ms.cast("long")) + GRACE_MS >= F.col("covered_ms")
    return is_true(in_time) | is_below(context.buffer_starts)
