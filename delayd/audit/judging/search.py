"""Which interval holds a point: a search tree made of joins.

A history of 200,000 steps cuts the ranks into as many intervals, and 10 M messages must be told
theirs. Intervals are uneven (one millisecond may take a thousand steps, an idle hour none), so
buckets of time would be too full or too many. Here each FANOUT neighbours have a node above them,
and so on up to one root: a point goes down from its root by one broadcast join for each level, and
is compared with FANOUT ranges in each. The points are never shuffled.

A point is three numbers, compared from the left: a rank, or an offset and two zeros.

    intervals: root (which tree), number (their order in it), lo and hi (points, [lo, hi)), payload
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

_FANOUT_BITS: Final = 4
FANOUT: Final = 1 << _FANOUT_BITS
BROADCAST_ROWS_MAX: Final = 2_000_000
"""More intervals are not sent to everyone: then Spark shuffles the points, once."""

_TREE_BITS: Final = 40
"""Of a node's key, for its place in its tree; above them is the root."""

Point = tuple[Column, Column, Column]


def point(first: Column, second: Column, third: Column) -> Column:
    """Three numbers as one column: how `lo` and `hi` of intervals are given."""
    return F.struct(
        first.cast("long").alias("a"), second.cast("long").alias("b"), third.cast("long").alias("c")
    )


@dataclass(frozen=True, slots=True)
class Tree:
    """Intervals, ready to be searched."""

    leaves: DataFrame
    payload: tuple[str, ...]
    depth: int
    count: int

    @property
    def is_empty(self) -> bool:
        """Nothing will be found."""
        return self.count == 0


def tree_of(intervals: DataFrame, payload: tuple[str, ...]) -> Tree:
    """Computes the intervals, once. Those of one root must not overlap; gaps are fine."""
    in_root = Window.partitionBy("root").orderBy("number")
    leaves = intervals.select(
        F.col("root").cast("long").alias("root"),
        (F.row_number().over(in_root) - 1).cast("long").alias("place"),
        *(
            F.col(f"{end}.{part}").alias(f"{end}_{part}")
            for end in ("lo", "hi")
            for part in ("a", "b", "c")
        ),
        *payload,
    ).localCheckpoint()
    sizes = leaves.agg(F.count("*").alias("count"), F.max("place").alias("last")).first()
    assert sizes is not None, "an aggregate without keys has one row"
    depth = 1
    while FANOUT**depth <= (sizes["last"] or 0):
        depth += 1
    return Tree(leaves, payload, depth, sizes["count"])


def find(rows: DataFrame, tree: Tree, root: Column, at: Point, prefix: str) -> DataFrame:
    """`rows` with the payload of the interval of `root` that holds `at`, as `<prefix><name>`.

    Null where there is none, or where `root` is null.
    """
    # Keys of what is in no tree are all different, for the sake of the join that is not broadcast.
    nowhere = -1 - F.shiftrightunsigned(F.xxhash64(*at), 1)
    found = rows.withColumn("_node", F.coalesce(_key(root.cast("long"), F.lit(0)), nowhere))
    for level in range(tree.depth - 1, 0, -1):
        nodes = F.broadcast(_nodes(tree.leaves, level))
        found = (
            found.join(nodes, (F.col("_node") == F.col("_parent")) & _holds(at), "left")
            .withColumn("_node", F.coalesce("_key", nowhere))
            .drop("_parent", "_key", *_BOUNDS)
        )
    leaves = tree.leaves.select(
        _key(F.col("root"), _above(F.col("place"), 1)).alias("_parent"),
        *(F.col(name).alias(f"_{name}") for name in _NAMES),
        *(F.col(name).alias(f"{prefix}{name}") for name in tree.payload),
    )
    if tree.count <= BROADCAST_ROWS_MAX:
        leaves = F.broadcast(leaves)
    return found.join(leaves, (F.col("_node") == F.col("_parent")) & _holds(at), "left").drop(
        "_node", "_parent", *_BOUNDS
    )


_NAMES = tuple(f"{end}_{part}" for end in ("lo", "hi") for part in ("a", "b", "c"))
_BOUNDS = tuple(f"_{name}" for name in _NAMES)


def _nodes(leaves: DataFrame, level: int) -> DataFrame:
    """The nodes `level` above the leaves: bounds, own key and the key of what is above them."""
    grouped = leaves.groupBy("root", _above(F.col("place"), level).alias("place")).agg(
        F.min(F.struct("lo_a", "lo_b", "lo_c")).alias("lo"),
        F.max(F.struct("hi_a", "hi_b", "hi_c")).alias("hi"),
    )
    return grouped.select(
        _key(F.col("root"), _above(F.col("place"), 1)).alias("_parent"),
        _key(F.col("root"), F.col("place")).alias("_key"),
        *(F.col(f"{name[:2]}.{name}").alias(f"_{name}") for name in _NAMES),
    )


def _above(place: Column, levels: int) -> Column:
    return F.shiftright(place, _FANOUT_BITS * levels)


def _key(root: Column, place: Column) -> Column:
    return F.shiftleft(root, _TREE_BITS) + place


def _holds(at: Point) -> Column:
    low = tuple(F.col(name) for name in _BOUNDS[:3])
    high = tuple(F.col(name) for name in _BOUNDS[3:])
    return ~_is_less(at, low) & _is_less(at, high)


def _is_less(left: tuple[Column, ...], right: tuple[Column, ...]) -> Column:
    """Plain numbers, not structs: this runs for every point and range."""
    a, b, c = (one < other for one, other in zip(left, right, strict=True))
    same_a, same_b = (left[0] == right[0], left[1] == right[1])
    return a | (same_a & (b | (same_b & c)))
