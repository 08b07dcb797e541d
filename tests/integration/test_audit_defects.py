"""The audit names what is wrong with a real cluster's topics and exports, and nothing else.

Defects (defects/) are planted in what a cluster has left behind: all at once, each in messages of
its own; and with `--full`, in 100,000 requests, also each alone (with `-s`, which shows a table of
them; `--defects` for some of them). Before that it finds nothing. A count without Spark
(cross_check.py) agrees with it each time.
Source: docs/design/audit.md.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from defects.catalogue import DELIVERY_DEFECTS, Plant
from defects.catalogue_claims import FRONTIER_DEFECTS, REPLICA_DEFECTS, VERDICT_DEFECTS
from defects.judging import Audit, check_findings
from defects.load import Stage, at_rest
from defects.operation import Expected, Operation
from defects.past import Past
from defects.surgery import Surgeon
from nodes import CLOCK, CLUSTER_KEY
from pyspark.sql import SparkSession
from rich.console import Console

from chaos.cross_check import WRONG, agree, cross_check
from delayd.audit.cut import Cut, Exporting, NodeAddress
from delayd.audit.judging.faults import Fault
from delayd.audit.reading.progress import Progress
from delayd.audit.reading.session import open_session
from delayd.audit.run import AuditOptions
from delayd.audit.table_loader import Source, Tables, TableStore
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.topics import load_settings
from delayd.dev.cluster import LocalCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(7_200)]

BROKER = "broker-1"
TIMEOUT_MS = 30_000
SMALL, SMALL_SPREAD_MS = 3_000, 18_000
FULL, FULL_SPREAD_MS = 100_000, 100_000

KEEP_COMPILED = {"spark.sql.codegen.cache.maxEntries": "5000"}
"""One audit after the other has the same plans."""

CATALOGUE: Mapping[str, Plant] = {
    **DELIVERY_DEFECTS,
    **VERDICT_DEFECTS,
    **REPLICA_DEFECTS,
    **FRONTIER_DEFECTS,
}
DEFECTS_MIN = 30
NOT_PLANTED = {"stale", "series", "local-time", "frontier-held", "frontier-quota"}
"""The load has no wishes, series, local times or pauses; tests/audit plants what is wrong with
them."""


@dataclass(slots=True)
class Scene:
    """A past, its cut, and a broker that is stopped and started to change what it holds."""

    brokers: LocalCluster
    prefix: str
    audit: Audit
    on: Operation

    def plant(self, plants: Iterable[Plant]) -> list[Expected]:
        """Have these defects and no others; returns what must be found."""
        self.brokers.stop(BROKER)
        self.on.undo()
        expected = [each for plant in plants for each in plant(self.on)]
        self.brokers.start(BROKER)
        return expected

    def check(self, tables: Tables, expected: Sequence[Expected]) -> None:
        """The audit finds exactly this, and the cross-check counts the same."""
        report, findings = self.audit.report(tables, self.on.absent)
        check_findings(findings, expected)
        planted = Counter(each.fault for each in expected)
        assert dict(report.found) == planted
        assert report.ok == (not expected)
        counts = cross_check(self.brokers.bootstrap, self.prefix, {0: report.cut.offset})
        assert {name: counts[name] for name in WRONG} == {name: planted[name] for name in WRONG}
        agree(report.to_json(), counts)


@contextlib.contextmanager
def scene(
    folder: Path,
    spark_for: contextlib.AbstractContextManager[SparkSession],
    *,
    requests: int,
    spread_ms: int,
) -> Iterator[Scene]:
    """A cluster with a past, cut, and its nodes gone."""
    with at_rest(folder, requests=requests, spread_ms=spread_ms) as stage:
        cut = take_cut(stage, folder / "exports")
        for node in stage.nodes:
            node.kill()
        bootstrap = stage.brokers.bootstrap
        source = Source(ConfluentBus(bootstrap), bootstrap, CLOCK, cluster_key=CLUSTER_KEY)
        on = Operation(
            Past(bootstrap, stage.prefix, stage.targets, cut.seen.offset),
            Surgeon(stage.brokers.directory / "data" / BROKER, folder / "kept"),
            {export.node: export.file for export in cut.exports if export.file is not None},
            folder / "kept-exports",
            set(),
        )
        options = AuditOptions(cluster=stage.cluster.name, prefix=stage.prefix)
        with spark_for as spark:
            store = TableStore(spark, folder / "tables", Progress(Console(quiet=True)))
            yield Scene(stage.brokers, stage.prefix, Audit(store, source, cut, options), on)


def take_cut(stage: Stage, folder: Path) -> Cut:
    """The newest frontier, and what every node holds at it."""
    bus = ConfluentBus(stage.brokers.bootstrap)
    seen = load_settings(bus, stage.cluster.name, stage.prefix, TIMEOUT_MS)
    nodes = [NodeAddress(node.name, f"127.0.0.1:{node.port}") for node in stage.nodes]
    with Exporting(seen, nodes, folder) as exporting:
        cut = exporting.finish()
    assert [export.problem for export in cut.exports] == [None] * len(nodes)
    return cut


def test_every_defect_is_found_by_its_name_and_nothing_else_is(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_full = bool(request.config.getoption("--full"))
    count, spread_ms = (FULL, FULL_SPREAD_MS) if is_full else (SMALL, SMALL_SPREAD_MS)
    spark = (
        open_session(
            tmp_path / "spark", master="local[2]", driver_memory="2g", settings=KEEP_COMPILED
        )
        if is_full
        else contextlib.nullcontext(request.getfixturevalue("spark"))
    )
    with scene(tmp_path, spark, requests=count, spread_ms=spread_ms) as at:
        assert len(at.on.past.buffer) >= count, "the load is too small"
        together = at.plant(CATALOGUE.values())
        at.check(at.audit.read("together"), together)
        planted = {each.fault for each in together}
        assert planted == {fault.slug for fault in Fault} - NOT_PLANTED
        assert len(CATALOGUE) >= DEFECTS_MIN
        if is_full:
            chosen = request.config.getoption("--defects").split(",")
            each_alone(at, chosen if chosen != [""] else list(CATALOGUE))


def each_alone(at: Scene, names: Sequence[str]) -> None:
    """Plant nothing, then one at a time, and print what was found and in how long; then say which
    failed. Only topics that were changed are read again."""
    at.plant([])
    clean = at.audit.read("clean")
    at.check(clean, [])
    wrong = {}
    for number, name in enumerate(names, 1):
        at.on.past.release()
        expected = at.plant([CATALOGUE[name]])
        begun_ms = CLOCK.monotonic_ms()
        try:
            at.check(at.audit.read_again(clean, at.on.surgeon.topics()), expected)
        except AssertionError as error:
            wrong[name] = str(error)
            print(f"{name}:\n{error}", flush=True)
        took_s = (CLOCK.monotonic_ms() - begun_ms) / 1000
        said = "WRONG" if name in wrong else ", ".join(each.fault for each in expected)
        print(f"{number:3}  {name:50} {said:20} {took_s:5.1f} s", flush=True)
    assert not wrong, "\n\n".join(f"{name}:\n{error}" for name, error in wrong.items())
