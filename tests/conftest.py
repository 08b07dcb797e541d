"""What all tests share: one real Kafka, one real etcd, three brokers and one Spark per session,
started when first asked for.

Missing real parts fail the test that needs them; they do not skip it.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from checked_out import revision
from clusters import TestCluster, make_cluster
from native_library import library_in
from one_node import Maker, nodes_in
from shares import left_out, slow_tests
from xdist.scheduler import LoadFileScheduling

from delayd.audit.reading.session import FOR_FEW, open_session
from delayd.dev import startup, supervision
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions
from delayd.runtime import native
from delayd.wheel import hours
from delayd.wheel.storage import Wheel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NICENESS_OF_SPARK = 10
LONGEST = (
    *("test_chaos_runs", "test_audit_follow", "test_demo", "test_guarded_nodes", "test_fetch"),
    *("test_failover", "test_audit", "test_full_disk", "test_heavy_batches", "test_comparing"),
    *("test_version_change", "test_backup", "test_recover_frontier", "test_guides", "test_outbox"),
    *("test_clients", "test_importing"),
)
"""Files of tests with real parts that take half a minute and more. A run begins with them, so that
none of them is its end."""

ON_THREE_BROKERS = (
    "test_broken_targets",
    "test_bus_brokers",
    "test_doctor_brokers",
    "test_zombie_leader",
)

SLOW = slow_tests()

_three_brokers: list[LocalCluster] = []

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
    shares = "of so many shares of what takes long, the one that the commit draws"
    parser.addoption("--shares", type=int, default=1, help=shares)


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a worker one file at a time, and all files that share a Spark, or three brokers, to one
    of them."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if _runs_spark(Path(file)):
            return "spark"
        return "three brokers" if Path(file).stem in ON_THREE_BROKERS else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """What `--dist loadgroup` means here."""
    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what the inner loop leaves out."""
    if item.nodeid.partition("[")[0] in SLOW:
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the commit does not draw. Begin with what takes longest: Spark, then the files
    of `LONGEST` and those on three brokers, then those with tests that are marked as long."""
    _leave_to_others(config, items)
    long = {item.path for item in items if _is_long(item)}
    items.sort(
        key=lambda item: (
            not _runs_spark(item.path),
            item.path.stem not in (*LONGEST, *ON_THREE_BROKERS),
            item.path not in long,
        )
    )


def _leave_to_others(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.shares < 2:
        return
    long = {item.path.stem for item in items if _is_long(item)}
    files, of_long = left_out(long, config.option.shares, revision())
    left = [
        item
        for item in items
        if item.path.stem in files or (item.path.stem in of_long and _is_long(item))
    ]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _runs_spark(path: Path) -> bool:
    in_folder = path.parts[-3:-1] == ("tests", "audit")
    return in_folder or path.stem in ("test_audit_defects", "test_audit_reading")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    """Makes nodes with these targets."""
    with nodes_in(tmp_path) as make_node:
        yield make_node


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> native.Library:
    """The native library, where there is a compiler."""
    built = library_in(tmp_path_factory.mktemp("native"))
    if built is None:
        pytest.skip("no C compiler is there: delayd runs in Python, which the other tests test")
    return built


@pytest.fixture(scope="module", params=["native", "Python"])
def either_path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test by both paths."""
    chosen = request.getfixturevalue("library") if request.param == "native" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", chosen)
        yield


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


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> LocalCluster:
    """Kafka with three brokers, and etcd. A test may kill and freeze the brokers, and leaves all of
    them up (`wait_for_brokers`)."""
    if not _three_brokers:
        cluster = LocalCluster(
            tmp_path_factory.mktemp("three-brokers"), ClusterOptions(nodes=0, brokers=3)
        )
        cluster.up()
        _three_brokers.append(cluster)
    return _three_brokers[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """End the three brokers behind the last test that uses them: they take much for nothing."""
    yield
    if nextitem is None or nextitem.path.stem not in ON_THREE_BROKERS:
        pytest_unconfigure()


def pytest_unconfigure() -> None:
    """End them also if the run was interrupted."""
    while _three_brokers:
        _three_brokers.pop().down()


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
