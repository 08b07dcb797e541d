"""The topics of a cluster as a Spark stream, "delayd-follow": all of them in one, batch by batch.

Options: `access` (file, access.py), `topics` (JSON: delayd's own, by role), `targets` (a file with
the names of the targets that are known so far, one a line; it may grow), `shards` (how many the
cluster has).

Rows: tables.RECORDS, and in every batch one more of the topic "", whose value is JSON: its `start`
and `end` (positions.py) and what is `unread` (unread.py). More of them say what else is unread.
Not here: what is made of it.

Invariants: a batch is a function of its two positions; Kafka out of reach is an empty batch.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from delayd.audit.reading.access import Access
from delayd.audit.reading.batches import SCHEMA
from delayd.audit.reading.kafka import STALL_MS, read_ranges
from delayd.audit.reading.partition import ReadError
from delayd.audit.reading.plan import Planner, unplanned_file
from delayd.audit.reading.positions import Positions
from delayd.audit.reading.ranges import Range
from delayd.audit.reading.unread import HOLD_MS, PORTION_OFFSETS_MAX, reading_of
from delayd.audit.tables import RECORDS
from delayd.bus.confluent import ConfluentBus
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock


class DelaydFollow(DataSource):
    """The data source by its name."""

    @classmethod
    def name(cls) -> str:
        return "delayd-follow"

    def schema(self) -> StructType:
        return RECORDS

    def streamReader(self, schema: StructType) -> "FollowReader":  # noqa: N802
        return FollowReader(
            Path(self.options["access"]),
            json.loads(self.options["topics"]),
            Path(self.options["targets"]),
            int(self.options["shards"]),
        )


@dataclass
class Portion(InputPartition):
    """What one task reads: ranges by the role of their topics; the first one says what the batch
    is. From `hold_until_ms` (Unix ms) on a target that cannot be read is left out."""

    ranges: dict[str, list[Range]]
    hold_until_ms: int
    said: str | None = None


@dataclass
class FollowReader(DataSourceStreamReader):
    """Plans batches in one process of Spark's, and reads them in others."""

    _access: Path
    _topics: Mapping[str, str]
    _targets: Path
    _shards: int = 1

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with closing(self._planner()) as planner:
            return planner.first().to_json()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        why = unplanned_file(self._targets)
        try:
            with closing(self._planner()) as planner:
                known = self._targets.read_text().split() if self._targets.exists() else []
                end = planner.next(Positions.from_json(start), known).to_json()
        except DelaydError as failure:
            why.write_text(str(failure))
            return start  # as it seems, nothing is new
        why.unlink(missing_ok=True)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = Positions.from_json(start), Positions.from_json(end)
        if before == after:
            return []
        now_ms = SystemClock().wall_ms()
        with closing(self._bus().cluster()) as kafka:
            reading = reading_of(kafka, self._topics, before, after, now_ms)
        said = {"start": start, "end": end, "unread": reading.unread}
        return _portions(reading.ranges, self._topics, json.dumps(said), after.at_ms + HOLD_MS)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Portion), "one of ours"
        access = Access.read(self._access)
        if partition.said is not None:
            yield _said(partition.said)
        for role, ranges in partition.ranges.items():
            if role == "target":
                yield from _read_targets(access, ranges, partition.hold_until_ms)
            else:
                yield from read_ranges(access, role, ranges, STALL_MS)

    def _planner(self) -> Planner:
        return Planner(self._bus(), self._topics, SystemClock(), self._shards)

    def _bus(self) -> ConfluentBus:
        read = Access.read(self._access)
        return ConfluentBus(read.bootstrap, overrides=dict(read.kafka))


def _read_targets(access: Access, ranges: list[Range], hold_until_ms: int) -> Iterator[Any]:
    """Read targets. One that cannot be read fails the batch until then, and is left out
    afterwards."""
    left = iter(ranges)
    begun: list[Range] = []

    def each() -> Iterator[Range]:
        for wanted in left:
            begun.append(wanted)
            yield wanted

    unread: dict[str, list[int]] = {}
    while len(begun) < len(ranges):
        try:
            yield from read_ranges(access, "target", each(), STALL_MS)
        except ReadError:
            if SystemClock().wall_ms() < hold_until_ms:
                raise
            unread[begun[-1].topic] = []
    if unread:
        yield _said(json.dumps({"unread": unread}))


def _said(text: str) -> Any:
    row = {"topic": "", "partition": 0, "offset": 0, "value": text.encode()}
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def _portions(
    ranges: Iterable[Range], topics: Mapping[str, str], said: str, hold_until_ms: int
) -> list[InputPartition]:
    """Divide ranges into as few tasks as may be: each costs more than some hundred records."""
    roles = {name: role for role, name in topics.items()}
    portions = [Portion({}, hold_until_ms, said)]
    offsets = 0
    for wanted in ranges:
        if offsets + wanted.end - wanted.start > PORTION_OFFSETS_MAX and offsets:
            portions.append(Portion({}, hold_until_ms))
            offsets = 0
        offsets += wanted.end - wanted.start
        portions[-1].ranges.setdefault(roles.get(wanted.topic, "target"), []).append(wanted)
    return list(portions)
