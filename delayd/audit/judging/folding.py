"""Small parts of the fold over the requests of an id (`ids.py`).

It shares nothing with `replication/`.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from delayd.audit.judging.columns import is_true

LIVE_MAX: Final = 64
UNDONE: Final = "source string, last_ms bigint"

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
