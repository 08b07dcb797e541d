"""Pauses of targets: what orders say, what frontiers make of them, and what came out meanwhile.

A frontier names a hold by the offset of the last order about its target. So each hold is compared
with that order, each order to pause with the frontiers between it and the next one about the same
target, and each delivery with the holds of the step that made it. Source: docs/design/audit.md,
"Pauses".
"""

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds, LoggedOrder
from delayd.audit.judging.columns import (
    PLACE,
    findings,
    home_in,
    is_true,
    named_place,
    of_partition,
    shard_of,
    source_text,
    table_of,
)
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.history import History, covered_by
from delayd.audit.tables import FINDINGS, ORDERS
from replication.holds import HOLD_MS_MAX, HOLDS_MAX, ORDER_AGE_MS_MAX
from replication.settings import Settings
from replication.smoothing import RATE_MAX

_NUMBER: Final = "([0-9]{1,15})"
_ORDER: Final = (
    rf"\A(pause/{_NUMBER}/{_NUMBER}|resume/{_NUMBER})/{_NUMBER}/([a-zA-Z0-9._-]{{1,249}})\z"
)
_UNTIL: Final = 3
_RATE: Final = 5
_TOPIC: Final = 6


def _part(group: int) -> Column:
    return F.regexp_extract(F.col("control.hold"), _ORDER, group)


def order_reason(settings: Settings) -> Column:
    """Return why an order is refused, empty if it is not; null of what is none."""
    at_ms = F.greatest(_part(2).try_cast("bigint"), _part(4).try_cast("bigint"))
    until_ms, topic = _part(_UNTIL).try_cast("bigint"), _part(_TOPIC)
    is_good = (
        F.col("control.hold").rlike(_ORDER)
        & ~(topic.startswith(settings.prefix) | topic.startswith("__") | topic.isin(".", ".."))
        & (F.abs(F.col("append_ms") - at_ms) <= ORDER_AGE_MS_MAX)
        & (_part(_RATE).try_cast("bigint") <= RATE_MAX)
        & (
            until_ms.isNull()
            | ((until_ms > 0) & (until_ms > at_ms) & (until_ms - at_ms <= HOLD_MS_MAX))
        )
    )
    reason = F.when(~F.col("knows_moves"), "unknown-header").when(~is_true(is_good), "bad-proof")
    return F.when(F.col("control.hold").isNotNull(), F.coalesce(reason, F.lit("")))


def orders_of(requests: DataFrame) -> tuple[LoggedOrder, ...]:
    """Return the orders among the requests."""
    found = []
    for row in requests.where("op = 'hold'").select(*PLACE, "ordered").collect():
        kind, *_, rate, topic = row.ordered.split("/")
        until_ms = int(row.ordered.split("/")[2]) if kind == "pause" else 0
        found.append(LoggedOrder(row.partition, row.offset, topic, until_ms, int(rate)))
    return tuple(sorted(found))


def judge_holds(
    links: DataFrame, history: History, logged: DataFrame, deliveries: DataFrame, bounds: Bounds
) -> DataFrame:
    """Return what is wrong with pauses, as FINDINGS. `links` is links_of the frontiers."""
    spark = links.sparkSession
    steps = links.where("is_sound").select(
        *("shard", "offset", "number", "step", "now_ms", "offsets", "holds", "is_base", "old")
    )
    named = steps.select("*", F.explode("holds").alias("topic", "hold"))
    if not bounds.orders and named.isEmpty():  # as a rule
        return table_of(spark, FINDINGS)
    orders = _orders(spark, bounds)
    wrong = _of_named(named, orders, bounds).unionByName(_of_missing(steps, orders))
    first = Window.partitionBy("shard", "topic", "reason_of").orderBy("offset")
    once = wrong.withColumn("number", F.row_number().over(first)).where("number = 1")
    place = {"topic": F.lit(bounds.settings.frontier.name)}
    of_steps = findings(
        once,
        {Fault.FRONTIER_HELD: F.col("reason")},
        "offset",
        **place,
        partition=F.col("shard"),
    )
    return of_steps.unionByName(_of_deliveries(named, history, logged, deliveries))


