"""How many requests were taken for targets with a rate: what steps say, against the log.

A step counts what was appended in the seconds before it, and in the next one, and what its master
has ingested: all that the step has passed, and nothing that stands behind the gates that it writes.
What a master took in before it was started is in its memory no more, so too small a count is
believed until a term, or an order, is a window old. Source: docs/design/audit.md, "Quotas".
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import is_true, quota_field
from delayd.audit.judging.gates import whole_gates
from replication.quotas import RATE_AHEAD_S, RATE_WINDOW_S, SECOND_MS

STEPS_MAX: Final = 500
"""Steps that are judged, of all targets: the last ones, of each second and with each gate."""
_SCHEMA: Final = (
    "of_shard int, about string, at_ms bigint, counted bigint, said bigint, gates array<bigint>"
)


def counted_seconds(now_ms: Column) -> Column:
    """Return the seconds since 1970 in whose append times a step at `now_ms` counts requests, as an
    array: `replication.quotas.rate_seconds` of a column."""
    since = F.floor(now_ms / SECOND_MS) - (RATE_WINDOW_S - 1)
    return F.sequence(since, since + (RATE_WINDOW_S - 1 + RATE_AHEAD_S))


def wrong_rates(
    steps: DataFrame, logged: DataFrame, adding: Sequence[str], bounds: Bounds
) -> DataFrame:
    """Return the steps whose count of requests is not what was taken: offset, topic, why, text.
    `adding`: the requests that count."""
    wanted = _judged_steps(steps, bounds)
    seconds = counted_seconds(F.col("now_ms"))
    exploded = wanted.select("*", F.explode(seconds).alias("second"))
    asked = logged.where(F.col("op").isin(*adding) & F.col("topic").isNotNull()).select(
        F.col("partition").alias("m_partition"),
        F.col("offset").alias("m_offset"),
        F.col("topic").alias("m_topic"),
        F.floor(F.col("append_ms") / SECOND_MS).alias("m_second"),
    )
    is_there = (F.col("m_topic") == F.col("topic")) & (F.col("m_second") == F.col("second"))
    joined = F.broadcast(exploded).join(asked, is_there, "right").where("topic is not null")
    partition = F.col("m_partition").cast("int")
    is_passed = F.col("m_offset") < F.get("offsets", partition)
    # How much of other shards a master had taken in is not in the log.
    gate = F.get("gates", partition)
    is_before = gate.isNull() | (F.col("m_offset") < gate)
    of_step = ["shard", "offset", "topic"]
    counted = joined.groupBy(*of_step).agg(
        F.count_if(is_passed).alias("least"), F.count_if(is_before).alias("most")
    )
    judged = wanted.join(counted, of_step, "left").fillna(0, ["least", "most"])
    is_trimmed = F.lit(any(bounds.buffer_starts))
    since_ms = F.get(seconds, F.lit(0)) * SECOND_MS
    is_known = (since_ms - SECOND_MS >= F.col("known_ms")) & ~F.col("stands")
    why = F.when(is_known & (F.col("taken") < F.col("least")), "fewer").when(
        F.col("gates").isNotNull() & ~is_trimmed & (F.col("taken") > F.col("most")), "more"
    )
    text = F.format_string(
        "step %d has counted %d requests for %s in %d s, %s than the log has: %d to %d",
        *("step", "taken", "topic", F.lit(RATE_WINDOW_S), why, "least", "most"),
    )
    found = F.concat(F.lit("taken "), why).alias("why"), text.alias("reason")
    return judged.where(why.isNotNull()).select(*of_step, *found)


def _judged_steps(steps: DataFrame, bounds: Bounds) -> DataFrame:
    """Return the steps to judge by target, with what they say, and the offsets of their gates."""
    # Steps of one time may write the same twice: an order changes what a gate names.
    whole: dict[tuple[int, str, int, int, int], list[int | None]] = {}
    for g, places in whole_gates(bounds):
        if g.rate:
            whole.setdefault((g.shard, g.topic, g.at_ms, g.pending, g.taken), places)
    rows = [(*gate, places) for gate, places in whole.items()]
    gates = steps.sparkSession.createDataFrame(rows, _SCHEMA)
    stands = [F.col(name).eqNullSafe(F.col(f"old.{name}")) for name in ("offsets", "cursor")]
    named = steps.select(
        *("shard", "offset", "step", "term", "now_ms", "offsets", "old", "may_gate"),
        is_true(stands[0] & stands[1]).alias("stands"),
        F.explode("quotas").alias("topic", "quota"),
    ).where(quota_field("rate") > 0)
    told = named.withColumns({"taken": quota_field("taken"), "order": quota_field("offset")})
    # The first record of a term has its predecessor's clock, and a step that obeys an order is
    # committed before anything is counted for that.
    last_order = quota_field("offset", F.try_element_at(F.col("old.quotas"), F.col("topic")))
    goes_on = is_true((F.col("old.term") == F.col("term")) & (last_order == F.col("order")))
    of_order = Window.partitionBy("shard", "topic", "term", "order")
    of_second = Window.partitionBy("shard", "topic", F.floor(F.col("now_ms") / SECOND_MS))
    dated = told.withColumns(
        {
            "known_ms": F.min(F.when(goes_on, F.col("now_ms"))).over(of_order),
            "last": F.max(F.when(~F.col("stands"), F.col("offset"))).over(of_second),
        }
    )
    is_gate = (
        (F.col("about") == F.col("topic"))
        & (F.col("at_ms") == F.col("now_ms"))
        & (F.col("of_shard") == F.col("shard"))
        & (F.col("counted") == quota_field("pending"))
        & (F.col("said") == F.col("taken"))
        & F.col("may_gate")
    )
    with_gates = dated.join(F.broadcast(gates), is_gate, "left")
    chosen = with_gates.where((F.col("offset") == F.col("last")) | F.col("gates").isNotNull())
    newest = chosen.orderBy(F.desc("now_ms"), F.desc("offset")).limit(STEPS_MAX)
    unneeded = ("quota", "old", "about", "at_ms", "last", "of_shard", "counted", "said", "may_gate")
    return newest.drop(*unneeded).localCheckpoint()
