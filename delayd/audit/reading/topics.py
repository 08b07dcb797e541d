"""A topic as a table, each record read once by whoever asks for it.

Nothing is read here: the table is a plan, and each action on it reads the topic again. Write what
is needed of it to Parquet.
"""

import json
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from delayd.audit.reading.kafka import ROLES, DelaydKafka
from delayd.audit.reading.ranges import RANGE_OFFSETS_MAX, ranges_of
from delayd.audit.spans import Span

STALL_MS: Final = 60_000
"""How long a read may stand still: as long as a broker takes to come back."""


def read_topic(
    spark: SparkSession,
    access: Path,
    span: Span,
    role: str,
    *,
    range_offsets_max: int = RANGE_OFFSETS_MAX,
    stall_ms: int = STALL_MS,
) -> DataFrame:
    """tables.RECORDS of a span of a topic that has this role (headers.py).

    `access` is what `Access.write` wrote. A range that cannot be read makes the action fail that
    needs it, with a ReadError in the message.
    """
    assert role in ROLES, f"no role: {role}"
    cores = spark.sparkContext.defaultParallelism
    ranges = ranges_of(span.starts, span.ends, cores, range_offsets_max)
    spark.dataSource.register(DelaydKafka)
    return (
        spark.read.format(DelaydKafka.name())
        .option("access", str(access.resolve()))
        .option("topic", span.topic)
        .option("role", role)
        .option("ranges", json.dumps(ranges))
        .option("stall_ms", str(stall_ms))
        .load()
    )
