"""One audit from the cut to the report. Everything else is a part of this.

    take the cut  ->  read topics into tables  ->  judge  ->  report

Nodes export while topics are read. What is found wrong ends in one table of findings, of which
the report keeps counts and examples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow
import pyarrow.parquet
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from delayd import __version__
from delayd.audit.bounds import Bounds
from delayd.audit.cut import Cut, Export, Exporting, NodeAddress, parts_of
from delayd.audit.errors import AuditError, refuse_at_least_once, refuse_virtual
from delayd.audit.jobs import Jobs
from delayd.audit.judging.columns import table_of
from delayd.audit.judging.delivery import judge_delivery
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.figures import travel_of
from delayd.audit.judging.frontiers import STRAY, judge_frontier
from delayd.audit.judging.history import History, history_of
from delayd.audit.judging.links import links_of
from delayd.audit.judging.messages import judge_messages
from delayd.audit.judging.order import judge_order
from delayd.audit.judging.replicas import NODES_MAX, expected_pending, judge_replicas
from delayd.audit.judging.retention import unproven_of
from delayd.audit.judging.verdicts import judge_verdicts, marks_of
from delayd.audit.notes import NOTES_MAX, Unproven, notes_of
from delayd.audit.reading.progress import Progress
from delayd.audit.reading.session import FOR_FEW, FOR_LITTLE, open_session
from delayd.audit.report import (
    EXAMPLES_MAX,
    CutInfo,
    Fates,
    Finding,
    NodeState,
    Report,
    ShardInfo,
    Travel,
)
from delayd.audit.statistics import figures_of, heat_cells
from delayd.audit.table_loader import Source, Tables, TableStore, read_tables, reading_ahead
from delayd.audit.tables import FINDINGS, MESSAGES, PENDING
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.key_checks import check_keys
from delayd.cluster.topics import load_settings

TIMEOUT_MS: Final = 15_000
PROBLEM_CHARS_MAX: Final = 500

OVERDUE_MS: Final = 60_000
"""What is pending so long after it was due is told."""

FEW_MAX: Final = 40_000
LITTLE_MAX: Final = 150_000
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
        refuse_virtual(seen.record.settings)
        if source.cluster_key is not None:
            settings, clock = seen.record.settings, source.clock
            check_keys(source.bus, source.cluster_key, settings, clock, TIMEOUT_MS)
        fitting = settings_for(sum(seen.record.frontier.offsets))
        is_small = fitting is not None
        with (
            Exporting(seen, nodes, folder / "exports", source.export_token) as exporting,
            reading_ahead(source, seen, is_small=is_small) as ahead,
            open_session(
                folder / "spark",
                master=options.master,
                driver_memory=options.memory,
                settings=fitting,
            ) as spark,
            _spark_errors_told(folder / "spark"),
        ):
            store = TableStore(spark, folder / "tables", progress, is_small=is_small)
            tables = read_tables(store, source, seen, ahead)
            with progress.stage("waiting for the nodes' exports"):
                cut = exporting.finish()
            report, _ = Judging(store, tables, cut, options).report()
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

    def report(self) -> tuple[Report, DataFrame]:
        """Judge everything; return the report, and all findings, of which it has examples."""
        tables, bounds, seen = self._tables, self._tables.bounds, self._cut.seen
        nodes, pending = self._exports()
        expected = expected_pending(tables.logged, bounds)
        with self._store.jobs() as jobs:
            judged = jobs.begin(self._messages)
            finding = self._begin_findings(jobs, judged, expected, pending, nodes)
            fating = jobs.begin(self._fates, judged)
            figuring = jobs.begin(self._figures, judged)
            marking = jobs.begin(lambda: marks_of(tables.logged, tables.receipts).collect())
            straying = jobs.begin(tables.frontiers.where(F.col("flaw") == STRAY).count)
            findings = reduce(DataFrame.unionByName, [found.result() for found in finding])
            found = self._counts(findings)
            heating = jobs.begin(lambda: heat_cells(expected, pending, findings))
            examples = self._examples(findings, [fault for fault, _ in found])
            messages, (fates, overdue) = judged.result(), fating.result()
            (figures, requeued), heat = figuring.result(), heating.result()
        report = Report(
            cluster=bounds.settings.cluster,
            made_ms=tables.read_ms,
            wall_ms=0,
            version=__version__,
            cut=_info_of(seen, tables),
            fates=fates,
            marks=tuple(sorted(map(tuple, marking.result()))),
            found=found,
            examples=examples,
            nodes=nodes,
            **figures,
            heat=heat,
            notes=notes_of(
                tables,
                self._unproven(messages) if fates.unproven else (),
                strays=straying.result(),
                compared=len(nodes),
                are_all_known=self._options.nodes is not None,
                overdue=overdue,
                last_steps_ms=[part.append_ms for part in parts_of(seen)],
                requeued=requeued,
            ),
            travel=self._travel(messages),
        )
        return report, findings

    def _exports(self) -> tuple[tuple[NodeState, ...], DataFrame]:
        """Return the nodes as they answered, and what those that did hold."""
        nodes: list[NodeState] = []
        pending = table_of(self._store.spark, PENDING)
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

    def _messages(self) -> DataFrame:
        tables = self._tables
        return self._store.keep(
            "messages",
            MESSAGES,
            lambda: judge_messages(tables.logged, tables.deliveries, tables.letters, tables.bounds),
            "judging messages",
        )

    def _followed(self) -> tuple[DataFrame, History]:
        """Return the links of the frontier, and its history."""
        with self._store.progress.stage("following the frontier"):
            links = links_of(self._tables.frontiers, self._tables.bounds)
            return links, history_of(links, self._tables.bounds)

    def _begin_findings(
        self,
        jobs: Jobs,
        judged: "Future[DataFrame]",
        expected: DataFrame,
        pending: DataFrame,
        nodes: Sequence[NodeState],
    ) -> list["Future[DataFrame]"]:
        """Begin to find what is wrong."""
        tables, bounds = self._tables, self._tables.bounds
        logged, frontiers = tables.logged, tables.frontiers

        def begin(job: str, judge: Callable[..., DataFrame], *needs: "Future[Any]") -> None:
            def keep(*known: Any) -> DataFrame:
                # Called within its stage: some start jobs of their own.
                return self._store.keep(
                    f"findings-{job}", FINDINGS, lambda: judge(*known), f"judging findings-{job}"
                )

            begun.append(jobs.begin(keep, *needs))

        begun: list[Future[DataFrame]] = []
        followed = jobs.begin(self._followed)
        begin(
            "delivery",
            lambda messages: judge_delivery(
                *(logged, messages, tables.deliveries, tables.letters, tables.receipts),
                *(frontiers, bounds),
            ),
            judged,
        )
        begin(
            "verdicts",
            lambda messages: judge_verdicts(logged, messages, tables.receipts, frontiers, bounds),
            judged,
        )
        begin("order", lambda it: judge_order(logged, tables.deliveries, it[1], bounds), followed)
        begin(
            "frontier",
            lambda it: judge_frontier(*(frontiers, *it, logged, tables.deliveries, bounds)),
            followed,
        )
        if nodes:
            begin("replicas", lambda: judge_replicas(expected, pending, nodes, bounds))
        return begun

    def _figures(self, messages: DataFrame) -> tuple[dict[str, Any], int]:
        with self._store.progress.stage("working out the figures"):
            return figures_of(messages, self._tables.frontiers, self._tables.bounds.shards)

    def _counts(self, findings: DataFrame) -> tuple[tuple[str, int], ...]:
        with self._store.progress.stage("counting what is wrong"):
            counts = {
                row.fault: row["count"] for row in findings.groupBy("fault").count().collect()
            }
        return tuple((fault.slug, counts[fault.slug]) for fault in Fault if fault.slug in counts)

    def _examples(self, findings: DataFrame, faults: Sequence[str]) -> tuple[Finding, ...]:
        if not faults:
            return ()
        of_fault = Window.partitionBy("fault").orderBy("source", "node", "offset")
        first = findings.withColumn("number", F.row_number().over(of_fault)).where(
            F.col("number") <= EXAMPLES_MAX
        )
        rows = sorted(first.collect(), key=lambda row: (faults.index(row.fault), row.number))
        return tuple(Finding(*row[:-1]) for row in rows)

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


def _info_of(seen: SeenFrontier, tables: Tables) -> CutInfo:
    """Return the cut as a report has it."""
    frontier = seen.record.frontier
    last = max(parts_of(seen), key=lambda part: part.append_ms)
    each = [(part.record.frontier, part.offset, part.append_ms) for part in seen.parts]
    return CutInfo(
        step=frontier.step,
        term=frontier.term,
        offset=last.offset,
        append_ms=last.append_ms,
        read_ms=tables.read_ms,
        records=tables.counts,
        shards=tuple(ShardInfo(it.shard, it.step, it.term, *place) for it, *place in each),
    )


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
