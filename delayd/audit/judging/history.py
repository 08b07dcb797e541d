"""The step that covered a message: the first whose frontier has its rank below K and its offset
below O.

K and O only grow, so that is the later of two steps: the first whose K is above the rank, and the
first whose O is above the offset. Each is an interval to be found (search.py). Most messages are
found by K alone: if their offset is below O there too, the step is known; the others are *late*,
which is rare, and their step is the one that moved O over them.

Most lanes share a cursor in most steps. So one tree holds the intervals of the usual cursor, as far
as it only grows, and a second one those steps in which a lane stood elsewhere, or came from there.
Each shard has its own.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import shard_of
from delayd.audit.judging.links import cursor_in
from delayd.audit.judging.search import Trees, find, point, trees_of
from replication.settings import SHARDS_MAX

_LANES: Final = SHARDS_MAX
"""Root of lane 0 of shard 0; the others follow, shard by shard. Those of the usual cursors are the
numbers of the shards."""
_NONE: Final = -1
"""In place of a step: none has come to it."""
_OFFSETS: Final = 1 << 20
"""Root of partition 0; the others follow."""


@dataclass(frozen=True, slots=True)
class History:
    """The sound steps, ready to be searched. A step is named by its number (`links.py`)."""

    trees: Trees
    shards: int
    lanes: range
    """Roots of lanes, of all shards."""
    partitions: range
    """Roots of partitions."""

    @property
    def has_lanes(self) -> bool:
        """Return whether any lane ever stood elsewhere than most."""
        return self.trees.count(self.lanes) > 0


def history_of(links: DataFrame, bounds: Bounds) -> History:
    """Computes the trees from links_of."""
    settings, shards = bounds.settings, bounds.shards
    sound = links.where("is_sound").withColumn("at", F.col("number"))
    none = F.lit(None)
    cursors = _usual(sound).unionByName(_lanes(sound, settings.lanes)).withColumn("end", none)
    intervals = cursors.unionByName(_offsets(sound, shards), allowMissingColumns=True)
    return History(
        trees_of(intervals, ("at", "is_base", "offsets", "end")),
        shards,
        range(_LANES, _LANES + shards * settings.lanes),
        range(_OFFSETS, _OFFSETS + settings.partitions),
    )


def covered_by(messages: DataFrame, history: History, *, late_too: bool = True) -> DataFrame:
    """Return messages (with lane, rank_ms, partition, offset) and of each:

    step_at     number of the frontier record that covered it first; null if none did. Of a late
                one only if they are asked for too
    step_end    O of its partition in that record
    is_late     had K passed it before O did? null if that cannot be told: no history reaches it, or
                only the record that it begins with
    """
    trees = history.trees
    partition = F.col("partition").cast("int")
    rank = (F.col("rank_ms"), F.col("partition").cast("long"), F.col("offset"))
    shard = shard_of(history.shards)
    found = find(messages, trees, range(history.shards), shard, rank, "_k_")
    if history.has_lanes:
        lanes = len(history.lanes) // history.shards
        lane = F.col("lane") + shard * lanes + _LANES
        found = find(found, trees, history.lanes, lane, rank, "_l_")
        is_apart = F.col("_l_at").isNotNull()
        for name in trees.payload:
            known = F.when(is_apart, F.col(f"_l_{name}")).otherwise(F.col(f"_k_{name}"))
            found = found.withColumn(f"_k_{name}", known)
        found = found.withColumn("_k_at", F.when(F.col("_k_at") != _NONE, F.col("_k_at")))
    found = found.withColumn("_k_end", F.get("_k_offsets", partition)).withColumn(
        "_is_late", F.col("offset") >= F.col("_k_end")
    )
    reached = F.array(*(F.lit(trees.ends.get(root, 0)).cast("long") for root in history.partitions))
    is_late = (
        F.when(F.col("_k_at").isNull(), F.when(F.col("offset") < F.get(reached, partition), False))
        .when(F.col("_is_late"), True)
        .when(~F.col("_k_is_base"), False)
    )
    late_at = late_end = F.lit(None).cast("long")
    if late_too:
        root = F.when(F.col("_is_late"), partition + _OFFSETS)
        place = (F.col("offset"), F.lit(0), F.lit(0))
        found = find(found, trees, history.partitions, root, place, "_o_")
        late_at, late_end = F.col("_o_at"), F.col("_o_end")
    return found.select(
        *messages.columns,
        F.when(F.col("_is_late"), late_at).otherwise(F.col("_k_at")).alias("step_at"),
        F.when(F.col("_is_late"), late_end).otherwise(F.col("_k_end")).alias("step_end"),
        is_late.alias("is_late"),
    )


def _usual(sound: DataFrame) -> DataFrame:
    return sound.select(
        F.col("shard").alias("root"),
        F.col("at").alias("number"),
        *_between(F.col("old.usual"), F.col("usual")),
        *("at", "is_base", "offsets"),
    )


def _lanes(sound: DataFrame, lanes: int) -> DataFrame:
    """Return the intervals of lanes in steps where they stood elsewhere than usual, or came from
    there; and, of lanes that stand behind the usual cursor at the end, those that no step has come
    to."""
    record, old = F.struct("cursor", "lanes"), F.col("old")
    stand_apart = (F.col("cursor") != F.col("usual")) | (old["cursor"] != old["usual"])
    all_lanes = F.transform(
        F.sequence(F.lit(0), F.lit(lanes - 1)), lambda lane: lane.cast("string")
    )
    named = F.array_union(
        F.map_keys("lanes"), F.coalesce(F.map_keys(old["lanes"]), F.array().cast("array<string>"))
    )
    lane = F.col("lane")
    stood = F.when(old.isNotNull(), cursor_in(old, lane))
    moves = sound.withColumn("lane", F.explode(F.when(stand_apart, all_lanes).otherwise(named)))
    at, stands = F.col("at"), F.col("stands")
    step = F.struct(
        at.alias("number"), *_between(F.col("stood"), stands), "at", "is_base", "offsets"
    )
    nothing = F.lit(None).cast("array<bigint>")
    left = F.struct(
        (at + 1).alias("number"),
        *_between(stands, F.col("usual")),
        *(F.lit(_NONE).cast("long").alias("at"), F.lit(True).alias("is_base")),
        nothing.alias("offsets"),
    )
    is_behind = F.col("is_last") & (stands < F.col("usual"))
    return (
        moves.withColumn("stood", stood)
        .withColumn("stands", cursor_in(record, lane))
        .where((F.col("stands") != F.col("usual")) | (F.col("stood") != old["usual"]))
        .select(
            (lane.cast("int") + F.col("shard") * lanes + _LANES).alias("root"),
            F.explode(F.array_compact(F.array(step, F.when(is_behind, left)))).alias("interval"),
        )
        .select("root", "interval.*")
    )


def _offsets(sound: DataFrame, shards: int) -> DataFrame:
    """Return the intervals of O, by partition. In those of other shards a record has none."""

    def move(end: Column, partition: Column) -> Column:
        start = F.coalesce(F.get(F.col("old.offsets"), partition), F.lit(-1).cast("long"))
        return F.struct(partition.alias("partition"), start.alias("start"), end.alias("end"))

    zero = F.lit(0)
    moves = F.explode(F.transform("offsets", move)).alias("move")
    return (
        sound.select("shard", "at", "is_base", moves)
        .select("shard", "at", "is_base", "move.*")
        .where((F.col("start") < F.col("end")) & (shard_of(shards) == F.col("shard")))
        .select(
            (F.col("partition") + _OFFSETS).alias("root"),
            F.col("at").alias("number"),
            point(F.col("start"), zero, zero).alias("lo"),
            point(F.col("end"), zero, zero).alias("hi"),
            *("at", "is_base", "end"),
        )
    )


def _between(old: Column, new: Column) -> tuple[Column, Column]:
    """Return the interval between two cursors (old null: from the beginning), as `lo` and `hi`."""
    first = point(F.lit(-1), F.lit(0), F.lit(0))
    return (
        F.when(old.isNull(), first).otherwise(_point_of(old)).alias("lo"),
        _point_of(new).alias("hi"),
    )


def _point_of(cursor: Column) -> Column:
    return point(*(F.get(cursor, F.lit(part)) for part in range(3)))
