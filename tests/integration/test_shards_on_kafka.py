"""Clusters with several shards, on real Kafka and etcd: nodes die and hand over, the independent
witness counts.

Source: docs/design/shards.md.
"""

import signal
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from nodes import master_of, running, wait_for
from test_failover import batch_on, kill, wait_due, watched

from delayd.bus.confluent import ConfluentBus
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.topics import last_frontier
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

SHARDS = 3


@pytest.fixture
def sharded(kafka_and_etcd: LocalCluster, tmp_path: Path) -> TestCluster:
    return make_cluster(kafka_and_etcd, tmp_path, partitions=2 * SHARDS, shards=SHARDS)


def newest(cluster: TestCluster) -> SeenFrontier:
    """The joint frontier, with the newest of each shard."""
    seen = last_frontier(ConfluentBus(cluster.bootstrap), f"{cluster.name}-frontier", 20_000)
    assert seen is not None and len(seen.parts) == SHARDS
    return seen


def owners(cluster: TestCluster) -> list[str]:
    """Who wrote the last step of each shard."""
    return [part.record.owner.partition("/")[0] for part in newest(cluster).parts]


def test_a_killed_node_leaves_its_shards_to_others_and_nothing_is_lost_or_doubled(
    sharded: TestCluster,
) -> None:
    nodes = [sharded.node(number) for number in range(2)]
    with running(nodes):
        batch = batch_on(tuple(sharded.target(name) for name in "abcd"), 6_000, 8_000)
        with watched(sharded, batch) as witness:
            wait_due(batch, 0.3)
            killed = master_of(nodes)
            kill(killed, witness)
            [left] = [node for node in nodes if node is not killed]
            wait_for(lambda: set(owners(sharded)) == {left.name}, "it leads all shards")
            wait_due(batch, 0.7)
            killed.start()
        assert min(part.record.frontier.step for part in newest(sharded).parts) > 3
        delivered = [part.record.frontier.term for part in newest(sharded).parts]
        assert min(delivered) >= 1


def test_sigterm_hands_all_shards_over(sharded: TestCluster) -> None:
    nodes = [sharded.node(number, lease_ttl_s=60) for number in range(2)]
    with running(nodes):
        batch = batch_on((sharded.target("a"),), 3_000, 6_000)
        with watched(sharded, batch):
            wait_due(batch, 0.3)
            leaving = master_of(nodes)
            leaving.signal(signal.SIGTERM)
            assert leaving.wait_exit() == 0, leaving.log
            [left] = [node for node in nodes if node is not leaving]
            wait_for(lambda: set(owners(sharded)) == {left.name}, "it leads all shards")
