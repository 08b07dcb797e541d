"""`delayd shards set` on real Kafka and etcd: under load, killed half-way, and back again.

Source: docs/design/shards.md, "More or fewer".
"""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, HANGS_S, delayd_in_process, running, wait_for
from test_audit import audit
from test_failover import batch_on, wait_due, watched

from delayd.bus.confluent import ConfluentBus
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.topics import last_frontier
from delayd.dev.cluster import LocalCluster
from delayd.errors import ShardsChangedError

pytestmark = pytest.mark.real

PARTITIONS = 4
TIMEOUT_MS = 20_000
RUNS_MAX = 5


@pytest.fixture
def cluster(kafka_and_etcd: LocalCluster, tmp_path: Path) -> TestCluster:
    return make_cluster(kafka_and_etcd, tmp_path, partitions=PARTITIONS)


def newest(cluster: TestCluster) -> SeenFrontier:
    """The joint frontier."""
    seen = last_frontier(ConfluentBus(cluster.bootstrap), f"{cluster.name}-frontier", TIMEOUT_MS)
    assert seen is not None
    return seen


def set_shards(cluster: TestCluster, shards: int) -> int:
    """Run the command; return how many there are then. On a busy machine shards may come to rest
    too late: then all go on as before, and it is run again."""
    for _ in range(RUNS_MAX):
        done = delayd_in_process(*words(cluster, shards))
        if done.returncode == 0:
            return int(json.loads(done.stdout)["shards"])
        assert "did not come to rest" in done.stderr or "unreachable" in done.stderr, done.stderr
    raise AssertionError(done.stderr)


def words(cluster: TestCluster, shards: int) -> list[str]:
    where = ["--bootstrap", cluster.bootstrap, "--cluster", cluster.name]
    return ["shards", "set", str(shards), *where, "--prefix", f"{cluster.name}-", "--json"]


def wait_led(cluster: TestCluster, shards: int) -> None:
    """Wait until a master of each of so many shards has made a step."""

    def is_led() -> bool:
        try:
            seen = newest(cluster)
        except ShardsChangedError:  # A node that found shards closed may be at it.
            return False
        parts = seen.parts or (seen,)
        return len(parts) == shards and all("/" in part.record.owner for part in parts)

    wait_for(is_led, f"{shards} shards have masters")


def kill_half_way(cluster: TestCluster, shards: int, after_s: float) -> None:
    """Run the command in a process of its own, and kill it; it may be done by then."""
    command = [sys.executable, "-m", "delayd", *words(cluster, shards)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        try:
            run.wait(after_s)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)


def change_under_load(cluster: TestCluster, numbers: list[int], *, seed: int, count: int) -> None:
    """Change the shards to each of these numbers, every second time with a run that is killed
    before, and every third time while a node is killed; everything comes out once, and the audit
    finds nothing."""
    chance = random.Random(seed)
    nodes = [cluster.node(number) for number in range(2)]
    with running(nodes), cluster.client() as client:
        targets = tuple(cluster.target(name) for name in "abcd")
        later = CLOCK.wall_ms() + 3_600_000
        ids = [f"id-{number}" for number in range(40)]
        for id in ids:
            client.schedule(targets[0], b"pending", at=later, id=id)
        batch = batch_on(targets, count, 6_000 * len(numbers))
        with watched(cluster, batch):
            wait_due(batch, 0.05)
            for turn, shards in enumerate(numbers):
                if turn % 2:
                    kill_half_way(cluster, shards, chance.uniform(0.5, 5))
                killed = chance.choice(nodes) if turn % 3 == 2 else None
                if killed is not None:
                    killed.kill()
                assert set_shards(cluster, shards) == shards
                if killed is not None:
                    killed.start()
                wait_led(cluster, shards)
                told = client.cancel(ids[turn], timeout_ms=HANGS_S * 1000)
                assert told.verdict == "cancelled"
        assert set_shards(cluster, numbers[-1]) == numbers[-1], "a second run finds nothing to do"
        code, report = audit(cluster, "--nodes", "2")
        assert (code, report["found"]) == (0, {}), report["examples"]
        assert report["delivered"] == count
        assert report["cancelled"] == len(numbers)
        assert report["pending"] == len(ids) - len(numbers)
        for node in nodes:
            assert "node_begins_anew" in node.log


def test_shards_become_more_and_fewer_under_load(cluster: TestCluster) -> None:
    """Rules: resharded"""
    change_under_load(cluster, [2, 4, 1], seed=1, count=6_000)


@pytest.mark.rehearsal
def test_shards_become_more_and_fewer_twenty_times(cluster: TestCluster) -> None:
    numbers = [2, 4, 2, 1, 4] * 4
    change_under_load(cluster, numbers, seed=2, count=40_000)
