"""A cluster that the release before has run is taken over by this one, and given back.

The release before is a commit of this repository: its code, in its own tree, creates the topics and
runs the first nodes. Under a load of everything at once (mixed_load.py) all nodes are killed with
kill -9, and this code starts on their data directories; later the same the other way round. So
frames, catalogue, records, headers, topics and keys must be the same in both. In a rolling restart
nodes of both run side by side, until the rules are switched: then the release before is refused.
"""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from mixed_load import Stage, under_load
from nodes import CLOCK, CLUSTER_KEY, NodeProcess, master_of, node_group
from releases import ROOT, Code, create_cluster, release_before
from standing_spark import audit

from chaos.workload import SHARES
from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode
from replication.settings import RULES_VERSION

pytestmark = pytest.mark.real

AHEAD = {**SHARES, "plain": 20, "ahead": 14}
"""Many are scheduled long before they are due, and so are pending when the nodes change."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The release before."""
    return release_before(tmp_path_factory.mktemp("before"))


def change_all(stage: Stage, start: Callable[[NodeProcess], None], verify: Code) -> int:
    """Kill every node with kill -9, and start another version on the data directories, one of which
    a version verifies. Return the Unix ms at which no node ran."""
    first, second = stage.nodes
    for node in stage.nodes:
        node.kill()
    changed_ms = CLOCK.wall_ms()
    log_bytes = len(first.log)
    start(first)
    verify.delayd("wheel", "verify", str(second.data))
    start(second)
    assert master_of(stage.nodes).status()["term"] > 1
    started = re.search(r'node_started .*ingested="\[(.*)\]"', first.log[log_bytes:])
    assert started is not None, first.log[log_bytes:]
    assert all(map(int, started[1].split(","))), "it went on where the other version had stopped"
    return changed_ms


def delivered_across(stage: Stage, changed_ms: int) -> int:
    """Return how many messages nodes of one version took in and those of the other delivered."""
    asked_ms = {request.place: request.append_ms for request in stage.evidence.requests}
    return sum(
        asked_ms[str(record.header("delayd-source"))] < changed_ms < record.append_ms
        for record in stage.evidence.delivered
    )


def test_nodes_of_this_release_take_over_from_the_one_before_and_hand_back(
    before: Code, kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    now = Code(ROOT)
    cluster = create_cluster(before, kafka_and_etcd, tmp_path)
    nodes = [cluster.node(number) for number in range(2)]
    with under_load(cluster, nodes, start=before.start, shares=AHEAD) as stage:
        stage.wait(0.3)
        to_now_ms = change_all(stage, now.start, verify=now)
        stage.wait(0.75)
        to_before_ms = change_all(stage, before.start, verify=before)
    for changed_ms in (to_now_ms, to_before_ms):
        assert delivered_across(stage, changed_ms) > 100
    now.delayd("wheel", "verify", str(nodes[0].data))


def restart(node: NodeProcess, start: Callable[[NodeProcess], None]) -> None:
    """End a node as `docs/operations.md`, Rolling restart, says, and start another version."""
    node.signal(signal.SIGTERM)
    assert node.wait_exit() == ExitCode.FINE, node.log[-3000:]
    start(node)
    node.wait_ready()


@pytest.mark.rehearsal
def test_releases_run_side_by_side_until_the_rules_are_switched(
    before: Code, kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """docs/operations.md, Upgrade: there, back, there again; then for good."""
    now = Code(ROOT)
    cluster = create_cluster(before, kafka_and_etcd, tmp_path)
    nodes = [cluster.node(number) for number in range(2)]
    first, second = nodes
    with under_load(cluster, nodes, start=before.start, shares=AHEAD) as stage:
        for share, node, start in (
            (0.1, first, now.start),
            (0.3, second, now.start),
            (0.5, second, before.start),
            (0.7, first, before.start),
            (0.8, second, now.start),
        ):
            stage.wait(share)
            restart(node, start)
    where = ("--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd)
    named = ("--cluster", cluster.name, "--prefix", f"{cluster.name}-")
    switch = ("upgrade", "rules", "--json", *where, *named, "--cluster-key", CLUSTER_KEY)
    with node_group(nodes):
        before.start(first)
        now.start(second)
        for node in nodes:
            node.wait_ready()
        refused = now.python("-m", "delayd.commands.cli", *switch)
        assert refused.returncode == ExitCode.PROBLEM
        assert (
            f"{first.name} do not say that they know rules version {RULES_VERSION}"
            in refused.stderr
        )
        restart(first, now.start)
        assert json.loads(now.delayd(*switch))["partitions"] == [0, 1, 2]
        assert json.loads(now.delayd(*switch))["partitions"] == []
        restart(second, now.start)
        told = audit("--json", *where, *named, "--cluster-key", CLUSTER_KEY)
        assert json.loads(told.stdout)["verdict"] == "ok", told
        first.signal(signal.SIGTERM)
        assert first.wait_exit() == ExitCode.FINE
        before.start(first)
        assert first.wait_exit() == ExitCode.PROBLEM
        assert "unknown frontier format 3" in first.log
        assert second.is_master() or master_of([second])
