"""The reach of the evidence: what Kafka has deleted proves nothing, and is no finding."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import is_done, of_partition
from delayd.audit.judging.ids import REDRIVE_MEMORY_MS


def trimmed_ms(bounds: Bounds, topic: Column) -> Column:
    """Return the time before which records of `topic` may be missing; 0 if none is."""
    if not bounds.trimmed_ms:
        return F.lit(0).cast("bigint")
    known = F.create_map(
        *(
            F.lit(part)
            for name in bounds.trimmed_ms
            for part in (name, bounds.trimmed_before_ms(name))
        )
    ).cast("map<string, bigint>")
    return F.coalesce(F.try_element_at(known, topic), F.lit(0))


def trimmed_in_ms(bounds: Bounds, topic: str, partition: Column) -> Column:
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
    is_of_target = trimmed_ms(bounds, F.col("topic")) > F.col("rank_ms")
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

    What is over, but was neither requeued nor killed, nor tried so often that it may be a dead
    letter, must have been delivered. To what never existed nothing is.
    """
    place = (F.col("lane"), F.col("rank_ms"), F.col("partition"), F.col("offset"))
    is_last = F.coalesce("attempt", F.lit(0)) >= len(bounds.settings.retry_delays_ms)
    return (
        logged.where(F.col("topic").isin(*missing) & F.col("stored") & ~is_last)
        .where(F.col("continued_by").isNull() & F.col("killed_by").isNull())
        .where(is_done(bounds.frontier, *place))
        .select("topic")
        .distinct()
    )


def was_not_read(bounds: Bounds, partition: Column, offset: Column) -> Column:
    """Is this place in a part of the buffer that Kafka has deleted, or that came after what was
    read? Of that nothing can be said."""
    is_late = (offset >= of_partition(bounds.buffer_ends, partition)) & (
        offset < of_partition(bounds.buffer_latest, partition)
    )
    return partition.between(0, len(bounds.buffer_starts) - 1) & (
        (offset < of_partition(bounds.buffer_starts, partition)) | is_late
    )


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
    by_name = F.col("id").isNotNull() | F.col("redrive").isNotNull()
    touched = (
        by_name
        & (F.col("op") != "reject")
        & (of_partition(bounds.buffer_starts, F.col("partition")) > 0)
    )
    if buffer not in bounds.trimmed_ms:
        return touched
    reach_ms = settings.max_delay_ms + settings.id_memory_ms
    memory_ms = F.when(F.col("redrive").isNull(), reach_ms).otherwise(
        max(reach_ms, REDRIVE_MEMORY_MS)
    )
    gone_ms = trimmed_in_ms(bounds, buffer, F.col("partition"))
    return touched & (F.col("log_ms") <= gone_ms + memory_ms)
