"""What bad targets, bursts, trims and kills do to requests, on a real node.

Not here: what comes of each kind of request (test_request_cases.py).
Source: docs/reference/requests.md.
"""

import itertools
import signal
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from nodes import CLOCK, HANGS_S, NodeProcess, master_of, node_group, wait_for
from topics_read import Seen, read_until

from delayd.bus import Headers
from delayd.bus.confluent import ConfluentBus
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

HeaderList = Sequence[tuple[str, bytes]]
_numbers = itertools.count()


class Desk:
    """A cluster with one running node, and a plain kafka-python producer."""

    def __init__(self, cluster: TestCluster, node: NodeProcess, producer: Any) -> None:
        self.cluster = cluster
        self.node = node
        self._producer = producer

    def put(self, headers: HeaderList, *, key: bytes | None = b"k", value: bytes = b"v") -> str:
        """Write one request as any client would; its source."""
        sent = self._producer.send(
            self.cluster.buffer, key=key, value=value, headers=list(headers)
        ).get(20)
        return f"{sent.partition}/{sent.offset}"

    def delivered(self, topic: str, source: str) -> Seen:
        """The delivered record of a request; AssertionError if it does not come, or twice."""
        found = read_until(
            self.cluster.bootstrap,
            topic,
            lambda seen: any(record.header("delayd-source") == source for record in seen),
        )
        [record] = [record for record in found if record.header("delayd-source") == source]
        return record


@pytest.fixture(scope="module", params=["confluent", "kafka-python"])
def desk(
    kafka_and_etcd: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Desk]:
    """One cluster for all of these tests; each uses a target of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaProducer
    cluster = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("requests"))
    node = cluster.node(0, driver=request.param)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    try:
        with node_group([node]):
            node.start()
            master_of([node])
            yield Desk(cluster, node, producer)
    finally:
        producer.close()


@pytest.fixture
def target(desk: Desk) -> str:
    """A target of the test's own."""
    return desk.cluster.target(f"requests{next(_numbers)}")


def test_a_message_for_a_topic_that_does_not_exist_arrives_once_it_is_created(
    desk: Desk, target: str
) -> None:
    """Source: docs/design/frontier.md, "Targets"."""
    missing = f"{target}.later"
    early = desk.put([("delayd-topic", missing.encode()), ("delayd-due", b"0")], value=b"keep me")
    fine = desk.put([("delayd-topic", target.encode()), ("delayd-due", b"0")])
    desk.delivered(target, fine)
    desk.cluster.create_topic(missing)
    [record] = read_until(desk.cluster.bootstrap, missing, bool)
    assert record.value == b"keep me"
    assert record.header("delayd-origin") == early
    assert int(record.header("delayd-attempt")) >= 1
    assert record.header("delayd-source") != early


def test_a_burst_to_a_target_that_takes_small_batches_arrives_and_holds_nobody_up(
    desk: Desk, target: str
) -> None:
    """Kafka judges batches, not records. Source: docs/design/frontier.md, "Targets"."""
    small = desk.cluster.target(
        f"small{next(_numbers)}", partitions=1, config={"max.message.bytes": "20000"}
    )
    due = b"%d" % (CLOCK.wall_ms() + 2_000)
    with desk.cluster.client() as client:
        futures = [client.schedule_async(small, b"x" * 300, at=due.decode()) for _ in range(300)]
        for future in futures:
            future.result(30)
    neighbour = desk.put([("delayd-topic", target.encode()), ("delayd-due", due)])
    desk.delivered(target, neighbour)
    seen = read_until(desk.cluster.bootstrap, small, lambda seen: len(seen) >= 300)
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
            future.result(20)
        node.start()
        assert master_of([node]) is node
        with cluster.client() as client:
            client.schedule(target, b"after it", at=0)
        assert len(read_until(cluster.bootstrap, target, lambda seen: len(seen) == 2)) == 2


def test_rejects_survive_a_kill_before_they_were_answered(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path)
    node = cluster.node(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaProducer
    producer: Any = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    with node_group([node]):
        node.start()
        master_of([node])
        for number in range(2_000):
            producer.send(cluster.buffer, key=b"k%d" % number, value=b"no headers at all")
        producer.flush()
        producer.close()
        node.kill()
        node.start()
        letters = read_until(cluster.bootstrap, cluster.dead, lambda seen: len(seen) >= 2_000)
        wait_for(lambda: bool(node.status().get("ready")), HANGS_S, "the node is ready again")
    assert len({letter.header("delayd-source") for letter in letters}) == len(letters) == 2_000
