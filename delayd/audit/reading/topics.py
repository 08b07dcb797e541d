"""Topics as a table.

Nothing is read here: the table is a plan, and each action on it reads the topics again. Write what
is needed of it to Parquet.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from delayd.audit.reading.kafka import ROLES, DelaydKafka
from delayd.audit.reading.ranges import OFFSETS_MAX, tasks_of
from delayd.audit.spans import Span

STALL_MS: Final = 60_000
"""How long a read may stand still: as long as a broker takes to come back."""


def read_topics(
    spark: SparkSession,
    access: Path,
    spans: Sequence[Span],
    role: str,
    *,
    offsets_max: int = OFFSETS_MAX,
    stall_ms: int = STALL_MS,
) -> DataFrame:
    """Return tables.RECORDS of spans of topics that all have this role (headers.py), in one scan.

    `access` is what `Access.write` wrote; it must be there as long as the table is. A range that
    cannot be read makes the action fail that needs it, with a ReadError in the message.
    `offsets_max`: of a task.
    """
    assert role in ROLES, f"no role: {role}"
    tasks = tasks_of(spans, spark.sparkContext.defaultParallelism, offsets_max)
    spark.dataSource.register(DelaydKafka)
    return (
        spark.read.format(DelaydKafka.name())
        .option("access", str(access.resolve()))
        .option("role", role)
        .option("tasks", json.dumps(tasks))
        .option("stall_ms", str(stall_ms))
        .load()
    )
