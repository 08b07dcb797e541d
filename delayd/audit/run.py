"""One audit from the cut to the report. Everything else is a part of this.

    take the cut  ->  read topics into tables  ->  judge  ->  report

Nodes export while topics are read. What is found wrong ends in one table of findings, of which
the report keeps counts and examples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow
import pyarrow.parquet
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from delayd import __version__
from delayd.audit.bounds import Bounds
from delayd.audit.cut import Cut, Export, Exporting, NodeAddress
from delayd.audit.errors import AuditError, refuse_at_least_once
from delayd.audit.judging.delivery import judge_delivery
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.figures import travel_of
from delayd.audit.judging.frontiers import STRAY, judge_frontier
from delayd.audit.judging.history import history_of
from delayd.audit.judging.links import links_of
from delayd.audit.judging.messages import judge_messages
from delayd.audit.judging.order import judge_order
from delayd.audit.judging.replicas import NODES_MAX, expected_pending, judge_replicas
from delayd.audit.judging.retention import unproven_of
from delayd.audit.judging.verdicts import judge_verdicts, marks_of
from delayd.audit.notes import NOTES_MAX, Unproven, notes_of
from delayd.audit.reading.progress import Progress
from delayd.audit.reading.session import FOR_FEW, FOR_LITTLE, open_session
from delayd.audit.report import EXAMPLES_MAX, CutInfo, Fates, Finding, NodeState, Report, Travel
from delayd.audit.statistics import figures_of, heat_cells
from delayd.audit.table_loader import Source, Tables, TableStore, read_tables
from delayd.audit.tables import FINDINGS, MESSAGES, PENDING
from delayd.cluster.key_checks import check_keys
from delayd.cluster.topics import load_settings

TIMEOUT_MS: Final = 15_000
PROBLEM_CHARS_MAX: Final = 500

OVERDUE_MS: Final = 60_000
"""What is pending so long after it was due is told."""

FEW_MAX: Final = 25_000
LITTLE_MAX: Final = 50_000
"""So many offsets of the buffer are few, or little: see session.FOR_FEW and FOR_LITTLE."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The options of an audit. `work` None: a folder that is removed afterwards. `at_ms`: also
    report what was pending then."""

    cluster: str = "delayd"
    prefix: str = "delayd-"
    master: str = "local[*]"
    memory: str = "2g"
    work: Path | None = None
    at_ms: int | None = None
    nodes: int | None = None
    """How many nodes there must be; None if nobody has said."""


def run(
    source: Source, nodes: Sequence[NodeAddress] | None, options: AuditOptions, progress: Progress
) -> Report:
    """Audit a cluster as it is now; `nodes` None: replicas are not compared, and a note says so.
    An empty list is a finding: a cluster has nodes.

    Raises AuditError and other DelaydErrors if it cannot be made.
    """
    if nodes is not None and len(nodes) > NODES_MAX:
        raise AuditError(
            f"{len(nodes)} nodes are known, and replicas of at most {NODES_MAX} can be compared",
            remedy="leave out --etcd (or --dir): all else is judged without them",
        )
    begun_ms = source.clock.monotonic_ms()
    with _folder(options.work) as folder:
        seen = load_settings(source.bus, options.cluster, options.prefix, TIMEOUT_MS)
        refuse_at_least_once(seen.record.settings)
        if source.cluster_key is not None:
            settings, clock = seen.record.settings, source.clock
            check_keys(source.bus, source.cluster_key, settings, clock, TIMEOUT_MS)
        with (
            Exporting(seen, nodes, folder / "exports", source.export_token) as exporting,
            open_session(
                folder / "spark",
                master=options.master,
                driver_memory=options.memory,
                settings=settings_for(sum(seen.record.frontier.offsets)),
            ) as spark,
            _spark_errors_told(folder / "spark"),
        ):
            store = TableStore(spark, folder / "tables", progress)
            tables = read_tables(store, source, seen)
            with progress.stage("waiting for the nodes' exports"):
                cut = exporting.finish()
            report = Judging(store, tables, cut, options).report()
    return replace(report, wall_ms=source.clock.monotonic_ms() - begun_ms)


def settings_for(offsets: int) -> Mapping[str, str] | None:
    """Return Spark's settings for a buffer of so many offsets."""
    if offsets <= FEW_MAX:
        return FOR_FEW
    return FOR_LITTLE if offsets <= LITTLE_MAX else None


