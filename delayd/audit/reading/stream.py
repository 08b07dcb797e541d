"""The topics of a cluster as a Spark stream, "delayd-follow": all of them in one, batch by batch.

Options: `access` (file, access.py), `topics` (JSON: delayd's own, by role), `targets` (a file with
the names of the targets that are known so far, one a line; it may grow).

Rows: tables.RECORDS, and in every batch one more of the topic "", whose value is the batch's end
(positions.py) as JSON. Not here: what is made of it.

Invariants: a batch is a function of its two positions; Kafka out of reach is an empty batch.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from delayd.audit.reading.access import Access
from delayd.audit.reading.batches import SCHEMA
from delayd.audit.reading.kafka import read_ranges
from delayd.audit.reading.positions import BATCH_OFFSETS_MAX, Ends, Positions
from delayd.audit.reading.ranges import Range
from delayd.audit.spans import AuditError
from delayd.audit.tables import RECORDS
from delayd.bus import Cluster
from delayd.bus.confluent import ConfluentBus
from delayd.clock import SystemClock
from delayd.errors import DelaydError
from delayd.frontier_log import FrontierLog
from replication.record import encode

TIMEOUT_MS: Final = 10_000
STALL_MS: Final = 60_000
SETTLE_MS: Final = 2_000
"""How long a batch waits for the markers of transactions that have just ended."""

SETTLE_POLL_S: Final = 0.02

CLOCKS_MS: Final = 2_000
"""Evidence is read from so long before the frontier record at which watching begins: a record's
time is its producer's."""

FRONTIER_OFFSETS_MAX: Final = 200
"""Only the newest frontier counts; the last record is found among so many offsets."""

PORTION_OFFSETS_MAX: Final = 100_000


class DelaydFollow(DataSource):
    """What Spark knows it by."""

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
        )


@dataclass
class Portion(InputPartition):
    """What one task reads: ranges by the role of their topics; the first one ends the batch."""

    ranges: dict[str, list[Range]]
    end: str | None = None


