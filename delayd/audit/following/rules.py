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

import json
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.following.batch_context import GRACE_MS, UNPROVEN_MS, BatchContext
from delayd.audit.following.watched_requests import FACTS, FATE, WATCHED
from delayd.audit.judging.columns import is_below, is_done
from delayd.audit.judging.ids import logged_of
from delayd.audit.judging.sources import offset_of_source, partition_of_source
from delayd.audit.tables import REQUESTS
from replication.frontier import Frontier

SMALL_ROWS: Final = 200_000
"""Keys that are so few are given to every task, so that the table need not be moved."""

_PLACE: Final = ["partition", "offset"]
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
        rows = flagged(rows, continued, _PLACE, "by_place")
        rows = flagged(rows, new.select("redrive"), ["redrive"], "by_redrive")
    if named is not None:
        rows = flagged(rows, named, _PLACE, "by_source")
    if claims is not None:
        keys = claims.select("partition", "origin")
        rows = flagged(rows, keys, ["partition", "origin"], "by_claim")
    for flag in _ALL:
        there = F.col(flag).isNotNull() if flag in rows.columns else F.lit(False)
        rows = rows.withColumn(flag, there)
    is_passed = F.col("kind").isNull() & (
        _is_done(context.frontier)
        | is_below(context.frontier.offsets, F.col("partition"), F.col("killed_by"))
    )
    chosen = is_passed
    for flag in _ALL:
        chosen |= F.col(flag)
    return rows.where(F.coalesce(chosen, F.lit(False))).select(
        *(field.name for field in WATCHED.fields), *_ALL
    )


def relogged(rows: DataFrame, new: DataFrame | None, context: BatchContext) -> DataFrame:
    """Return `touched` rows and new requests as WATCHED, with what the rules about ids say of them
    now; with `is_new`, and `was`: the kind that each had before."""
    names = [field.name for field in WATCHED.fields]
    is_known = [F.lit(False).alias("is_new"), F.col("kind").alias("was")]
    if new is None:
        return rows.select(*names, *is_known)
    asked = [field.name for field in REQUESTS.fields]
    facts = [field.name for field in FACTS]
    in_group = F.col("by_id") | F.col("by_place")
    group = rows.where(in_group | F.col("by_redrive")).select(*asked)
    logged = logged_of(group.unionByName(new), context.settings).select(*asked, *facts)
    is_new = ~is_below(context.buffer_before, F.col("partition"), F.col("offset"))
    fate = [F.lit(None).cast(field.dataType).alias(field.name) for field in FATE]
    none = F.lit(None).cast("string").alias("was")
    fresh = (
        logged.where(is_new).select("*", *fate).select(*names, F.lit(True).alias("is_new"), none)
    )
    again = rows.where(in_group).drop(*facts).join(logged.select(*_PLACE, *facts), _PLACE)
    others = rows.where(~in_group)
    return fresh.unionByName(again.select(*names, *is_known)).unionByName(
        others.select(*names, *is_known)
    )


def claims_of(receipts: DataFrame) -> DataFrame:
    """Return each message that a receipt calls killed: (partition, origin, mark_offset, at_ms,
    receipt's place)."""
    told = receipts.where(F.col("flaw").isNull() & F.col("verdict").isin(*_KILLING))
    each = told.select(
        F.explode("killed").alias("source"),
        F.col("source_partition").alias("mark_partition"),
        F.col("source_offset").alias("mark_offset"),
        "at_ms",
        F.col("partition").alias("receipt_partition"),
        F.col("offset").alias("receipt_offset"),
    )
    return each.select(
        partition_of_source(F.col("source")).cast("int").alias("partition"),
        offset_of_source(F.col("source")).alias("origin"),
        *("mark_partition", "mark_offset", "at_ms", "receipt_partition", "receipt_offset"),
    ).dropna(subset=["partition", "origin"])


def claimed(rows: DataFrame, claims: DataFrame | None) -> DataFrame:
    """Add the time of the first receipt that is right in calling an open one killed."""
    if claims is None:
        return rows
    first = (
        rows.where(F.col("kind").isNull() & F.col("killed_by").isNotNull())
        .select(*_PLACE, "origin", "killed_by")
        .join(claims, ["partition", "origin"])
        .where(
            (F.col("mark_partition") == F.col("partition"))
            & (F.col("mark_offset") >= F.col("killed_by"))
        )
        .groupBy(*_PLACE)
        .agg(F.min("at_ms").alias("first_ms"))
    )
    return (
        rows.join(first, _PLACE, "left")
        .withColumn("claimed_ms", F.coalesce("claimed_ms", "first_ms"))
        .drop("first_ms")
    )


