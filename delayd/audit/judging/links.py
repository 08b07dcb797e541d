"""The links between frontier records: what is wrong between two of them, and which to trust.

A record is compared with the one before it. If it does not fit, but fits the one before that, and
the one between did not fit either, then that one was wrong, and this one is forgiven. So a single
record that is changed, put in, doubled or left out is a single finding.

Sound is a record that neither is at fault nor stands before one that is: of two that contradict
each other either may be the wrong one. What the log says of a step is held only against sound ones
that follow their predecessor directly.

Each shard has a history of its own. What names a step in all of them is `step_number`.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.faults import Fault

COMPACTION_LAG_MS: Final = 24 * 60 * 60 * 1000
"""`min.compaction.lag.ms` of the frontier topic: younger records are all there."""

_FIELDS: Final = (
    *("offset", "append_ms", "term", "step", "owner"),
    *("now_ms", "cursor", "lanes", "offsets", "own_writes", "broken"),
)

MISFITS: Final = (
    *(Fault.FRONTIER_TERM, Fault.FRONTIER_BACK, Fault.FRONTIER_AHEAD, Fault.FRONTIER_STEP),
)
_TERM, _BACK, _AHEAD, _STEP = (fault.slug for fault in MISFITS)


def step_number(shards: int) -> Column:
    """Return the number of a frontier record among those of so many shards; of one shard its
    offset. They grow within a shard."""
    offset = F.col("offset")
    return offset if shards == 1 else offset * shards + F.col("shard")


def links_of(frontiers: DataFrame, bounds: Bounds) -> DataFrame:
    """Return frontier records without flaw. Of each: `fault`, the slug of what is wrong with it,
    and `reason`; `is_sound`; `is_base`, must its difference be left alone; `old`, the sound record
    before it; `usual`, the highest usual cursor of sound records so far; `is_last`, is it the last
    sound one of its shard; and its `number`. Computed at once."""
    history = Window.partitionBy("shard").orderBy("offset")
    so_far = history.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = history.rowsBetween(Window.unboundedPreceding, -1)
    is_broken = F.col("flaw").isNotNull()
    records = (
        frontiers.where(F.col("shard") < bounds.shards)
        .withColumn("broken", F.count(F.when(is_broken, 1)).over(so_far))
        .where(~is_broken)
        .withColumn("self", F.struct(*_FIELDS))
        .withColumn("prev", F.lag("self", 1).over(history))
        .withColumn("prev2", F.lag("self", 2).over(history))
        .withColumn("misfit", _misfit(F.col("prev"), F.col("self"), bounds, 1))
        .withColumn("misfit_before", F.lag("misfit").over(history))
        .withColumn("misfit_skipping", _misfit(F.col("prev2"), F.col("self"), bounds, 2))
    )
    is_forgiven = (
        F.col("misfit_before").isNotNull()
        & F.col("prev2").isNotNull()
        & F.col("misfit_skipping").isNull()
    )
    judged = (
        records.withColumn("fault", F.when(~is_forgiven, F.col("misfit")))
        .withColumn("reason", _reason(F.col("fault"), F.col("prev"), F.col("self")))
        .withColumn("is_sound", F.col("fault").isNull() & F.lead("fault").over(history).isNull())
        .withColumn("usual", F.max(F.when(F.col("is_sound"), F.col("cursor"))).over(so_far))
    )
    sound = F.when(
        F.col("is_sound"),
        F.struct(
            *("offset", "term", "step", "cursor", "lanes", "offsets", "holds", "usual", "quotas")
        ),
    )
    everywhere = history.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    last = F.max(F.when(F.col("is_sound"), F.col("offset"))).over(everywhere)
    judged = judged.withColumn("is_last", F.col("offset") == last)
    linked = judged.withColumn("old", F.last(sound, ignorenulls=True).over(before)).withColumn(
        "highest", F.max(F.col("old.step")).over(so_far)
    )
    follows = (
        (F.col("old.offset") == F.col("prev.offset"))
        & (F.col("step") == F.col("old.step") + 1)
        # Where a history was rewound, what is done again is not judged again.
        & (F.col("step") > F.col("highest"))
    )
    return linked.select(
        *("shard", "offset", step_number(bounds.shards).alias("number")),
        *("append_ms", "term", "step", "now_ms", "cursor", "lanes", "offsets"),
        *("delivered", "dead", "digest", "fault", "reason", "is_sound", "usual", "old"),
        *("holds", "quotas", "is_last"),
        (~F.coalesce(follows, F.lit(False))).alias("is_base"),
    ).localCheckpoint()


def cursor_in(record: Column, lane: Column) -> Column:
    """Return K of a lane (as text) in a frontier record: an array that compares as a rank."""
    return F.coalesce(F.try_element_at(record["lanes"], lane), record["cursor"])


def cursor_times_of(record: Column) -> Column:
    """Return the due times, ms, of all cursors of a frontier record."""
    cursors = F.concat(F.array(record["cursor"]), F.map_values(record["lanes"]))
    return F.transform(cursors, lambda cursor: F.get(cursor, F.lit(0)))


def _misfit(old: Column, new: Column, bounds: Bounds, steps_max: int) -> Column:
    """Return what is wrong if `new` follows `old`, `steps_max` steps after it at most; null if
    nothing."""
    steps = new["step"] - old["step"]
    explained = F.lit(steps_max) + (new["broken"] - old["broken"])
    is_compacted = old["append_ms"] < bounds.newest_append_ms - COMPACTION_LAG_MS
    changed_hands = (new["term"] == old["term"]) & (new["owner"] != old["owner"])
    is_in_step = (steps >= 1) & ((steps <= explained) | is_compacted)
    return (
        F.when(old.isNull(), F.lit(None))
        .when((new["term"] < old["term"]) | changed_hands, _TERM)
        .when(~_moves_forward(old, new, bounds.settings.lanes), _BACK)
        # Of what lies between two records nobody knows how far its clock was.
        .when((steps == 1) & _runs_ahead(old, new, bounds.settings.lanes), _AHEAD)
        .when(~is_in_step, _STEP)
    )


def _named(old: Column, new: Column) -> Column:
    """Return the lanes that one of two records names; others stand at the usual cursor in both."""
    return F.array_union(F.map_keys(old["lanes"]), F.map_keys(new["lanes"]))


def _runs_ahead(old: Column, new: Column, lanes: int) -> Column:
    """Return whether a step has moved a cursor beyond what was due by its `now`. It may stand there
    already: the master before may have had a clock that is ahead."""
    named = _named(old, new)
    none = F.lit(0).cast("long")
    # What is due by now is below it.
    furthest = F.array(new["now_ms"] + 1, none, none)

    def is_ahead(cursor: Column, before: Column) -> Column:
        return (cursor > furthest) & (cursor > before)

    return F.exists(named, lambda lane: is_ahead(cursor_in(new, lane), cursor_in(old, lane))) | (
        (F.size(named) < lanes) & is_ahead(new["cursor"], old["cursor"])
    )


def _moves_forward(old: Column, new: Column, lanes: int) -> Column:
    named = _named(old, new)
    return (
        F.forall(named, lambda lane: cursor_in(old, lane) <= cursor_in(new, lane))
        # The usual cursor is that of whichever lanes are not named in either.
        & ((F.size(named) == lanes) | (old["cursor"] <= new["cursor"]))
        & ~_fell(old, new, "offsets")
        & ~_fell(old, new, "own_writes")
    )


def _fell(old: Column, new: Column, name: str) -> Column:
    """Return whether one of these numbers is lower than it was."""
    pairs = F.zip_with(old[name], new[name], lambda one, other: one > other)
    return F.exists(pairs, lambda is_lower: is_lower)


def _reason(fault: Column, old: Column, new: Column) -> Column:
    step = new["step"]
    lower = (
        F.when(_fell(old, new, "offsets"), "an O")
        .when(_fell(old, new, "own_writes"), "an R")
        .otherwise("a cursor")
    )
    terms = (new["term"], new["owner"], old["term"], old["owner"])
    ahead = F.format_string("step %d moves a cursor beyond its own time, %d", step, new["now_ms"])
    back = F.format_string("step %d has %s below the record at %d", step, lower, old["offset"])
    return (
        F.when(
            fault == _TERM,
            F.format_string("step %d has term %d of %s behind term %d of %s", step, *terms),
        )
        .when(fault == _BACK, back)
        .when(fault == _AHEAD, ahead)
        .when(fault == _STEP, F.format_string("step %d follows step %d", step, old["step"]))
    )
