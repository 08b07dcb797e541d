"""Lateness: how long after its time a message was in its target.

Its time is the due time as asked, or its acceptance if that was later: what arrives overdue cannot
be there before. Messages that were requeued, because their target failed, are counted and left out:
their delay is the target's, and would hide delayd's own.

Values are counted before anything else: one pass over the messages gives a table of topic, hour,
moment and lateness that is small however many messages there are, and everything else is exact
arithmetic on it. So that it is small, a lateness above EXACT_MS is rounded down to its 11 leading
binary digits, which is less than 0.1 % off; the largest of each group is kept as it is.
Source: docs/design/audit.md, "Lateness".
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.judging.columns import shard_of, table_of
from delayd.audit.judging.figures import HOUR_MS, width_of
from delayd.audit.report import Bin
from delayd.audit.tables import FAILOVERS

EXACT_MS: Final = 2_048
MOMENTS_MAX: Final = 240
BEFORE_FAILOVER_MS: Final = 5_000
AFTER_FAILOVER_MS: Final = 15_000
FAILOVERS_MAX: Final = 1_000
"""Later ones get no lateness."""
TOPIC_HOURS_MAX: Final = 10_000
"""Hours of topics that a report has: of 200 topics the last two days."""

_EXACT_DIGITS: Final = 11
_PERCENTILES: Final = (("p50", 500), ("p99", 990), ("p999", 999))
_BINS_MS: Final = (
    *(0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000),
    *(120_000, 300_000, 600_000, HOUR_MS, 6 * HOUR_MS, 24 * HOUR_MS, 240 * HOUR_MS),
)
"""Where the bars of the histogram begin; the last one has no end."""
_LEFT_OUT: Final = 0
"""In place of the number of a bar."""


def was_requeued() -> Column:
    """Return whether a step has requeued a row of MESSAGES, to be tried again."""
    return F.col("rank_ms") > _time_ms()


def counts_of(messages: DataFrame) -> DataFrame:
    """Count the MESSAGES that were delivered.

    topic, hour_ms (of the due time), at_ms (moment of the timeline), late_ms, is_again (it
    was_requeued), count, most_ms. The one pass over the messages; keep the result. Starts a small
    job of its own, which finds the ends of the timeline.
    """
    delivered = messages.where((F.col("fate") == "delivered") & F.col("delivered_ms").isNotNull())
    ends = F.min("delivered_ms"), F.max("delivered_ms")
    [(least_ms, most_ms)] = delivered.agg(*ends).collect()
    width_ms = width_of(least_ms or 0, most_ms or 0, MOMENTS_MAX)
    late_ms = _late_ms()
    return delivered.groupBy(
        "topic",
        F.expr(f"due_ms div {HOUR_MS} * {HOUR_MS}").alias("hour_ms"),
        F.expr(f"delivered_ms div {width_ms} * {width_ms}").alias("at_ms"),
        _rounded(late_ms).alias("late_ms"),
        was_requeued().alias("is_again"),
    ).agg(F.count("*").alias("count"), F.max(late_ms).alias("most_ms"))


def lateness_of(counts: DataFrame) -> DataFrame:
    """Return percentiles: topic, hour_ms, count, p50, p99, p999, max. Of everything where the topic
    is null, of a whole topic where only the hour is null."""
    topic, hour_ms, late_ms = F.col("topic"), F.col("hour_ms"), F.col("late_ms")
    grouped = [[late_ms], [topic, late_ms], [topic, hour_ms, late_ms]]
    sets = (
        counts.where("not is_again")
        .groupingSets(grouped, topic, hour_ms, late_ms)
        .agg(F.sum("count").alias("count"), F.max("most_ms").alias("most_ms"))
    )
    return percentiles(sets, "topic", "hour_ms").orderBy("topic", "hour_ms")


def newest_hours(late: DataFrame, most: int = TOPIC_HOURS_MAX) -> DataFrame:
    """Return the rows of lateness_of that are of an hour: those of the last hours, at most
    `most`."""
    return (
        late.where("hour_ms is not null")
        .orderBy(F.desc("hour_ms"), "topic")
        .limit(most)
        .orderBy("topic", "hour_ms")
    )


def histogram_of(counts: DataFrame) -> tuple[tuple[Bin, ...], int]:
    """Return all bars, from the first, and how many messages they leave out, which were delivered
    after they had been requeued. What is early is in the first bar: it is a finding."""
    starts = F.array(*map(F.lit, _BINS_MS))
    bar = F.size(F.filter(starts, lambda start: start <= F.greatest("late_ms", F.lit(0))))
    of_bar = F.when(F.col("is_again"), _LEFT_OUT).otherwise(bar)
    found = dict(map(tuple, counts.groupBy(of_bar).agg(F.sum("count")).collect()))
    ends = (*_BINS_MS[1:], 10 * _BINS_MS[-1])
    bins = tuple(
        Bin(start, end, found.get(number, 0))
        for number, (start, end) in enumerate(zip(_BINS_MS, ends, strict=True), 1)
    )
    return bins, found.get(_LEFT_OUT, 0)


def timeline_of(counts: DataFrame) -> DataFrame:
    """Return moments as report.Moment: at_ms, delivered, late_p50, late_p99, late_max; `delivered`
    and the times are without what was requeued."""
    by_moment = (
        counts.where("not is_again")
        .groupBy("at_ms", "late_ms")
        .agg(F.sum("count").alias("count"), F.max("most_ms").alias("most_ms"))
    )
    return (
        percentiles(by_moment, "at_ms")
        .drop("p999")
        .withColumnsRenamed(
            {"count": "delivered", "p50": "late_p50", "p99": "late_p99", "max": "late_max"}
        )
        .orderBy("at_ms")
    )


def lateness_around(
    messages: DataFrame, failovers: Sequence[tuple[int, int, int]], shards: int = 1
) -> DataFrame:
    """Return for each of the failovers (shard, term, Unix ms, in order): shard, term, count, p50,
    p99, p999, max of what was due there from BEFORE_FAILOVER_MS before to AFTER_FAILOVER_MS after.
    None where nothing was due."""
    second = 1_000
    first = F.expr(f"(at_ms - {BEFORE_FAILOVER_MS}) div {second}")
    last = F.expr(f"(at_ms + {AFTER_FAILOVER_MS}) div {second}")
    changes = table_of(messages.sparkSession, FAILOVERS, failovers[:FAILOVERS_MAX])
    seconds = F.explode(F.sequence(first, last)).alias("second")
    windows = changes.select("shard", "term", "at_ms", seconds)
    around = (
        messages.where((F.col("fate") == "delivered") & ~was_requeued())
        .select(
            shard_of(shards).alias("shard"),
            *(_time_ms().alias("time_ms"), _late_ms().alias("exact_ms")),
        )
        .withColumn("second", F.expr(f"time_ms div {second}"))
        .join(F.broadcast(windows), ["shard", "second"])
        .where(f"time_ms >= at_ms - {BEFORE_FAILOVER_MS}")
        .where(f"time_ms <= at_ms + {AFTER_FAILOVER_MS}")
        .groupBy("shard", "term", _rounded(F.col("exact_ms")).alias("late_ms"))
        .agg(F.count("*").alias("count"), F.max("exact_ms").alias("most_ms"))
    )
    return percentiles(around, "shard", "term")


def percentiles(counted: DataFrame, *keys: str) -> DataFrame:
    """Return, from `late_ms`, `count` and `most_ms` within `keys`: keys, count, p50, p99, p999,
    max. The p-th is the least value that at least that share of all does not exceed."""
    group = Window.partitionBy(*keys)
    up_to = group.orderBy("late_ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sums = {"up_to": F.sum("count").over(up_to), "all": F.sum("count").over(group)}

    def least(mille: int) -> Column:
        is_share = F.col("up_to") * 1000 >= F.col("all") * mille
        return F.min(F.when(is_share, F.col("late_ms")))

    return (
        counted.withColumns(sums)
        .groupBy(*keys)
        .agg(
            F.first("all").alias("count"),
            *(least(mille).alias(name) for name, mille in _PERCENTILES),
            F.max("most_ms").alias("max"),
        )
    )


def _time_ms() -> Column:
    return F.greatest("planned_ms", "append_ms")


def _late_ms() -> Column:
    return F.col("delivered_ms") - _time_ms()


def _rounded(late_ms: Column) -> Column:
    """Round down to 11 leading binary digits."""
    digits = F.length(F.bin(late_ms))
    drop = F.greatest(digits - _EXACT_DIGITS, F.lit(0))
    cut = F.call_function("shiftleft", F.call_function("shiftright", late_ms, drop), drop)
    return F.when(late_ms < EXACT_MS, late_ms).otherwise(cut)
