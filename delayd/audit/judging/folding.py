"""Small parts of the fold over the requests of an id (`ids.py`).

It shares nothing with `replication/`.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from delayd.audit.judging.columns import is_true
from delayd.audit.judging.held import MOVES
from delayd.audit.judging.request_counts import Kinds

LIVE_MAX: Final = 64
UNDONE: Final = "source string, last_ms bigint"
KILL: Final = "offset bigint, append_ms bigint, op string, offsets array<bigint>"

Let = Callable[[Column], Column]


def undone_after(undone: Column, row: Column, what: Column) -> Column:
    """Return the redrives whose source was refused under this id, and when they came again."""
    is_stored = what == "stored"
    is_known = F.exists(undone, lambda each: each["source"] == row["redrive"])
    others = F.filter(undone, lambda each: each["source"] != row["redrive"])
    redriven = F.struct(row["redrive"], F.when(is_stored, row["log_ms"]))
    return F.when(
        (row["op"] == "redrive") & ((what == "conflict") | (is_stored & is_known)),
        F.array_append(others, redriven.cast(f"struct<{UNDONE}>")),
    ).otherwise(undone)


def killed_last(live: Column, killed: Column, log_ms: Column, id_memory_ms: int) -> Column:
    """Return the last killed set after a cancel marker. What was due longer ago than ids are
    remembered is added to it, and does not displace it."""
    now = F.transform(
        live, lambda each: F.struct(each["due_ms"].alias("due_ms"), each["offset"].alias("offset"))
    )
    is_remembered = F.exists(live, lambda each: each["due_ms"] + id_memory_ms >= log_ms)
    return F.when(is_remembered, now).otherwise(last(F.concat(killed, now)))


def offsets(items: Column) -> Column:
    return F.transform(items, lambda each: each["offset"])


def latest(live: Column) -> Column:
    """Return at most LIVE_MAX live messages: without the first that is of no such series."""
    ends = F.transform(live, lambda each: ~is_true(each["goes_on"]))
    first = F.greatest(F.array_position(ends, True).cast("int"), F.lit(1))
    others = F.concat(F.slice(live, F.lit(1), first - 1), F.slice(live, first + 1, LIVE_MAX + 1))
    return F.when(F.size(live) > LIVE_MAX, others).otherwise(live)


def last(items: Column) -> Column:
    """Return at most LIVE_MAX, from the end."""
    return F.when(F.size(items) > LIVE_MAX, F.slice(items, -LIVE_MAX, LIVE_MAX)).otherwise(items)


def let(value: Column, body: Let) -> Column:
    """Return `body` of a value that is computed once, however often `body` uses it."""
    return F.get(F.transform(F.array(value), body), F.lit(0))


def empty(kind: str) -> Column:
    return F.array().cast(f"array<{kind}>")


def with_killers(rows: Column, state: Column, kinds: Kinds) -> Column:
    """Return the decisions, with the cancel marker that killed each: the first one after it, if it
    lists it."""

    def finish(decision: Column, row: Column) -> Column:
        kill = F.get(state["kills"], decision["marks"])
        if kinds.debounces:
            kill = _first_kill(state["kills"], decision["marks"], row["offset"])
        is_killed = decision["stored"] & F.array_contains(kill["offsets"], row["offset"])
        last_op, is_taken = kill["op"], F.lit(None).cast("boolean")
        if kinds.moves:
            last_op = _last_op(kill, is_killed, decision, row, state)
            is_taken = _taken(row, decision, state)
        # No step delivers what is held.
        by = F.when(decision["is_held"], row["continues"]).when(is_killed, kill["offset"])
        return F.struct(
            *(decision[name].alias(name) for name in ("stored", "answer", "is_refused")),
            by.alias("killed_by"),
            F.when(is_killed, kill["append_ms"])
            .when(decision["is_held"], row["append_ms"])
            .alias("killed_ms"),
            F.when(is_killed, last_op).when(decision["is_held"], "reschedule").alias("killed_op"),
            *(
                decision[name].alias(name)
                for name in ("killed", "killed_before", "repeats", "repeats_ms")
            ),
            decision["is_held"].alias("is_held"),
            decision["new_dues_ms"].alias("new_dues_ms"),
            is_taken.alias("is_taken"),
            *(decision[name].alias(name) for name in ("is_quiet", "own_rank_ms")),
        )

    return F.zip_with(state["decisions"], rows, finish)


def _last_op(
    kill: Column, is_killed: Column, decision: Column, row: Column, state: Column
) -> Column:
    """Return the operation of the last kill that lists a request. What a reschedule holds later
    ones may take over: the last one says what becomes of it."""
    is_taken = is_killed & (kill["op"].isin(*MOVES) | is_true(decision["is_held"]))
    takers = F.filter(
        F.when(is_taken, state["kills"]).otherwise(empty(f"struct<{KILL}>")),
        lambda each: F.array_contains(each["offsets"], row["offset"]),
    )
    return F.when(is_taken, F.element_at(takers, -1)["op"]).otherwise(kill["op"])


def _taken(row: Column, decision: Column, state: Column) -> Column:
    """Return whether a later kill takes over what a reschedule has killed; null of others."""

    def takes(each: Column) -> Column:
        overlaps = F.arrays_overlap(each["offsets"], decision["killed"])
        return (each["offset"] > row["offset"]) & overlaps

    return F.when(row["op"].isin(*MOVES), F.exists(state["kills"], takes))


def _first_kill(kills: Column, marks: Column, offset: Column) -> Column:
    """Return the first kill behind a request that is of all that is live, or lists the request."""
    first = F.get(kills, marks)

    def counts(kill: Column) -> Column:
        return (kill["op"] != "debounce") | F.array_contains(kill["offsets"], offset)

    # Later ones are looked at only where a debounce has left it live.
    others = F.filter(F.slice(kills, marks + 1, F.size(kills)), counts)
    return F.when(counts(first), first).when(first.isNotNull(), F.get(others, F.lit(0)))
