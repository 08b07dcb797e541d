"""Debounces: parts of the fold over the requests of an id (`ids.py`), and what came out too late.

A debounce kills what is pending, and leaves what is due to go out. Its own due time follows from
the first request of its run, so it is known only here.

It shares nothing with `replication/`.
Source: docs/design/debounce.md.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.judging.columns import is_true, shard_of
from delayd.audit.judging.held import HELD, counting
from delayd.audit.judging.request_counts import Kinds
from delayd.audit.judging.texts import delay_ms_of
from replication.settings import Settings

_WAIT_MS_MAX: Final = 1 << 60
"""Longer than any run."""


def max_wait_ms() -> Column:
    """Return the longest wait that a debounce names."""
    wait_ms = delay_ms_of(F.col("control.max_wait"))
    return F.least(F.coalesce(wait_ms, F.lit(_WAIT_MS_MAX)), F.lit(_WAIT_MS_MAX))


def gives_way(state: Column, row: Column, settings: Settings, kinds: Kinds) -> Column:
    """Return what a debounce kills: what a reschedule holds, unless all of that is due, and what is
    pending and does not wait for its turn only. What was moved is debounced no more."""
    live = F.filter(state["live"], lambda it: _is_pending(it, row) & ~is_true(it["waits"]))
    if not kinds.moves:
        return live
    held = F.when(
        takes_held(state, row, settings), counting(state["held"], row, settings)
    ).otherwise(_empty(HELD))
    taken = F.transform(
        held,
        lambda each: each.dropFields("new_ms").withField("since_ms", F.lit(None).cast("bigint")),
    )
    return F.concat(taken, live)


def takes_held(state: Column, row: Column, settings: Settings) -> Column:
    """Return whether a debounce takes over what a reschedule holds."""
    held = counting(state["held"], row, settings)
    return F.exists(held, lambda it: it["new_ms"] > row["log_ms"])


def left_live(state: Column, row: Column) -> Column:
    """Return what stays live: what is due, and goes out."""
    return F.filter(state["live"], lambda it: ~_is_pending(it, row) | is_true(it["waits"]))


def run_ms(state: Column, row: Column) -> Column:
    """Return the append time of the first request of the run that a debounce joins or begins."""
    runs = F.filter(state["live"], lambda it: it["since_ms"].isNotNull() & _is_pending(it, row))
    first_ms = F.array_min(F.transform(runs, lambda it: it["since_ms"]))
    return F.least(row["append_ms"], first_ms)


def due_ms(state: Column, row: Column) -> Column:
    """Return when a debounce is due; `due_ms` of its row is as of itself."""
    latest_ms = run_ms(state, row) + row["max_wait_ms"]
    return F.greatest(F.least(row["due_ms"], latest_ms), row["append_ms"])


def is_quiet(killed: Column) -> Column:
    """Return whether a debounce kills nothing but debounces, of which nobody is told."""
    return F.forall(killed, lambda each: each["since_ms"].isNotNull())


def with_superseded(deliveries: DataFrame, frontiers: DataFrame, shards: int) -> DataFrame:
    """Return deliveries with `is_superseded`: their step had passed the debounce that took their
    place. Nobody is told of that, so the frontier must tell."""
    suspects = deliveries.where("killed_op = 'debounce'").select(
        *("source_partition", "source_offset", "killed_by", "fired_ms"),
        shard_of(shards, "source_partition").alias("shard"),
    )
    steps = frontiers.where(F.col("flaw").isNull()).select(
        *("shard", F.col("now_ms").alias("fired_ms"), "offsets")
    )
    is_passed = F.get("offsets", F.col("source_partition")) > F.col("killed_by")
    found = (
        suspects.distinct()
        .join(steps, ["shard", "fired_ms"])
        .groupBy("source_partition", "source_offset", "fired_ms")
        .agg(F.bool_and(is_passed).alias("is_superseded"))
    )
    return deliveries.join(found, ["source_partition", "source_offset", "fired_ms"], "left")


def waits(row: Column) -> Column:
    """Return whether a record is of a message that was due, and was only deferred."""
    is_single = row["occurrence"].isNull() & row["clock"].isNull() & row["moved_by"].isNull()
    return (row["op"] == "continue") & (row["attempt"] == 0) & is_single


def _is_pending(it: Column, row: Column) -> Column:
    return (it["due_ms"] > row["log_ms"]) | is_true(it["goes_on"])


def _empty(kind: str) -> Column:
    return F.array().cast(f"array<struct<{kind}>>")
