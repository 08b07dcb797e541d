"""What all tests share: one real Kafka, one real etcd and one Spark per session, started when first
asked for.

Missing real parts fail the test that needs them; they do not skip it.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from clusters import TestCluster, make_cluster
from one_node import Maker, nodes_in
from xdist.scheduler import LoadFileScheduling

from delayd.audit.reading.session import FOR_FEW, open_session
from delayd.dev import startup, supervision
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions
from delayd.wheel import hours
from delayd.wheel.storage import Wheel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NICENESS_OF_SPARK = 10
LONGEST = ("test_chaos_runs", "test_guarded_nodes")
"""Files of tests with real parts that a run begins with, so that none of them is its end."""

# A machine with other work can stand still for long: clusters of tests may take their time.
startup.MASTER_TIMEOUT_S = supervision.ANSWER_TIMEOUT_S = 300.0

# A slow example is a busy machine, not a defect.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of single folders: pytest knows them only from here, wherever it is called."""
    parser.addoption("--rewrite", action="store_true", default=False, help="write transcripts anew")
    parser.addoption("--seed", type=int, default=None, help="simulate this seed only")
    parser.addoption("--full", action="store_true", default=False, help="loads at full size")
    parser.addoption("--defects", default="", help="with --full: these alone, name,name")


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a worker one file at a time, and all files that share a Spark to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "spark" if _runs_spark(Path(file)) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """What `--dist loadgroup` means here."""
    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: Spark, then the files of `LONGEST`, then those with tests that
    are marked as long."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(
        key=lambda item: (
            not _runs_spark(item.path),
            item.path.stem not in LONGEST,
            item.path not in long,
        )
    )


def _runs_spark(path: Path) -> bool:
    if path.parent.name != "integration":
        return path.parent.name == "audit"
    return path.name.startswith(("test_audit", "test_demo")) and path.stem != "test_audit_page"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    """Makes nodes with these targets."""
    with nodes_in(tmp_path) as make_node:
        yield make_node


@pytest.fixture
def wheel(tmp_path: Path) -> Iterator[Wheel]:
    """An empty wheel, for two partitions."""
    made = Wheel.open(tmp_path, partitions=2)
    yield made
    made.close()


@pytest.fixture
def dense_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours are split, however little is in them."""
    monkeypatch.setattr(hours, "SPARSE_BYTES_MAX", 0)


@pytest.hookimpl(tryfirst=True)  # before it starts anything
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests beside it watch the time: Spark takes what they leave."""
    beside = "PYTEST_XDIST_WORKER" in os.environ
    if beside and _runs_spark(item.path) and os.nice(0) < NICENESS_OF_SPARK:
        os.nice(NICENESS_OF_SPARK)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the browser that saw the pages: fonts and versions differ from machine to machine."""
    reports = (report for kind in terminalreporter.stats.values() for report in kind)
    properties = (pair for each in reports for pair in getattr(each, "user_properties", ()))
    for browser in sorted({value for name, value in properties if name == "browser"}):
        terminalreporter.write_line(f"Pages were seen by {browser}.")


@pytest.fixture(scope="session")
def kafka_and_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Kafka with one broker and etcd, no nodes, no topics: `.bootstrap` and `.etcd_url`.

    It is shared: a test uses topics, groups and cluster names of its own, and kills nothing.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it is torn down
    try:
        with LocalCluster(
            tmp_path_factory.mktemp("kafka-and-etcd"), ClusterOptions(nodes=0)
        ) as cluster:
            yield cluster
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def cluster(kafka_and_etcd: LocalCluster, tmp_path: Path) -> TestCluster:
    """A delayd cluster of the test's own, without nodes."""
    return make_cluster(kafka_and_etcd, tmp_path)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A small Spark, which takes longer to start than most tests to run: a process has one."""
    with open_session(
        tmp_path_factory.mktemp("spark"),
        name="delayd tests",
        master="local[2]",
        driver_memory="1g",
        settings=FOR_FEW,
    ) as session:
        yield session