class FollowReader(DataSourceStreamReader):
    """Plans batches in one process of Spark's, and reads them in others."""

    def __init__(self, access: Path, topics: Mapping[str, str], targets: Path) -> None:
        self._access = access
        self._topics = topics
        self._targets = targets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with closing(_Planner(self._access, self._topics)) as planner:
            return planner.first().to_json()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        try:
            with closing(_Planner(self._access, self._topics)) as planner:
                known = self._targets.read_text().split() if self._targets.exists() else []
                return planner.next(Positions.from_json(start), known).to_json()
        except DelaydError:
            return start  # as it seems, nothing is new; `settled_ms` stands still, which shows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = Positions.from_json(start), Positions.from_json(end)
        if before == after:
            return []
        with closing(_Planner(self._access, self._topics)) as planner:
            firsts = planner.firsts(self._topics["buffer"])
        ranges = _ranges(before, after, self._topics, firsts)
        return _portions(ranges, self._topics, json.dumps(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Portion), "one of ours"
        access = Access.read(self._access)
        if partition.end is not None:
            row = {"topic": "", "partition": 0, "offset": 0, "value": partition.end.encode()}
            yield pa.RecordBatch.from_pylist([row], schema=SCHEMA)
        for role, ranges in partition.ranges.items():
            yield from read_ranges(access, role, ranges, STALL_MS)


class _Planner:
    """Asks Kafka how far the topics reach."""

    def __init__(self, access: Path, topics: Mapping[str, str]) -> None:
        read = Access.read(access)
        self._bus = ConfluentBus(read.bootstrap, overrides=dict(read.kafka))
        self._kafka: Cluster = self._bus.cluster()
        self._topics = topics
        self._clock = SystemClock()

    def close(self) -> None:
        self._kafka.close()

    def first(self) -> Positions:
        """Where watching begins: at the newest frontier, with all that the buffer still holds."""
        frontier = self._topics["frontier"]
        with closing(FrontierLog(self._bus, frontier, shard=0)) as log:
            seen = log.open(TIMEOUT_MS)
        if seen is None:
            raise AuditError(f"{frontier} holds no frontier", remedy="run `delayd topics create`")
        buffer = self._topics["buffer"]
        starts = self._starts(buffer)
        positions = Positions(
            at_ms=self._clock.wall_ms(),
            watch=encode(seen.record).decode(),
            watch_ms=seen.append_ms,
            buffer_starts=starts,
            next={frontier: (seen.offset + 1,), buffer: starts},
            settled_ms={},
            behind={},
        )
        for role in ("receipts", "dead"):
            positions = self._begun(positions, self._topics[role])
        return positions

    def next(self, at: Positions, targets: list[str]) -> Positions:
        """The end of the next batch."""
        buffer, frontier = self._topics["buffer"], self._topics["frontier"]
        ends = self._ends(buffer)
        if at.backlog(buffer, ends.stable) > BATCH_OFFSETS_MAX:
            return _at(at.reading(buffer, ends, BATCH_OFFSETS_MAX), self._clock.wall_ms())
        at = at.reading(frontier, self._ends(frontier), 2**62)
        targets = [topic for topic in targets if topic not in self._topics.values()]
        there = self._kafka.survey(targets, TIMEOUT_MS).states if targets else {}
        evidence = [self._topics["receipts"], self._topics["dead"], *sorted(there)]
        now_ms = self._clock.wall_ms()
        high = {topic: self._high(topic) for topic in (*evidence, buffer)}
        deadline_ms = self._clock.monotonic_ms() + SETTLE_MS
        left = BATCH_OFFSETS_MAX
        for topic in evidence:
            if topic not in at.next:
                at = self._begun(at, topic)  # and is read from the next batch on
                continue
            ends = self._settled(topic, high[topic], deadline_ms)
            wanted = at.backlog(topic, ends.stable)
            at = at.reading(topic, ends, max(1, left)).settling(topic, ends, now_ms)
            left -= wanted
        ends = self._settled(buffer, high[buffer], deadline_ms)
        return _at(at.reading(buffer, ends, 2**62).settling(buffer, ends, now_ms), now_ms)

    def _settled(self, topic: str, high: tuple[int, ...], deadline_ms: int) -> Ends:
        """Its ends, once all that was there is committed or aborted, or the time is up."""
        stable = self._stable(topic)
        while _is_behind(stable, high) and self._clock.monotonic_ms() < deadline_ms:
            Event().wait(SETTLE_POLL_S)
            stable = self._stable(topic)
        return Ends(stable, high)

    def firsts(self, topic: str) -> tuple[int, ...]:
        """The first offsets that Kafka still has."""
        return self._starts(topic)

    def _begun(self, positions: Positions, topic: str) -> Positions:
        ends = self._high(topic)
        since = self._kafka.offsets_since(topic, positions.watch_ms - CLOCKS_MS, TIMEOUT_MS)
        starts = tuple(min(since.get(number, end), end) for number, end in enumerate(ends))
        return positions.starting(topic, starts)

    def _ends(self, topic: str) -> Ends:
        high = self._high(topic)
        return Ends(self._stable(topic), high)

    def _stable(self, topic: str) -> tuple[int, ...]:
        return _listed(self._kafka.end_offsets(topic, TIMEOUT_MS, committed=True))

    def _high(self, topic: str) -> tuple[int, ...]:
        return _listed(self._kafka.end_offsets(topic, TIMEOUT_MS, committed=False))

    def _starts(self, topic: str) -> tuple[int, ...]:
        return _listed(self._kafka.start_offsets(topic, TIMEOUT_MS))


def _at(positions: Positions, at_ms: int) -> Positions:
    return Positions.from_json({**positions.to_json(), "at_ms": at_ms})


def _listed(offsets: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(offsets[number] for number in range(len(offsets)))


def _is_behind(stable: tuple[int, ...], high: tuple[int, ...]) -> bool:
    return any(reached < end for reached, end in zip(stable, high, strict=False))


def _ranges(
    before: Positions, after: Positions, topics: Mapping[str, str], firsts: tuple[int, ...]
) -> Iterator[Range]:
    for topic, ends in after.next.items():
        begun = before.next.get(topic)
        if begun is None:  # found while planning, and not read yet
            continue
        for number, end in enumerate(ends):
            start = begun[number] if number < len(begun) else 0
            if topic == topics["frontier"]:
                start = max(start, end - FRONTIER_OFFSETS_MAX)
            first = firsts[number] if topic == topics["buffer"] else start
            while start < end:
                stop = min(end, start + PORTION_OFFSETS_MAX)
                yield Range(topic, number, first, start, stop)
                start = stop


def _portions(ranges: Iterator[Range], topics: Mapping[str, str], end: str) -> list[InputPartition]:
    """In as few tasks as may be: each costs more than some hundred records."""
    roles = {name: role for role, name in topics.items()}
    portions = [Portion({}, end)]
    offsets = 0
    for wanted in ranges:
        if offsets + wanted.end - wanted.start > PORTION_OFFSETS_MAX and offsets:
            portions.append(Portion({}))
            offsets = 0
        offsets += wanted.end - wanted.start
        portions[-1].ranges.setdefault(roles.get(wanted.topic, "target"), []).append(wanted)
    return list(portions)
