"""How far evidence reaches: what Kafka has deleted proves nothing, and accuses nobody."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.ids import REDRIVE_MEMORY_MS


def trimmed_ms(bounds: Bounds, topic: Column) -> Column:
    """What was written to `topic` before this time may be missing; 0 if nothing is."""
    if not bounds.trimmed_ms:
        return F.lit(0).cast("bigint")
    known = F.create_map(
        *(F.lit(part) for item in bounds.trimmed_ms.items() for part in item)
    ).cast("map<string, bigint>")
    return F.coalesce(F.try_element_at(known, topic), F.lit(0))


def was_not_read(bounds: Bounds, partition: Column, offset: Column) -> Column:
    """Is this place in a part of the buffer that Kafka has deleted, or that came after what was
    read? Of that nothing can be said."""
    is_late = (offset >= _of(bounds.buffer_ends, partition)) & (
        offset < _of(bounds.buffer_latest, partition)
    )
    return partition.between(0, len(bounds.buffer_starts) - 1) & (
        (offset < _of(bounds.buffer_starts, partition)) | is_late
    )


def is_uncertain(bounds: Bounds) -> Column:
    """Of LOGGED: may a request that Kafka has deleted have had a say in this one?

    Deleted requests were appended before the buffer's `trimmed_ms`, so they were due, and
    remembered under their id, for the longest delay and the id memory after it at most; redrives
    are remembered for 30 days.
    """
    if not any(bounds.buffer_starts):
        return F.lit(False)
    settings = bounds.settings
    trimmed = bounds.trimmed_ms.get(settings.buffer.name)
    by_name = F.col("id").isNotNull() | F.col("redrive").isNotNull()
    touched = (
        by_name & (F.col("op") != "reject") & (_of(bounds.buffer_starts, F.col("partition")) > 0)
    )
    if trimmed is None:
        return touched
    reach_ms = settings.max_delay_ms + settings.id_memory_ms
    memory_ms = F.when(F.col("redrive").isNull(), reach_ms).otherwise(
        max(reach_ms, REDRIVE_MEMORY_MS)
    )
    return touched & (F.col("log_ms") <= trimmed + memory_ms)


def _of(values: tuple[int, ...], partition: Column) -> Column:
    longs = F.array(*(F.lit(value).cast("bigint") for value in values))
    return F.get(longs, partition.cast("int"))
