"""Search trees made of joins: they find the interval that holds a point.

A history of 200,000 steps cuts the ranks into as many intervals, and 10 M messages must be told
theirs. Intervals are uneven (one millisecond may take a thousand steps, an idle hour none), so
buckets of time would be too full or too many. Here each FANOUT neighbours have a node above them,
and so on up to one root: a point goes down from its root by one broadcast join for each level, and
is compared with FANOUT ranges in each. The points are never shuffled.

A point is three numbers, compared from the left: a rank, or an offset and two zeros. A node holds
what is from its first interval up to its neighbour; only an interval itself can hold nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

_FANOUT_BITS: Final = 5
FANOUT: Final = 1 << _FANOUT_BITS
_LEVELS_MAX: Final = 5
"""More than 33 M intervals are searched one by one at the lowest level."""

BROADCAST_ROWS_MAX: Final = 2_000_000
"""More intervals are not sent to everyone: then Spark shuffles the points, once."""

_TREE_BITS: Final = 40
"""Of a node's key, for its place in its tree; above them is the root."""

_PARTS: Final = ("a", "b", "c")
_BOUNDS: Final = tuple(f"_{end}_{part}" for end in ("lo", "hi") for part in _PARTS)

Point = tuple[Column, Column, Column]


def point(first: Column, second: Column, third: Column) -> Column:
    """Return three numbers as one column: how `lo` and `hi` of intervals are given."""
    columns = (first, second, third)
    return F.struct(*(c.cast("long").alias(p) for c, p in zip(columns, _PARTS, strict=True)))


@dataclass(frozen=True, slots=True)
class Trees:
    """Intervals, ready to be searched, and how many each root has."""

    leaves: DataFrame
    payload: tuple[str, ...]
    sizes: Mapping[int, int]
    ends: Mapping[int, int]
    """The first number of the highest `hi`, by root."""

    def count(self, roots: range) -> int:
        """Intervals of these roots."""
        return sum(size for root, size in self.sizes.items() if root in roots)

    def depth(self, roots: range) -> int:
        """Return how many joins it takes to find one."""
        largest = max((size for root, size in self.sizes.items() if root in roots), default=0)
        depth = 1
        while FANOUT**depth < largest and depth < _LEVELS_MAX:
            depth += 1
        return depth


def trees_of(intervals: DataFrame, payload: tuple[str, ...]) -> Trees:
    """Computes the intervals: root (which tree), number (their order in it), lo and hi (points;
    [lo, hi)), payload. Gaps are fine; where two overlap, the first one keeps what is in both."""
    in_root = Window.partitionBy("root").orderBy("number")
    before = in_root.rowsBetween(Window.unboundedPreceding, -1)
    leaves = (
        intervals.withColumn("lo", F.greatest("lo", F.max("hi").over(before)))
        .where("lo < hi")
        .select(
            F.col("root").cast("long").alias("root"),
            (F.row_number().over(in_root) - 1).cast("long").alias("place"),
            *("lo", "hi"),
            *(
                F.lead("lo", FANOUT**level).over(in_root).alias(f"next_{level}")
                for level in range(1, _LEVELS_MAX)
            ),
            *payload,
        )
        .localCheckpoint()
    )
    sizes = leaves.groupBy("root").agg(F.count("*").alias("count"), F.max("hi.a").alias("end"))
    rows = sizes.collect()
    return Trees(
        leaves,
        payload,
        {row["root"]: row["count"] for row in rows},
        {row["root"]: row["end"] for row in rows},
    )


def find(
    rows: DataFrame, trees: Trees, roots: range, root: Column, at: Point, prefix: str
) -> DataFrame:
    """`rows` with the payload of the interval of `root` that holds `at`, as `<prefix><name>`.

    Null where there is none, or where `root` is null; else it must be one of `roots`.
    """
    # Keys of what is in no tree are all different, for the sake of the join that is not broadcast.
    nowhere = -1 - F.shiftrightunsigned(F.xxhash64(*at), 1)
    found = rows.withColumn("_node", F.coalesce(_key(root.cast("long"), F.lit(0)), nowhere))
    leaves = trees.leaves.where(F.col("root").between(roots.start, roots.stop - 1))
    for level in range(trees.depth(roots) - 1, 0, -1):
        nodes = F.broadcast(_nodes(leaves, level))
        found = (
            found.join(nodes, (F.col("_node") == F.col("_parent")) & _holds(at), "left")
            .withColumn("_node", F.coalesce("_key", nowhere))
            .drop("_parent", "_key", *_BOUNDS)
        )
    lowest = leaves.select(
        _key(F.col("root"), _above(1)).alias("_parent"),
        *_bounds(F.col("lo"), F.col("hi")),
        *(F.col(name).alias(f"{prefix}{name}") for name in trees.payload),
    )
    if trees.count(roots) <= BROADCAST_ROWS_MAX:
        lowest = F.broadcast(lowest)
    return found.join(lowest, (F.col("_node") == F.col("_parent")) & _holds(at), "left").drop(
        "_node", "_parent", *_BOUNDS
    )


def _nodes(leaves: DataFrame, level: int) -> DataFrame:
    """Return the nodes `level` above the leaves: bounds, own key and the key of what is above
    them."""
    no_end = point(F.lit(2**63 - 1), F.lit(0), F.lit(0))
    return leaves.where(F.col("place") % FANOUT**level == 0).select(
        _key(F.col("root"), _above(level + 1)).alias("_parent"),
        _key(F.col("root"), _above(level)).alias("_key"),
        *_bounds(F.col("lo"), F.coalesce(f"next_{level}", no_end)),
    )


def _above(levels: int) -> Column:
    return F.shiftright(F.col("place"), _FANOUT_BITS * levels)


def _key(root: Column, place: Column) -> Column:
    return F.shiftleft(root, _TREE_BITS) + place


def _bounds(low: Column, high: Column) -> list[Column]:
    parts = [end[part] for end in (low, high) for part in _PARTS]
    return [part.alias(name) for part, name in zip(parts, _BOUNDS, strict=True)]


def _holds(at: Point) -> Column:
    low, high = (tuple(map(F.col, names)) for names in (_BOUNDS[:3], _BOUNDS[3:]))
    return ~_is_less(at, low) & _is_less(at, high)


def _is_less(left: tuple[Column, ...], right: tuple[Column, ...]) -> Column:
    """Plain numbers, not structs: this runs for every point and range."""
    a, b, c = (one < other for one, other in zip(left, right, strict=True))
    return a | ((left[0] == right[0]) & (b | ((left[1] == right[1]) & c)))
