"""The loader that reads everything once: topics into narrow tables that all judgements share.

The buffer comes first, because its requests name the targets. Payloads do not get further than the
hashes of them. Ends are fixed as late as possible, see spans.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from delayd.audit.bounds import Bounds, LoggedQuota, ShardCut
from delayd.audit.cut import parts_of
from delayd.audit.errors import AuditError
from delayd.audit.jobs import Jobs, jobs_at_once
from delayd.audit.judging.columns import table_of
from delayd.audit.judging.evidence import deliveries_of, letters_of, receipts_of
from delayd.audit.judging.frontiers import frontiers_of
from delayd.audit.judging.holds import orders_of
from delayd.audit.judging.ids import logged_of
from delayd.audit.judging.quotas import quotas_of, refused_by
from delayd.audit.judging.request_counts import RequestCounts, counts_of
from delayd.audit.judging.requests import barriers_of, requests_of
from delayd.audit.judging.retention import deserted_of, first_fired_of
from delayd.audit.reading.access import Access
from delayd.audit.reading.kafka import (
    HERE_OFFSETS_MAX,
    fetch_here,
    fetched,
    read_here,
    read_topics,
)
from delayd.audit.reading.progress import Progress
from delayd.audit.spans import (
    TIMEOUT_MS,
    Span,
    as_configured,
    listed,
    span_of,
    target_spans,
    trimmed_before_ms,
)
from delayd.audit.tables import DELIVERIES, FRONTIERS, LETTERS, LOGGED, RECEIPTS, REQUESTS
from delayd.bus import Bus, Cluster
from delayd.cluster.frontier_log import SeenFrontier
from delayd.runtime.clock import Clock
from replication.settings import Settings

Narrow: TypeAlias = Callable[[DataFrame], DataFrame]
"""Makes a table of records."""

TARGETS_MAX: Final = 100_000
"""Target topics that one audit can read: their names are held in memory."""


AT_ONCE: Final = 3
"""Jobs over small tables that run side by side: one of them waits as a rule."""


@dataclass(frozen=True, slots=True)
class TableStore:
    """The tables of an audit, each computed once: Spark keeps them in a folder, or small ones in
    memory."""

    spark: SparkSession
    folder: Path
    progress: Progress
    is_small: bool = False
    """Do all tables fit into memory? Then jobs run side by side too."""

    def keep(
        self, name: str, schema: StructType, rows: Callable[[], DataFrame], doing: str
    ) -> DataFrame:
        """Compute a table now, and show what is being done; return it as it is kept."""
        file = str(self.folder / f"{name}.parquet")
        with self.progress.stage(doing):
            table = rows().select(*schema.fieldNames())
            if self.is_small:
                kept = table.localCheckpoint(eager=False)
                # In one part nothing has to be shuffled: what must lie together does.
                return kept.coalesce(1) if kept.count() else table_of(self.spark, schema)
            table.write.mode("overwrite").parquet(file)
            return self.spark.read.schema(schema).parquet(file)

    def jobs(self) -> AbstractContextManager[Jobs]:
        """Return what runs the jobs of an audit."""
        return jobs_at_once(AT_ONCE if self.is_small else 1)


@dataclass(frozen=True, slots=True)
class Source:
    """The Kafka cluster to be read."""

    bus: Bus
    bootstrap: str
    clock: Clock
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client settings, as a node's `kafka`."""
    cluster_key: str | None = field(default=None, repr=False)
    """Proves the master's own records in the buffer; without it they are believed."""
    export_token: str | None = field(default=None, repr=False)
    """What nodes want to see before they export."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that were read, on disk, and how far they reach."""

    logged: DataFrame
    deliveries: DataFrame
    receipts: DataFrame
    letters: DataFrame
    frontiers: DataFrame
    bounds: Bounds
    read_ms: int
    """When the last end was fixed."""
    counts: tuple[tuple[str, int], ...]
    """(topic, offsets read), markers and aborted records among them"""
    compacted: tuple[str, ...]
    """Targets that are compacted: what is missing there proves nothing."""
    deserted: tuple[str, ...] = ()
    """Targets that were delivered to, and do not exist any more."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A small buffer that is read while Spark starts."""

    buffer: Span
    records: Future[pyarrow.Table | None]
    """None if they were too many bytes."""


@contextmanager
def reading_ahead(source: Source, seen: SeenFrontier, *, is_small: bool) -> Iterator[Ahead | None]:
    """Begin to read the buffer of an audit at the cut `seen`, if it is small."""
    with ThreadPoolExecutor(1, thread_name_prefix="audit-ahead") as pool:
        with closing(source.bus.cluster()) as kafka:
            buffer = _buffer_of(kafka, source.clock, seen.record.settings) if is_small else None
        if buffer is None or not 0 < buffer.offsets <= HERE_OFFSETS_MAX:
            yield None
            return
        yield Ahead(buffer, pool.submit(fetch_here, _access(source, seen), [buffer], "buffer"))


