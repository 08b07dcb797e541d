"""Which step covered a message: the first whose frontier has its rank below K and its offset
below O.

K and O only grow, so that is the later of two steps: the first whose K is above the rank, and the
first whose O is above the offset. Each is an interval to be found (search.py). Most messages are
found by K alone: if their offset is below O there too, the step is known; the others are *late*,
which is rare, and their step is the one that moved O over them.

Most lanes share a cursor in most steps. So one tree holds the intervals of the usual cursor, as far
as it only grows, and a second one those steps in which a lane stood elsewhere, or came from there.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.links import cursor_in
from delayd.audit.judging.search import Tree, find, point, tree_of


@dataclass(frozen=True, slots=True)
class History:
    """The sound steps, ready to be searched. A step is named by the offset of its record."""

    usual: Tree
    lanes: Tree
    offsets: Tree | None
    last_offsets: tuple[int, ...]
    """O of the newest; none without any."""


def history_of(links: DataFrame, bounds: Bounds, *, late_too: bool = True) -> History:
    """Computes the trees. Without `late_too` the steps of late messages are not to be found."""
    by_offset = Window.partitionBy("shard").orderBy("offset")
    so_far = by_offset.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sound = (
        links.where("is_sound")
        .withColumn("usual", F.max("cursor").over(so_far))
        .withColumn("old", F.lag(F.struct("cursor", "lanes", "offsets", "usual")).over(by_offset))
        .withColumn("at", F.col("offset"))
    )
    newest = sound.orderBy(F.desc("offset")).select("offsets").first()
    return History(
        tree_of(_usual(sound), ("at", "is_base", "offsets")),
        tree_of(_lanes(sound, bounds.settings.lanes), ("at", "is_base", "offsets")),
        tree_of(_offsets(sound), ("at", "end")) if late_too else None,
        tuple(newest["offsets"]) if newest else (),
    )


def covered_by(messages: DataFrame, history: History) -> DataFrame:
    """Messages (with lane, rank_ms, partition, offset) and of each:

    step_at     offset of the frontier record that covered it first; null if none did. Of a late
                one too, unless the history was made without
    step_end    O of its partition in that record
    is_late     had K passed it before O did? null if that cannot be told: no history reaches it, or
                only the record that it begins with
    """
    partition = F.col("partition").cast("int")
    rank = (F.col("rank_ms"), F.col("partition").cast("long"), F.col("offset"))
    found = find(messages, history.usual, F.lit(0), rank, "_k_")
    if not history.lanes.is_empty:
        found = find(found, history.lanes, F.col("lane"), rank, "_l_")
        for name in history.lanes.payload:
            found = found.withColumn(f"_k_{name}", F.coalesce(f"_l_{name}", f"_k_{name}"))
    found = found.withColumn("_k_end", F.get("_k_offsets", partition)).withColumn(
        "_is_late", F.col("offset") >= F.col("_k_end")
    )
    ends = F.array(*(F.lit(end).cast("long") for end in history.last_offsets))
    is_late = (
        F.when(F.col("_k_at").isNull(), F.when(F.col("offset") < F.get(ends, partition), False))
        .when(F.col("_is_late"), True)
        .when(~F.col("_k_is_base"), False)
    )
    late_at = late_end = F.lit(None).cast("long")
    if history.offsets is not None:
        root = F.when(F.col("_is_late"), F.col("partition"))
        found = find(found, history.offsets, root, (F.col("offset"), F.lit(0), F.lit(0)), "_o_")
        late_at, late_end = F.col("_o_at"), F.col("_o_end")
    return found.select(
        *messages.columns,
        F.when(F.col("_is_late"), late_at).otherwise(F.col("_k_at")).alias("step_at"),
        F.when(F.col("_is_late"), late_end).otherwise(F.col("_k_end")).alias("step_end"),
        is_late.alias("is_late"),
    )


def _usual(sound: DataFrame) -> DataFrame:
    return sound.select(
        F.lit(0).alias("root"),
        F.col("offset").alias("number"),
        F.coalesce(_rank(F.col("old.usual")), _before_all()).alias("lo"),
        _rank(F.col("usual")).alias("hi"),
        *("at", "is_base", "offsets"),
    ).where("lo < hi")


def _lanes(sound: DataFrame, lanes: int) -> DataFrame:
    """The intervals of lanes in steps where they stood elsewhere than usual, or came from there."""
    record, old = F.struct("cursor", "lanes"), F.col("old")
    stand_apart = (F.col("cursor") != F.col("usual")) | (old["cursor"] != old["usual"])
    all_lanes = F.transform(
        F.sequence(F.lit(0), F.lit(lanes - 1)), lambda lane: lane.cast("string")
    )
    named = F.array_union(
        F.map_keys("lanes"), F.coalesce(F.map_keys(old["lanes"]), F.array().cast("array<string>"))
    )
    moves = (
        sound.select(
            *("at", "is_base", "offsets", "cursor", "lanes", "usual", "old"),
            F.explode(F.when(stand_apart, all_lanes).otherwise(named)).alias("lane"),
        )
        .select(
            *("at", "is_base", "offsets"),
            F.col("lane").cast("int").alias("root"),
            F.when(old.isNotNull(), cursor_in(old, F.col("lane"))).alias("from"),
            cursor_in(record, F.col("lane")).alias("to"),
            F.col("usual"),
            F.col("old.usual").alias("usual_before"),
        )
        .where((F.col("to") != F.col("usual")) | (F.col("from") != F.col("usual_before")))
        .select(
            *("at", "is_base", "offsets", "root"),
            F.col("at").alias("number"),
            F.coalesce(_rank(F.col("from")), _before_all()).alias("lo"),
            _rank(F.col("to")).alias("hi"),
        )
    )
    return _without_overlap(moves)


def _offsets(sound: DataFrame) -> DataFrame:
    """The intervals of O, by partition."""

    def move(end: Column, partition: Column) -> Column:
        start = F.coalesce(F.get(F.col("old.offsets"), partition), F.lit(-1).cast("long"))
        return F.struct(partition.alias("root"), start.alias("start"), end.alias("end"))

    moves = (
        sound.select("at", F.explode(F.transform("offsets", move)).alias("move"))
        .select("at", "move.*")
        .where("start < end")
    )
    zero = F.lit(0)
    return _without_overlap(
        moves.select(
            *("at", "root", "end"),
            F.col("at").alias("number"),
            point(F.col("start"), zero, zero).alias("lo"),
            point(F.col("end"), zero, zero).alias("hi"),
        )
    )


def _without_overlap(intervals: DataFrame) -> DataFrame:
    """Where a history was rewound, the first to cover something keeps it."""
    before = Window.partitionBy("root").orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
    highest = F.max("hi").over(before)
    return intervals.withColumn("lo", F.greatest("lo", highest)).where("lo < hi")


def _before_all() -> Column:
    return point(F.lit(-1), F.lit(0), F.lit(0))


def _rank(cursor: Column) -> Column:
    """A cursor as a point; null for null."""
    return F.when(cursor.isNotNull(), point(*(F.get(cursor, F.lit(i)) for i in range(3))))
