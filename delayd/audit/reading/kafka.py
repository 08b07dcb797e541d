"""Kafka topics as tables, by a Spark data source with one Spark partition per task of ranges.py.

Options: `access` (file, access.py), `role` (what the topics are, headers.py), `tasks` (JSON),
`stall_ms`. Rows: tables.RECORDS, in the order of each range.
"""

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from delayd.audit.reading.access import Access
from delayd.audit.reading.batches import SCHEMA, Batches, Headers, Piece, Prover, piece_of
from delayd.audit.reading.log_time import LogTimes, newest_before
from delayd.audit.reading.partition import Partition, Wanted, guarded_reader, open_client
from delayd.audit.reading.ranges import OFFSETS_MAX, Range, tasks_of
from delayd.audit.spans import Span
from delayd.audit.tables import RECORDS
from delayd.bus.guarded import GuardedConsumer
from delayd.config.cluster_key import proof_key
from delayd.request.proof import is_proof
from delayd.request.request import RequestLimits

ROLES: Final = ("buffer", "target", "receipts", "dead", "frontier")

BATCH_RECORDS: Final = 8192
BATCH_BYTES: Final = 4 * 1024 * 1024
"""A batch is closed by what reaches one of them."""

HERE_OFFSETS_MAX: Final = 150_000
HERE_BYTES_MAX: Final = 128 * 1024 * 1024
"""What this process reads by itself at most."""

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

    The table is a plan: each action on it reads the topics again. `access` is what `Access.write`
    wrote; it must be there as long as the table is. A range that cannot be read makes the action
    fail that needs it, with a ReadError in the message. `offsets_max`: of a task.
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


def read_here(
    spark: SparkSession,
    access: Path,
    spans: Sequence[Span],
    role: str,
    *,
    bytes_max: int = HERE_BYTES_MAX,
    stall_ms: int = STALL_MS,
) -> DataFrame | None:
    """Return the same as `read_topics`, read by this process, once and now: to start Python three
    times for Spark takes longer than to read little. None if it is more than `bytes_max`.

    Raises ReadError.
    """
    table = fetch_here(Access.read(access), spans, role, bytes_max=bytes_max, stall_ms=stall_ms)
    return None if table is None else fetched(spark, table)


def fetch_here(
    access: Access,
    spans: Sequence[Span],
    role: str,
    *,
    bytes_max: int = HERE_BYTES_MAX,
    stall_ms: int = STALL_MS,
) -> pa.Table | None:
    """Read what `read_here` returns, without Spark."""
    assert role in ROLES, f"no role: {role}"
    batches, size_bytes = [], 0
    for task in tasks_of(spans, cores=1):
        for batch in read_ranges(access, role, task, stall_ms):
            batches.append(batch)
            size_bytes += batch.nbytes
            if size_bytes > bytes_max:
                return None
    return pa.Table.from_batches(batches, SCHEMA).combine_chunks()


def fetched(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return what was fetched."""
    cores = spark.sparkContext.defaultParallelism
    return spark.createDataFrame(table, RECORDS).coalesce(cores)


class DelaydKafka(DataSource):
    """The data source by its name."""

    @classmethod
    def name(cls) -> str:
        return "delayd-kafka"

    def schema(self) -> StructType:
        return RECORDS

    def reader(self, schema: StructType) -> "TasksReader":
        return TasksReader(
            Path(self.options["access"]),
            self.options["role"],
            [
                tuple(Range(*wanted) for wanted in task)
                for task in json.loads(self.options["tasks"])
            ],
            int(self.options["stall_ms"]),
        )


@dataclass
class Task(InputPartition):
    """The ranges of one task."""

    ranges: tuple[Range, ...]


@dataclass
class TasksReader(DataSourceReader):
    """Reads the ranges of each task in some process of Spark's."""

    _access: Path
    _role: str
    _tasks: list[tuple[Range, ...]]
    _stall_ms: int

    def partitions(self) -> list[InputPartition]:
        return [Task(ranges) for ranges in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Task):  # Spark's stand-in when there are none
            return iter(())
        access = Access.read(self._access)
        return read_ranges(access, self._role, partition.ranges, self._stall_ms)


def read_ranges(access: Access, role: str, ranges: Iterable[Range], stall_ms: int) -> Iterator[Any]:
    """Yield Arrow batches of tables.RECORDS with the committed records of the ranges; raise
    ReadError."""
    client = open_client(access)
    prove = _prover(access)
    collects = gc.isenabled()
    gc.disable()  # it looks through the headers of thousands of records, which are no garbage
    try:
        for wanted in ranges:
            guarded = _guarded(access, wanted) if role == "buffer" else None
            log = Partition(client, wanted.topic, wanted.partition, stall_ms, guarded)
            times = _log_times(access, log, role, wanted, stall_ms)
            yield from _read_range(log, role, wanted, prove, times)
    finally:
        client.close()
        if collects:
            gc.enable()


def _log_times(access: Access, log: Partition, role: str, wanted: Range, stall_ms: int) -> LogTimes:
    """Return what says of a range's records as of which time they are judged."""
    is_ruled = role == "buffer" and len(access.steady_from) > wanted.partition
    steady_from = access.steady_from[wanted.partition] if is_ruled else None
    newest_ms = newest_before(log, wanted.first, wanted.start) if role == "buffer" else 0
    floor_ms = None
    if steady_from is not None and steady_from < wanted.start:
        floor_ms = newest_before(log, wanted.first, max(wanted.first, steady_from))

    def times_before(offset: int) -> Iterator[int]:
        # Beside what reads the partition now.
        client = open_client(access)
        try:
            guarded = _guarded(access, wanted)
            beside = Partition(client, wanted.topic, wanted.partition, stall_ms, guarded)
            yield from beside.times(max(wanted.first, steady_from or 0), offset)
        finally:
            client.close()

    return LogTimes(newest_ms, access.trail_ms, steady_from, times_before, floor_ms)


def _guarded(access: Access, wanted: Range) -> Callable[[int], GuardedConsumer]:
    def reader(start: int) -> GuardedConsumer:
        careful_to = {wanted.partition: start + 1} if start > wanted.first else {}
        return guarded_reader(access, wanted.topic, careful_to)

    return reader


def _read_range(
    log: Partition,
    role: str,
    wanted: Range,
    prove: Prover | None,
    log_times: LogTimes,
) -> Iterator[Any]:
    batches = Batches(wanted.topic, wanted.partition, role, log_times, prove)
    sizes = Wanted()
    pieces: list[Piece] = []
    rows = size_bytes = 0
    for messages in log.messages(wanted.start, wanted.end, sizes):
        piece = piece_of(messages)
        sizes.learn(len(messages), piece.size_bytes)
        pieces.append(piece)
        rows += len(messages)
        size_bytes += piece.size_bytes
        if rows >= BATCH_RECORDS or size_bytes >= BATCH_BYTES:
            yield batches.batch(pieces)
            pieces, rows, size_bytes = [], 0, 0
    if pieces:
        yield batches.batch(pieces)


def _prover(access: Access) -> Prover | None:
    if access.cluster_key is None:
        return None
    limits = RequestLimits(
        max_delay_ms=0,
        record_bytes_max=1,
        partitions=1,
        cluster=access.cluster,
        proof_key=proof_key(access.cluster_key),
    )

    def prove(partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> bool:
        [*others, (_, proof)] = headers
        return proof is not None and is_proof(proof, limits, partition, key, value, others)

    return prove