def _buffer_of(kafka: Cluster, clock: Clock, settings: Settings) -> Span:
    name = settings.buffer.name
    config = kafka.describe([name], TIMEOUT_MS)[name].config
    return as_configured(span_of(kafka, clock, name), config)


def _access(source: Source, seen: SeenFrontier) -> Access:
    return Access.of(seen.record, source.bootstrap, source.kafka, source.cluster_key)


def read_tables(
    store: TableStore, source: Source, seen: SeenFrontier, ahead: Ahead | None = None
) -> Tables:
    """Keep all tables of an audit at the cut `seen`, and return them."""
    store.folder.mkdir(parents=True, exist_ok=True)
    access = _access(source, seen).write(store.folder / "access.json")
    try:
        with store.jobs() as jobs:
            return _Reading(store, source, access, seen, jobs, ahead).read()
    finally:
        access.unlink()  # it holds secrets, and the folder may stay


@dataclass(frozen=True, slots=True)
class _Reading:
    _store: TableStore
    _source: Source
    _access: Path
    _seen: SeenFrontier
    _jobs: Jobs
    _ahead: Ahead | None

    def read(self) -> Tables:
        bus, clock = self._source.bus, self._source.clock
        settings = self._seen.record.settings
        with closing(bus.cluster()) as kafka:
            names = [settings.receipts.name, settings.dead.name]
            states = kafka.describe(names, TIMEOUT_MS)

            def span_of_own(name: str) -> Span:
                return as_configured(span_of(kafka, clock, name), states[name].config)

            ahead = self._ahead
            buffer = _buffer_of(kafka, clock, settings) if ahead is None else ahead.buffer
            rules = self._seen.record.rules
            narrowed = partial(requests_of, settings=settings, rules=rules)
            requests = self._table("requests", REQUESTS, [buffer], "buffer", narrowed)
            counts = self._counts(requests)
            requests, quotas = self._judged(requests, counts)
            logging = self._jobs.begin(lambda: self._logged(requests, settings, counts))
            named = sorted(counts.targets)
            targets = target_spans(bus, clock, named)
            receipts, letters = map(span_of_own, names)
            read_ms = clock.wall_ms()
            latest = listed(kafka.end_offsets(buffer.topic, TIMEOUT_MS, committed=False))
            frontier = up_to_the_cut(span_of(kafka, clock, settings.frontier.name), self._seen)
        tables = self._evidence(targets, receipts, letters, frontier)
        own = (buffer, receipts, letters)
        with self._store.progress.stage("finding what Kafka has deleted"):
            if is_trimmed_by_hand(buffer, tables["frontiers"], read_ms, settings.shards):
                own = (replace(buffer, retention_ms=None), receipts, letters)
            trimmed_ms = trimmed_of(self._source, own, targets, tables["deliveries"], read_ms)
        bounds = Bounds(
            settings=settings,
            frontier=self._seen.record.frontier,
            cuts=tuple(ShardCut(part.offset, part.append_ms) for part in parts_of(self._seen)),
            buffer_starts=buffer.starts,
            buffer_ends=buffer.ends,
            buffer_latest=latest,
            trimmed_ms=trimmed_ms,
            target_partitions={span.topic: span.partitions for span in targets},
            proofs_checked=self._source.cluster_key is not None,
            named_barriers=rules.barriers,
            logged_barriers=barriers_of(requests) if counts.switches else (),
            orders=orders_of(requests) if counts.orders else (),
            quotas=quotas,
            is_any_timed=counts.with_late > 0,
        )
        logged = logging.result()
        deserted = self._deserted(logged, named, bounds)
        gone_ms = dict.fromkeys(deserted, (read_ms,))
        return Tables(
            logged=logged,
            bounds=replace(bounds, trimmed_ms={**trimmed_ms, **gone_ms}),
            read_ms=read_ms,
            counts=tuple((span.topic, span.offsets) for span in (*own, *targets, frontier)),
            compacted=tuple(span.topic for span in targets if span.is_compacted),
            deserted=deserted,
            **tables,
        )

    def _judged(
        self, requests: DataFrame, counts: RequestCounts
    ) -> tuple[DataFrame, tuple[LoggedQuota, ...]]:
        """Return the requests, without those that are refused for full targets, and what says so of
        these."""
        quotas = quotas_of(requests) if counts.quotas else ()
        if not quotas:
            return requests, ()
        what = ("judged", REQUESTS, lambda: refused_by(requests, quotas), "finding what was full")
        return self._store.keep(*what), quotas

    def _logged(self, requests: DataFrame, settings: Settings, counts: RequestCounts) -> DataFrame:
        return self._store.keep(
            "logged", LOGGED, lambda: logged_of(requests, settings, counts), "making logged"
        )

    def _evidence(
        self, targets: Sequence[Span], receipts: Span, letters: Span, frontier: Span
    ) -> dict[str, DataFrame]:
        """Return the tables of what came out, by their names in Tables."""
        frontiers = partial(
            frontiers_of,
            shards=self._seen.record.settings.shards,
            may_be_resharded=frontier.partitions > 1,
        )
        wanted: dict[str, tuple[StructType, Sequence[Span], str, Narrow]] = {
            "deliveries": (DELIVERIES, targets, "target", deliveries_of),
            "receipts": (RECEIPTS, [receipts], "receipts", receipts_of),
            "letters": (LETTERS, [letters], "dead", letters_of),
            "frontiers": (FRONTIERS, [frontier], "frontier", frontiers),
        }
        begun = {
            name: self._jobs.begin(partial(self._table, name, *how)) for name, how in wanted.items()
        }
        return {name: made.result() for name, made in begun.items()}

    def _counts(self, requests: DataFrame) -> RequestCounts:
        with self._store.progress.stage("finding the targets"):
            counts = counts_of(requests, TARGETS_MAX)
        if counts is None:
            raise AuditError(
                f"the requests name more than {TARGETS_MAX} targets", remedy="tell us of your case"
            )
        return counts

    def _deserted(self, logged: DataFrame, named: Sequence[str], bounds: Bounds) -> tuple[str, ...]:
        """Return the targets among those named that were delivered to, and are gone."""
        missing = sorted(set(named) - bounds.target_partitions.keys())
        if not missing:
            return ()
        with self._store.progress.stage("looking for deleted targets"):
            return tuple(
                sorted(row.topic for row in deserted_of(logged, missing, bounds).collect())
            )

    def _table(
        self,
        name: str,
        schema: StructType,
        spans: Sequence[Span],
        role: str,
        narrowed: Narrow,
    ) -> DataFrame:
        """Return a table made of topics, on disk."""
        spans = [span for span in spans if span.starts != span.ends]
        if not spans:
            return table_of(self._store.spark, schema)
        what = spans[0].topic if len(spans) == 1 else f"{len(spans)} {role}s"
        return self._store.keep(
            name, schema, lambda: narrowed(self._records(spans, role)), f"reading {what}"
        )

    def _records(self, spans: Sequence[Span], role: str) -> DataFrame:
        spark, access = self._store.spark, self._access
        records = None
        if role == "buffer" and self._ahead is not None:
            table = self._ahead.records.result()
            records = None if table is None else fetched(spark, table)
        elif self._store.is_small and sum(span.offsets for span in spans) <= HERE_OFFSETS_MAX:
            records = read_here(spark, access, spans, role)
        return read_topics(spark, access, spans, role) if records is None else records