def standing(rows: DataFrame, context: BatchContext) -> DataFrame:
    """Set `kind` as the log, the frontier and the claims have it."""
    killed_by = F.col("killed_by")
    is_message = F.col("op").isin("schedule", "replace", "redrive", "continue")
    is_killed = is_below(context.frontier.offsets, F.col("partition"), killed_by) & ~_is_done(
        context.frontier
    )
    kind = (
        F.when(F.col("kind").isNotNull(), F.col("kind"))
        .when(F.col("op") == "reject", "rejected")
        .when(~is_message, "mark")
        .when(~F.col("stored") | F.coalesce("is_refused", F.lit(False)), "refused")
        .when(F.col("continued_by").isNotNull(), "continued")
        .when(F.col("is_new") & _is_done(context.watch), "before")
        .when(F.coalesce(is_killed, F.lit(False)) | F.col("claimed_ms").isNotNull(), "killed")
    )
    ended_ms = F.when((kind == "before") & F.col("ended_ms").isNull(), F.col("rank_ms")).when(
        kind.isNotNull(), F.coalesce("ended_ms", F.lit(context.at_ms))
    )
    covered_ms = F.coalesce(
        "covered_ms",
        F.when(is_message & _is_done(context.frontier), F.lit(context.frontier_ms)),
    )
    return (
        rows.withColumn("ended_ms", ended_ms.cast("long"))
        .withColumn("covered_ms", covered_ms.cast("long"))
        .withColumn("kind", kind)
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
    read_ms = _read_ms(context)
    is_overdue = F.coalesce(read_ms - F.col("covered_ms") >= GRACE_MS, F.lit(False))
    is_below_mark = F.coalesce(
        is_below(context.frontier.offsets, F.col("partition"), F.col("killed_by")), F.lit(False)
    )
    was_open = F.col("kind").isNull() | F.col("kind").isin("lost", "unproven")
    kind = (
        F.when(was_open & F.col("came"), "delivered")
        .when(F.col("kind").isNotNull(), F.col("kind"))
        .when(F.col("died"), "dead")
        .when(is_overdue & is_below_mark, "killed")
        .when(is_overdue & _is_doubtful(context), "unproven")
        .when(is_overdue, "lost")
        .when(context.at_ms - F.col("covered_ms") >= UNPROVEN_MS, "unproven")
    )
    is_first = was_open & F.col("came")
    return (
        rows.withColumn("fired_ms", F.when(is_first, F.col("came_ms")).otherwise(F.col("fired_ms")))
        .withColumn(
            "ended_ms",
            F.when(kind.isNotNull(), F.coalesce("ended_ms", F.lit(context.at_ms))).cast("long"),
        )
        .withColumn("kind", kind)
        .drop("came", "came_ms", "died")
    )


def _flagged(rows: DataFrame, places: DataFrame | None, flag: str) -> DataFrame:
    """Flag the rows that are among these places."""
    if places is None:
        return rows.withColumn(flag, F.lit(False))
    there = rows.join(places.withColumn(flag, F.lit(True)), _PLACE, "left")
    return there.withColumn(flag, F.coalesce(flag, F.lit(False)))


def _read_ms(context: BatchContext) -> Column:
    """Return the time by which all that could come out of a request was read; null: never. What is
    retried comes out into the buffer."""
    known = F.from_json(F.lit(json.dumps(dict(context.settled_ms))), "map<string,bigint>")
    names = (context.settings.dead.name, context.settings.buffer.name)
    times = [F.try_element_at(known, name) for name in (F.col("topic"), *map(F.lit, names))]
    all_read = times[0].isNotNull() & times[1].isNotNull() & times[2].isNotNull()
    return F.when(all_read, F.least(*times))


def _is_doubtful(context: BatchContext) -> Column:
    """Return whether it may have come out, been killed or retried in what is never read."""
    known = F.from_json(F.lit(json.dumps(dict(context.unread_ms))), "map<string,bigint>")
    names = (F.col("topic"), F.lit(context.settings.dead.name))
    times = [F.try_element_at(known, name) for name in names]
    in_time = F.greatest(*times) + GRACE_MS >= F.col("covered_ms")
    before_buffer = is_below(context.buffer_starts, F.col("partition"), F.col("offset"))
    return F.coalesce(in_time, F.lit(False)) | F.coalesce(before_buffer, F.lit(False))


def _is_done(frontier: Frontier) -> Column:
    return F.coalesce(
        is_done(frontier, F.col("lane"), F.col("rank_ms"), F.col("partition"), F.col("offset")),
        F.lit(False),
    )
