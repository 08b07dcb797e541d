"""The reach of the evidence: what Kafka has deleted proves nothing, and is no finding."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import (
    ColumnOrName,
    column,
    is_done,
    is_true,
    looked_up,
    of_partition,
)
from delayd.audit.judging.ids import REDRIVE_MEMORY_MS


def trimmed_ms(bounds: Bounds, topic: ColumnOrName = "topic") -> Column:
    """Return the time before which records of a topic may be missing; 0 if none is."""
    known = {name: bounds.trimmed_before_ms(name) for name in bounds.trimmed_ms}
    return F.coalesce(looked_up(known, topic), F.lit(0))


def trimmed_in_ms(bounds: Bounds, topic: str, partition: ColumnOrName = "partition") -> Column:
    """Return the same for one partition."""
    if topic not in bounds.trimmed_ms:
        return F.lit(0).cast("bigint")
    return F.coalesce(of_partition(bounds.trimmed_ms[topic], partition), F.lit(0))


def first_fired_of(deliveries: DataFrame) -> DataFrame:
    """Return when the first delivery left in each partition of a target was fired: topic,
    partition, fired_ms. A row for each partition, however many deliveries there are."""
    return (
        deliveries.where("source_offset is not null and fired_ms is not null")
        .groupBy("topic", "partition")
        .agg(F.min_by("fired_ms", "offset").alias("fired_ms"))
    )


def unproven_of(messages: DataFrame, bounds: Bounds) -> DataFrame:
    """Return how many messages of each target are unproven, most first, and of them those whose
    delivery may have been deleted, and of the others those whose dead letter may have been: topic,
    count, of_target, of_dead. Of the rest, requests under their id may have been."""
    is_of_target = trimmed_ms(bounds) > F.col("rank_ms")
    is_of_dead = F.lit(bounds.trimmed_before_ms(bounds.settings.dead.name)) > F.col("rank_ms")
    return (
        messages.where("fate = 'unproven'")
        .groupBy("topic")
        .agg(
            F.count("*").alias("count"),
            F.count_if(is_of_target).alias("of_target"),
            F.count_if(~is_of_target & is_of_dead).alias("of_dead"),
        )
        .orderBy(F.desc("count"), "topic")
    )


def deserted_of(logged: DataFrame, missing: Sequence[str], bounds: Bounds) -> DataFrame:
    """Of targets that do not exist, those that did: topic.

    What is over, but was neither requeued nor killed, nor may be a dead letter because it was tried
    so often or was too late, must have been delivered. To what never existed nothing is.
    """
    is_over = F.coalesce("continued_by", "killed_by").isNull() & is_done(bounds.frontier)
    may_have_died = is_last_attempt(bounds) | F.col("late_ms").isNotNull()
    may_have_died |= is_true(F.col("is_over"))
    stored = logged.where(F.col("topic").isin(*missing) & F.col("stored"))
    return stored.where(is_over & ~may_have_died).select("topic").distinct()


def is_last_attempt(bounds: Bounds) -> Column:
    """Of LOGGED: may it be given up if it fails? Only the last of all attempts may."""
    return F.coalesce("attempt", F.lit(0)) >= len(bounds.settings.retry_delays_ms)


def was_not_read(
    bounds: Bounds, partition: ColumnOrName = "partition", offset: ColumnOrName = "offset"
) -> Column:
    """Return whether this place is in a part of the buffer that Kafka has deleted, or that came
    after what was read: of that nothing can be said."""
    start, end, latest = (
        of_partition(offsets, partition)
        for offsets in (bounds.buffer_starts, bounds.buffer_ends, bounds.buffer_latest)
    )
    offset = column(offset)
    return is_true((offset < start) | ((offset >= end) & (offset < latest)))


def is_uncertain(bounds: Bounds) -> Column:
    """Of LOGGED: may a request that Kafka has deleted have had a say in this one?

    Deleted requests were appended before the `trimmed_ms` of their partition, so they were due, and
    remembered under their id, for the longest delay and the id memory after it at most; redrives
    are remembered for 30 days.
    """
    if not any(bounds.buffer_starts):
        return F.lit(False)
    settings = bounds.settings
    buffer = settings.buffer.name
    is_named = F.coalesce("id", "redrive").isNotNull() & (F.col("op") != "reject")
    touched = is_named & (of_partition(bounds.buffer_starts) > 0)
    if buffer not in bounds.trimmed_ms:
        return touched
    id_ms = settings.max_delay_ms + settings.id_memory_ms
    redrive_ms = max(id_ms, REDRIVE_MEMORY_MS)
    memory_ms = F.when(F.col("redrive").isNull(), id_ms).otherwise(redrive_ms)
    return touched & (F.col("log_ms") <= trimmed_in_ms(bounds, buffer) + memory_ms)
