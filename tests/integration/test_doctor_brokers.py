"""Replicas that are missing or too few, on three real brokers, and what `delayd doctor` says.

Source: docs/operations.md, "The doctor".
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster, wait_for_brokers
from doctor_visits import visit, visit_until
from nodes import CLUSTER_KEY, running, wait_for

from delayd.bus.confluent import ConfluentBus
from delayd.cluster.topics import create_topics
from delayd.dev.cluster import LocalCluster
from delayd.dev.ports import pick_ports
from delayd.errors import ExitCode

pytestmark = pytest.mark.real

TRANSACTION_LOG = "__transaction_state"
AWAY = {"no-master"}
"""What is said of a cluster without nodes."""


@pytest.fixture
def on_three(three_brokers: LocalCluster, tmp_path: Path) -> Iterator[TestCluster]:
    yield make_cluster(three_brokers, tmp_path)


def with_copies(brokers: LocalCluster, folder: Path, copies: int) -> TestCluster:
    """A cluster with so many replicas."""
    name = f"few{pick_ports(1)[0]}"
    create_topics(
        ConfluentBus(brokers.bootstrap),
        cluster=name,
        cluster_key=CLUSTER_KEY,
        prefix=f"{name}-",
        replication_factor=copies,
    )
    return TestCluster(name, brokers.bootstrap, brokers.etcd_url, folder)


def test_nothing_is_wrong_on_three_brokers(on_three: TestCluster) -> None:
    nodes = [on_three.node(0), on_three.node(1)]
    with running(nodes):
        for node in nodes:
            node.wait_ready()
        wait_for(lambda: "one-node" not in visit(on_three).findings, "both are announced")
        found = visit(on_three)
    assert set(found.findings) == {"one-etcd"}, found.findings
    assert found.code == ExitCode.FINE


def test_topics_with_too_few_replicas(three_brokers: LocalCluster, tmp_path: Path) -> None:
    cluster = with_copies(three_brokers, tmp_path, 1)
    found = visit(cluster)
    assert found.wrong == {*AWAY, "few-replicas"}
    assert "has 1 replica on 3 brokers" in found.findings["few-replicas"]["what"]


def test_topics_without_a_replica_to_spare(three_brokers: LocalCluster, tmp_path: Path) -> None:
    cluster = with_copies(three_brokers, tmp_path, 2)
    cluster.alter_topic(cluster.dead, "min.insync.replicas", "2")
    wait_for(
        lambda: visit(cluster).wrong == {*AWAY, "few-replicas", "no-spare-replica"}, "both are said"
    )


def test_a_log_of_transactions_that_may_lose_a_marker(on_three: TestCluster) -> None:
    on_three.alter_topic(TRANSACTION_LOG, "min.insync.replicas", "1")
    try:
        found = visit_until(on_three, "transaction-log").findings["transaction-log"]
    finally:
        on_three.alter_topic(TRANSACTION_LOG, "min.insync.replicas", "2")
    assert found["mend"].endswith("--add-config min.insync.replicas=2")


def test_brokers_that_are_away(three_brokers: LocalCluster, on_three: TestCluster) -> None:
    three_brokers.stop("broker-1")
    try:
        assert "partition-down" not in visit_until(on_three, "under-replicated").findings
        # Two of its three replicas are needed.
        on_three.alter_topic(on_three.buffer, "min.insync.replicas", "3")
        down = visit_until(on_three, "partition-down").findings["partition-down"]
    finally:
        three_brokers.start("broker-1")
        wait_for_brokers(three_brokers)
    assert on_three.buffer in down["what"] and down["severity"] == "critical"