@dataclass(frozen=True, slots=True)
class Judging:
    """The judgement of tables that were read, and of exports that were taken at the same cut."""

    _store: TableStore
    _tables: Tables
    _cut: Cut
    _options: AuditOptions

    def report(self) -> Report:
        """Judge everything, and return the report."""
        tables, bounds, seen = self._tables, self._tables.bounds, self._cut.seen
        nodes, pending = self._exports()
        messages = self._store.keep(
            "messages",
            MESSAGES,
            lambda: judge_messages(tables.logged, tables.deliveries, tables.letters, bounds),
            "judging messages",
        )
        expected = expected_pending(tables.logged, bounds)
        findings = self._findings(messages, expected, pending, nodes)
        found = self._counts(findings)
        fates, overdue = self._fates(messages)
        with self._store.progress.stage("working out the figures"):
            figures, requeued = figures_of(messages, tables.frontiers)
            heat = heat_cells(expected, pending, findings)
        return Report(
            cluster=bounds.settings.cluster,
            made_ms=tables.read_ms,
            wall_ms=0,
            version=__version__,
            cut=CutInfo(
                step=bounds.frontier.step,
                term=bounds.frontier.term,
                offset=seen.offset,
                append_ms=seen.append_ms,
                read_ms=tables.read_ms,
                records=tables.counts,
            ),
            fates=fates,
            marks=tuple(sorted(map(tuple, marks_of(tables.logged, tables.receipts).collect()))),
            found=found,
            examples=self._examples(findings, [fault for fault, _ in found]),
            nodes=nodes,
            **figures,
            heat=heat,
            notes=notes_of(
                tables,
                self._unproven(messages) if fates.unproven else (),
                strays=tables.frontiers.where(F.col("flaw") == STRAY).count(),
                compared=len(nodes),
                are_all_known=self._options.nodes is not None,
                overdue=overdue,
                last_step_ms=seen.append_ms,
                requeued=requeued,
            ),
            travel=self._travel(messages),
        )

    def _exports(self) -> tuple[tuple[NodeState, ...], DataFrame]:
        """Return the nodes as they answered, and what those that did hold."""
        nodes: list[NodeState] = []
        pending = self._store.spark.createDataFrame([], PENDING)
        for export in self._cut.exports:
            count, problem = None, export.problem
            if export.file is not None:
                count, problem = _count_of(export, export.file, self._tables.bounds)
            nodes.append(NodeState(export.node, export.admin, count, problem))
            if problem is None:
                rows = self._store.spark.read.parquet(str(export.file))
                rows = rows.withColumn("node", F.lit(export.node))
                pending = pending.unionByName(rows.select(*PENDING.fieldNames()))
        wanted = self._options.nodes or (1 if self._cut.is_compared else 0)
        missing = wanted - len(nodes)
        if missing > 0:
            nodes.append(NodeState("?", "", None, f"{missing} of {wanted} nodes are not known"))
        return tuple(nodes), pending

    def _findings(
        self,
        messages: DataFrame,
        expected: DataFrame,
        pending: DataFrame,
        nodes: Sequence[NodeState],
    ) -> DataFrame:
        """Return what all jobs find wrong."""
        tables, bounds = self._tables, self._tables.bounds
        logged, frontiers = tables.logged, tables.frontiers
        with self._store.progress.stage("following the frontier"):
            links = links_of(frontiers, bounds)
            history = history_of(links, bounds)
        # Called within their stages: some start jobs of their own.
        jobs: dict[str, Callable[[], DataFrame]] = {
            "delivery": lambda: judge_delivery(
                *(logged, messages, tables.deliveries, tables.letters, tables.receipts),
                *(frontiers, bounds),
            ),
            "verdicts": lambda: judge_verdicts(
                logged, messages, tables.receipts, frontiers, bounds
            ),
            "order": lambda: judge_order(logged, tables.deliveries, history, bounds),
            "frontier": lambda: judge_frontier(frontiers, links, history, logged, bounds),
        }
        if nodes:
            jobs["replicas"] = lambda: judge_replicas(expected, pending, nodes, bounds)
        found = [
            self._store.keep(f"findings-{job}", FINDINGS, judged, f"judging findings-{job}")
            for job, judged in jobs.items()
        ]
        return reduce(DataFrame.unionByName, found)

    def _counts(self, findings: DataFrame) -> tuple[tuple[str, int], ...]:
        with self._store.progress.stage("counting what is wrong"):
            counts = {
                row.fault: row["count"] for row in findings.groupBy("fault").count().collect()
            }
        return tuple((fault.slug, counts[fault.slug]) for fault in Fault if fault.slug in counts)

    def _examples(self, findings: DataFrame, faults: Sequence[str]) -> tuple[Finding, ...]:
        return tuple(
            Finding(**row.asDict())
            for fault in faults
            for row in findings.where(F.col("fault") == fault)
            .orderBy("source", "node", "offset")
            .limit(EXAMPLES_MAX)
            .collect()
        )

    def _fates(self, messages: DataFrame) -> tuple[Fates, int]:
        """Return the fates, and how many of the pending messages are overdue."""
        before_ms = self._tables.read_ms - OVERDUE_MS
        is_overdue = (F.col("fate") == "pending") & (F.col("rank_ms") < before_ms)
        counted = messages.groupBy("fate").agg(
            F.count("*").alias("count"), F.count_if(is_overdue).alias("overdue")
        )
        with self._store.progress.stage("counting fates"):
            rows = counted.collect()
        fates = Fates(**{row["fate"]: row["count"] for row in rows})
        return fates, sum(row["overdue"] for row in rows)

    def _unproven(self, messages: DataFrame) -> Sequence[Unproven]:
        with self._store.progress.stage("looking why messages are unproven"):
            counts = unproven_of(messages, self._tables.bounds).limit(NOTES_MAX + 1).collect()
        return [Unproven(*row) for row in counts]

    def _travel(self, messages: DataFrame) -> Travel | None:
        if self._options.at_ms is None:
            return None
        with self._store.progress.stage("travelling in time"):
            return travel_of(messages, self._options.at_ms)