def _orders(spark: SparkSession, bounds: Bounds) -> DataFrame:
    """Return the orders, each with the offset of the next one about its target in its partition."""
    following = Window.partitionBy("home", "about").orderBy("at")
    rows = [(o.partition, o.offset, o.topic, o.until_ms, o.rate) for o in bounds.orders]
    return F.broadcast(
        table_of(spark, ORDERS, rows)
        .withColumn("next", F.lead("at").over(following))
        .withColumn("of_shard", shard_of(bounds.shards, "home"))
        # Of fewer shards, or more, a topic had another home.
        .withColumn(
            "is_at_home",
            F.col("home") == home_in(F.col("about"), F.col("of_shard"), bounds.settings),
        )
    )


def _of_named(named: DataFrame, orders: DataFrame, bounds: Bounds) -> DataFrame:
    """Return holds that the order which they name does not make."""
    hold = F.col("hold")
    until_ms, rate, at = (F.get(hold, F.lit(n)) for n in (1, 2, 3))
    is_of_it = (F.col("about") == F.col("topic")) & (F.col("of_shard") == F.col("shard"))
    joined = named.join(orders, is_of_it & (F.col("at") == at), "left")
    reached = F.get("offsets", F.col("home"))
    home = home_in(F.col("topic"), F.col("shard"), bounds.settings)
    is_trimmed = at < of_partition(bounds.buffer_starts, home)
    is_pause = F.col("ends_ms") > 0
    why = (
        F.when(F.col("at").isNull(), F.when(~is_trimmed, "no order is there in the buffer"))
        .when(F.col("at") >= reached, "its order was not passed yet")
        .when(F.col("next") < reached, "a later order was passed, too")
        .when(is_pause & (until_ms != F.col("ends_ms")), "its order says another end")
        .when(~is_pause & (until_ms > F.col("now_ms")), "its order is to resume it")
        .when((F.col("wanted_rate") > 0) & (rate != F.col("wanted_rate")), "it has another rate")
    )
    text = F.format_string("step %d has %s paused by an order at %d: %s", "step", "topic", at, why)
    return joined.where(why.isNotNull()).select(
        "shard", "offset", "topic", at.alias("reason_of"), text.alias("reason")
    )


def _of_missing(steps: DataFrame, orders: DataFrame) -> DataFrame:
    """Return orders to pause that a step has passed, or a step before it has obeyed, and that are
    not among its holds, though they last."""
    reached, before = (F.get(offsets, F.col("home")) for offsets in ("offsets", "old.offsets"))
    is_last = (
        F.col("is_at_home")
        & (F.col("at") < reached)
        & (F.col("next").isNull() | (F.col("next") >= reached))
    )
    lasts = is_last & (F.col("ends_ms") > F.col("now_ms"))
    none = F.create_map().cast("map<string, array<bigint>>")
    held, held_before = (F.coalesce(holds, none) for holds in ("holds", "old.holds"))
    was_held = F.map_contains_key(held_before, F.col("about"))
    # A clock that is behind that of a step which has ended a hold makes no hold again.
    is_new = (F.col("at") >= before) & (F.size(held_before) < HOLDS_MAX)
    has_none = ~F.map_contains_key(held, F.col("about")) & (F.size(held) < HOLDS_MAX)
    is_missing = ~F.col("is_base") & has_none & (was_held | is_new)
    text = F.format_string(
        "step %d has passed the order at %d to pause %s, which is not among its holds",
        *("step", "at", "about"),
    )
    return (
        steps.join(orders, lasts)
        .where(is_missing)
        .select(
            *("shard", "offset"),
            F.col("about").alias("topic"),
            F.col("at").alias("reason_of"),
            text.alias("reason"),
        )
    )


def _of_deliveries(
    named: DataFrame, history: History, logged: DataFrame, deliveries: DataFrame
) -> DataFrame:
    """Return what steps have delivered to targets that they held."""
    closed = named.where(F.get("hold", F.lit(1)) > F.col("now_ms")).select(
        F.col("number").alias("held_at"), "topic", F.col("now_ms").alias("fired_ms"), "step"
    )
    suspects = deliveries.join(F.broadcast(closed), ["topic", "fired_ms"]).select(
        *named_place(),
        *("topic", "held_at", "step"),
        F.col("partition").alias("found_partition"),
        F.col("offset").alias("found_offset"),
    )
    asked = logged.where("stored").select(*PLACE, "lane", "rank_ms", "due_ms")
    placed = covered_by(suspects.join(asked, PLACE), history)
    text = F.format_string("step %d delivered it while its target was paused", "step")
    return findings(
        placed.where(F.col("step_at") == F.col("held_at")),
        {Fault.FRONTIER_HELD: text},
        *("topic", "due_ms"),
        source=source_text(),
        partition=F.col("found_partition"),
        offset=F.col("found_offset"),
    )