def up_to_the_cut(frontier: Span, seen: SeenFrontier) -> Span:
    """Return the histories that end with the cut: what steps did later is not judged."""
    parts = parts_of(seen)
    ends = [
        min(end, parts[partition].offset + 1) if partition < len(parts) else 0
        for partition, end in enumerate(frontier.ends)
    ]
    starts = [min(start, end) for start, end in zip(frontier.starts, ends, strict=True)]
    return replace(frontier, starts=tuple(starts), ends=tuple(ends))


def is_trimmed_by_hand(buffer: Span, frontiers: DataFrame, read_ms: int, shards: int = 1) -> bool:
    """Return whether records of the buffer are gone that were too young for its retention: a
    frontier that is younger than that had not passed them yet."""
    cut_short = [number for number, start in enumerate(buffer.starts) if start > 0]
    if buffer.retention_ms is None or not cut_short:
        return False
    young = frontiers.where(
        F.col("flaw").isNull() & (F.col("append_ms") > read_ms - buffer.retention_ms)
    )

    def passed_of(partition: int) -> Column:
        offset = F.get("offsets", F.lit(partition))
        is_of_shard = F.col("shard") == partition % shards
        return F.min(F.when(is_of_shard, offset)).alias(str(partition))

    passed = young.select(*map(passed_of, cut_short)).first()
    return passed is not None and any(
        passed[str(number)] is not None and passed[str(number)] < buffer.starts[number]
        for number in cut_short
    )


def trimmed_of(
    source: Source,
    own: Sequence[Span],
    targets: Sequence[Span],
    deliveries: DataFrame,
    read_ms: int,
) -> dict[str, tuple[int, ...]]:
    """Return `Bounds.trimmed_ms` of delayd's own topics and of targets."""
    first_ms: dict[str, dict[int, int]] = {
        span.topic: {}
        for span in targets
        if not span.is_append_time and not span.is_compacted and any(span.starts)
    }
    if first_ms:
        # Timestamps there are the producers' own, and others may write there too, with any time.
        for row in first_fired_of(deliveries).collect():
            if row.topic in first_ms:
                first_ms[row.topic][row.partition] = row.fired_ms
    bounds_ms = {
        span.topic: trimmed_before_ms(
            source.bus, source.clock, span, read_ms, first_ms.get(span.topic)
        )
        for span in (*own, *targets)
    }
    return {topic: before_ms for topic, before_ms in bounds_ms.items() if before_ms is not None}
