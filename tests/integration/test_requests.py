"""What bad targets, bursts, trims and kills do to requests, on a real node.

Not here: what comes of each kind of request (test_request_cases.py).
Source: docs/reference/requests.md.
"""

import signal
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from nodes import CLOCK, HANGS_S, master_of, node_group, running
from topics_read import read_until

from delayd.bus import Headers
from delayd.bus.confluent import ConfluentBus
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real


@pytest.mark.parametrize("driver", ["confluent", "kafka-python"])
def test_a_burst_to_a_target_that_takes_small_batches_arrives_and_holds_nobody_up(
    cluster: TestCluster, driver: str
) -> None:
    """Kafka judges batches, not records. Source: docs/design/frontier.md, "Targets"."""
    small = cluster.target("small", partitions=1, config={"max.message.bytes": "20000"})
    target = cluster.target("a")
    with running([cluster.node(0, driver=driver)]), cluster.client() as client:
        due = str(CLOCK.wall_ms() + 2_000)
        futures = [client.schedule_async(small, b"x" * 300, at=due) for _ in range(300)]
        for future in futures:
            future.result(HANGS_S)
        client.schedule(target, b"v", at=due)
        assert len(read_until(cluster.bootstrap, target, bool)) == 1
        seen = read_until(cluster.bootstrap, small, lambda seen: len(seen) >= 300)
    assert len({record.header("delayd-source") for record in seen}) == len(seen) == 300


def test_a_node_starts_again_after_a_trim_that_took_a_commit_marker(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """A user's transaction ends with a marker, which is read but is no record; retention may then
    move the start of the log beyond the last record. Source: docs/operations.md."""
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=1)
    target = cluster.target("a", partitions=1)
    node = cluster.node(0)
    user = ConfluentBus(cluster.bootstrap).transactional_producer(f"user-{cluster.name}")
    user.init_transactions(20_000)
    user.begin()
    headers: Headers = [("delayd-topic", target.encode()), ("delayd-due", b"0")]
    user.send(cluster.buffer, key=None, value=b"in a transaction", headers=headers)
    user.flush(20_000)
    user.commit(20_000)
    user.close()
    with node_group([node]):
        node.start()
        assert len(read_until(cluster.bootstrap, target, lambda seen: len(seen) == 1)) == 1
        node.signal(signal.SIGTERM)
        assert node.wait_exit() == 0
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        trimmed = admin.delete_records([TopicPartition(cluster.buffer, 0, 2)])
        for future in trimmed.values():
            future.result(HANGS_S)
        node.start()
        assert master_of([node]) is node
        with cluster.client() as client:
            client.schedule(target, b"after it", at=0)
        assert len(read_until(cluster.bootstrap, target, lambda seen: len(seen) == 2)) == 2


def test_rejects_survive_a_kill_before_they_were_answered(cluster: TestCluster) -> None:
    node = cluster.node(0)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    with running([node]):
        for number in range(2_000):
            producer.produce(cluster.buffer, b"no headers at all", b"k%d" % number)
        assert producer.flush(HANGS_S) == 0
        node.kill()
        node.start()
        letters = read_until(cluster.bootstrap, cluster.dead, lambda seen: len(seen) >= 2_000)
        node.wait_ready()
    assert len({letter.header("delayd-source") for letter in letters}) == len(letters) == 2_000
