"""What a reschedule has killed, while the log does not say what came of it: parts of the fold over
the requests of an id (`ids.py`).

It shares nothing with `replication/` but the cluster's settings.
Source: docs/design/rescheduling.md.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from delayd.audit.judging.columns import is_true
from replication.settings import Settings

LIVE: Final = (
    "due_ms bigint, offset bigint, digest bigint, is_continued boolean, origin bigint,"
    " goes_on boolean, is_local boolean, since_ms bigint, waits boolean"
)
"""Live messages."""
HELD: Final = f"{LIVE}, new_ms bigint"
"""What a reschedule has killed, and when it is to be due."""
MOVES: Final = ("reschedule", "fire")
UNMOVED: Final = ("unmovable", "too-far")
"""Answers to those that change nothing: dead letters, as rejects are."""


def counting(held: Column, row: Column, settings: Settings) -> Column:
    """Return what takes the id for a request: what was due long ago does not."""
    return F.filter(held, lambda it: it["due_ms"] + settings.id_memory_ms >= row["log_ms"])


def move(state: Column, row: Column, pending: Column, settings: Settings) -> Column:
    """Return what becomes of a reschedule: `move`, `unmovable` or `too-far`."""
    held, live = counting(state["held"], row, settings), state["live"]

    def goes_on(it: Column) -> Column:
        return is_true(it["goes_on"]) & ~is_true(it["is_local"])

    is_series = F.exists(held, goes_on) | F.exists(live, goes_on)
    # It has no due time to count from.
    is_local = row["by_ms"].isNotNull() & F.exists(live, lambda it: is_true(it["is_local"]))
    latest_ms = row["append_ms"] + settings.max_delay_ms
    is_far = F.exists(pending, lambda it: it["due_ms"] + row["by_ms"] > latest_ms) | F.exists(
        held, lambda it: it["new_ms"] + row["by_ms"] > latest_ms
    )
    return (
        F.when((row["op"] == "reschedule") & (is_series | is_local), "unmovable")
        .when(row["by_ms"].isNotNull() & is_far, "too-far")
        .otherwise("move")
    )


def moved(state: Column, row: Column, max_delay_ms: int) -> Column:
    """Return what a reschedule kills, each with the time at which it is to be due."""
    latest_ms = row["append_ms"] + max_delay_ms

    def new_ms(old_ms: Column) -> Column:
        by_ms = F.greatest(F.least(old_ms + row["by_ms"], latest_ms), row["append_ms"])
        return F.when(row["by_ms"].isNull(), row["due_ms"]).otherwise(by_ms)

    held = F.transform(state["held"], lambda it: it.withField("new_ms", new_ms(it["new_ms"])))
    live = F.transform(state["live"], lambda it: it.withField("new_ms", new_ms(it["due_ms"])))
    kind = f"array<struct<{HELD}>>"
    return F.concat(held.cast(kind), live.cast(kind))


def held_after(held: Column, row: Column, message: Column, is_held: Column) -> Column:
    """Return what is held after a continuation: without what that continues, or with the
    continuation in its place."""
    is_continue = row["op"] == "continue"
    found = F.filter(held, lambda each: each["offset"] == row["continues"])
    others = F.filter(held, lambda each: each["offset"] != row["continues"])
    first = F.get(found, F.lit(0))
    again = message.withField("new_ms", first["new_ms"]).withField("digest", first["digest"])
    again = again.withField("origin", row["origin"]).cast(f"struct<{HELD}>")
    return (
        F.when(is_held, F.array_append(others, again))
        .when(is_continue & (F.size(found) > 0), others)
        .otherwise(held)
    )