def _count_of(export: Export, file: Path, bounds: Bounds) -> tuple[int | None, str | None]:
    """Return how many messages an export holds, or why it cannot be compared."""
    try:
        found = pyarrow.parquet.ParquetFile(file)
        said = found.metadata.metadata or {}
        step, node = int(said[b"delayd.step"]), said[b"delayd.node"].decode()
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        return None, f"its export is damaged: {error}"
    wanted = {field.name: field.type for field in to_arrow_schema(PENDING) if field.name != "node"}
    given = {field.name: field.type for field in found.schema_arrow}
    if given != wanted:
        return None, "its export has other columns: the node is of another version"
    if node != export.node:
        return None, f"{node!a} answered at {export.admin}: give each node its own admin_host"
    if step != bounds.frontier.step:
        return None, f"its export is of step {step}, not {bounds.frontier.step}"
    return int(found.metadata.num_rows), None


@contextmanager
def _spark_errors_told(folder: Path) -> Iterator[None]:
    """Raise Spark's errors as one sentence: its own texts are pages long."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        text = str(error)
        said = next((line for line in reversed(text.splitlines()) if "Error:" in line), text)
        raise AuditError(
            f"Spark failed: {' '.join(said.split())[:PROBLEM_CHARS_MAX]}",
            remedy=f"if it ran out of memory or disk, see --memory and --work; its log: {folder}",
        ) from error


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    """Yield the folder to work in; remove it if nobody chose it."""
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen
    else:
        with TemporaryDirectory(prefix="delayd-audit-", ignore_cleanup_errors=True) as made:
            yield Path(made)
