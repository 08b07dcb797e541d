"""Clusters with several shards, on real Kafka and etcd: nodes die and hand over, the independent
witness counts.

Source: docs/design/shards.md.
"""

import json
import signal
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, HANGS_S, delayd_in_process, master_of, running, wait_for
from test_failover import batch_on, kill, wait_due, watched
from test_pauses_on_kafka import command
from topics_read import read_until

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


def test_answers_status_and_a_pause_are_those_of_all_shards(sharded: TestCluster) -> None:
    target = sharded.target("held", partitions=1)
    nodes = [sharded.node(number) for number in range(2)]
    with running(nodes), sharded.client() as client:
        hold = command(sharded, "pause", target, "--for", "1h", "--rate", "100")
        assert (hold["state"], hold["rate"]) == ("paused", 100)
        due_ms = CLOCK.wall_ms() + 1_000
        ids = [f"id-{number}" for number in range(60)]
        sent = [client.schedule_async(target, b"v", at=due_ms, id=id) for id in ids]
        partitions = {future.result(HANGS_S).source.partition("/")[0] for future in sent}
        assert len(partitions) == 2 * SHARDS, "all shards have some"
        cancelled = [client.cancel(id) for id in ids[:20]]
        assert {told.verdict for told in cancelled if told is not None} == {"cancelled"}
        wait_for(lambda: CLOCK.wall_ms() > due_ms + 1_000, "they are due")
        assert read_until(sharded.bootstrap, target, lambda _: True, timeout_s=1) == []
        held = newest(sharded).parts
        assert [part.record.holds[target].rate for part in held] == [34, 33, 33]
        hold = command(sharded, "resume", target)
        assert hold["state"] == "resuming"
        seen = read_until(sharded.bootstrap, target, lambda seen: len(seen) >= 40)
        assert sorted(record.header("delayd-id") for record in seen) == sorted(ids[20:])
        where = ("--bootstrap", sharded.bootstrap, "--etcd", sharded.etcd)
        named = ("--cluster", sharded.name, "--prefix", f"{sharded.name}-", "--json")
        shards = json.loads(delayd_in_process("status", *where, *named).stdout)["shards"]
        assert [shard["shard"] for shard in shards] == list(range(SHARDS))
        assert {shard["leader"] for shard in shards} <= {node.name for node in nodes}
