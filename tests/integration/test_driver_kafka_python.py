"""Nodes without librdkafka: they deliver, die and are succeeded like the others, and by the others.

The witness is kafka-python too, in a process of its own and through its public consumer, of which
the driver uses nothing. Clusters that are all of such nodes are in test_failover_mixed.py.
Source: docs/adr/0014-kafka-python-for-nodes.md.
"""

from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster, schedule
from nodes import master_of, node_group, wait_for
from test_failover import batch_on, finish, kill, wait_due

from delayd.dev.cluster import LocalCluster
from delayd.dev.witness import Witness

pytestmark = pytest.mark.real


@pytest.fixture
def cluster(kafka_and_etcd: LocalCluster, tmp_path: Path) -> TestCluster:
    """A delayd cluster without nodes."""
    return make_cluster(kafka_and_etcd, tmp_path)


@pytest.mark.parametrize(
    "first, second",
    [("kafka-python", "confluent"), ("confluent", "kafka-python")],
)
def test_a_master_killed_under_load_is_succeeded_whatever_their_drivers(
    cluster: TestCluster, first: str, second: str
) -> None:
    killed, successor = cluster.node(1, driver=first), cluster.node(2, driver=second)
    targets = (cluster.target("a"), cluster.target("b", partitions=1))
    with node_group([killed, successor]), cluster.client() as client:
        assert master_of([killed.start()]) is killed
        successor.start()
        wait_for(lambda: bool(successor.status().get("ready")), 30, "the other one is ready")
        batch = batch_on(targets, 6_000, 10_000)
        with Witness(cluster.bootstrap, batch, log=cluster.folder / "witness.log") as witness:
            schedule(client, batch)
            wait_due(batch, 0.4)
            kill(killed, witness)
            assert master_of([successor]) is successor
            killed.start()
            verdict = finish(witness, batch)
        assert [failover.counts for failover in verdict.failovers] == [True]
        wait_for(lambda: bool(killed.status().get("ready")), 30, "the killed one is ready again")
        assert killed.status()["ingested"] == successor.status()["ingested"]


def test_a_node_says_which_property_its_driver_cannot_keep(cluster: TestCluster) -> None:
    node = cluster.node(1, driver="kafka-python", kafka={"socket.nagle.disable": "true"})
    with node_group([node]):
        assert node.start().wait_exit() == 2
        assert "socket.nagle.disable" in node.log and "kafka-python" in node.log


def test_a_node_with_compression_delivers(cluster: TestCluster) -> None:
    node = cluster.node(1, driver="kafka-python", kafka={"compression.type": "lz4"})
    with node_group([node]), cluster.client() as client:
        master_of([node.start()])
        batch = batch_on((cluster.target("a"),), 500, 1_000, lead_ms=500)
        with Witness(cluster.bootstrap, batch, log=cluster.folder / "witness.log") as witness:
            schedule(client, batch)
            finish(witness, batch)
        assert "level=warning" not in node.log and "Traceback" not in node.log
