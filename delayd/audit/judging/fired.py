"""`delayd-fired`, compared with the frontier: it is the `now` of the step that delivered.

Which step that was is not asked: that would be a search for each delivery. A time at which no step
of its shard was made is wrong for sure. Only the last day is judged, of which Kafka keeps all
frontier records; not what lies where one of them is missing, nor the last seconds, because
deliveries of steps beyond those that were read are there too, by a clock that may be behind.
Source: docs/design/audit.md, "Deliveries".
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import of_shard, shard_of
from delayd.audit.judging.links import COMPACTION_LAG_MS
from delayd.audit.judging.search import BROADCAST_ROWS_MAX
from delayd.audit.judging.too_late import CLOCKS_APART_MS

GAPS_MAX: Final = 100
"""More places where frontier records are missing, and nothing is judged."""


def with_off_step(deliveries: DataFrame, frontiers: DataFrame, bounds: Bounds) -> DataFrame:
    """Return deliveries (with fired_ms) and `off_step`: why no step of FRONTIERS can have made
    them; or null."""
    since_ms = bounds.newest_append_ms - COMPACTION_LAG_MS
    history = Window.partitionBy("shard").orderBy("offset")
    steps = (
        frontiers.where(F.col("flaw").isNull() & (F.col("append_ms") >= since_ms))
        # Before the first of them there may have been others: of a topic that was lost and made
        # again, for one.
        .withColumn("last_ms", F.coalesce(F.lag("now_ms").over(history), F.lit(0)))
        .withColumn("follows", F.col("step") == F.lag("step", 1, -1).over(history) + 1)
    )
    # Between these times steps may be missing.
    gaps = (
        steps.where("not follows")
        .select("shard", F.least("last_ms", "now_ms"), F.greatest("last_ms", "now_ms"))
        .limit(GAPS_MAX + 1)
        .collect()
    )
    each = steps.select(F.col("shard").alias("step_shard"), F.col("now_ms").alias("step_ms"))
    times = each.distinct().localCheckpoint()
    if len(gaps) > GAPS_MAX or times.count() > BROADCAST_ROWS_MAX:
        return deliveries.withColumn("off_step", F.lit(None).cast("string"))
    fired_ms, shard = F.col("fired_ms"), shard_of(bounds.shards, "source_partition")
    until_ms = of_shard([cut.append_ms - CLOCKS_APART_MS for cut in bounds.cuts], shard)
    is_judged = (fired_ms > since_ms + CLOCKS_APART_MS) & (fired_ms < until_ms)
    for gap_shard, first_ms, last_ms in gaps:
        is_judged &= ~(fired_ms.between(first_ms, last_ms) & (shard == gap_shard))
    text = "delivered with another time of delivery: no step was made at %d"
    why = F.format_string(text, fired_ms)
    is_of_step = (fired_ms == F.col("step_ms")) & (shard == F.col("step_shard"))
    return (
        deliveries.join(F.broadcast(times), is_of_step, "left")
        .withColumn("off_step", F.when(is_judged & F.col("step_ms").isNull(), why))
        .drop("step_ms", "step_shard")
    )
