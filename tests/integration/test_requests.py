"""Each kind of request through a real node, written with plain kafka-python headers.

Source: docs/reference/requests.md.
"""

import itertools
import signal
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clusters import RETRY_DELAYS_MS, TestCluster, make_cluster
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from nodes import CLOCK, NodeProcess, master_of, node_group, wait_for
from topics_read import Seen, read_until

from delayd.bus import Headers
from delayd.bus.confluent import ConfluentBus
from delayd.bus.murmur2 import partition_of
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


@pytest.fixture(scope="module")
def desk(kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One cluster for all of these tests; each uses a target of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaProducer
    cluster = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("requests"))
    node = cluster.node(0)
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


def test_a_message_arrives_at_its_due_time_with_its_own_headers_untouched(
    desk: Desk, target: str
) -> None:
    due_ms = CLOCK.wall_ms() + 1_500
    own = [("a", b"1"), ("b", b"\x00\xff"), ("a", b"2"), ("empty", b"")]
    source = desk.put(
        [own[0], ("delayd-topic", target.encode()), *own[1:], ("delayd-due", b"%d" % due_ms)],
        key=b"order-1",
        value=b"\x00payload",
    )
    record = desk.delivered(target, source)
    assert record.value == b"\x00payload" and record.key == b"order-1"
    assert record.headers[:4] == own
    assert [name for name, _ in record.headers[4:]] == [
        "delayd-due",
        "delayd-fired",
        "delayd-source",
    ]
    assert record.header("delayd-due") == str(due_ms)
    assert due_ms <= int(record.header("delayd-fired")) <= record.received_ms


def test_a_delay_counts_from_the_append_time(desk: Desk, target: str) -> None:
    before_ms = CLOCK.wall_ms()
    source = desk.put([("delayd-topic", target.encode()), ("delayd-delay", b"900ms")])
    record = desk.delivered(target, source)
    due_ms = int(record.header("delayd-due"))
    assert before_ms + 900 <= due_ms <= record.received_ms
    assert int(record.header("delayd-fired")) >= due_ms


def test_level_1_is_one_second(desk: Desk, target: str) -> None:
    before_ms = CLOCK.wall_ms()
    source = desk.put([("delayd-topic", target.encode()), ("delayd-level", b"1")])
    due_ms = int(desk.delivered(target, source).header("delayd-due"))
    assert before_ms + 1_000 <= due_ms <= CLOCK.wall_ms()


def test_a_past_due_message_is_delivered_at_once_with_the_due_time_as_asked(
    desk: Desk, target: str
) -> None:
    source = desk.put([("delayd-topic", target.encode()), ("delayd-due", b"2020-01-01T00:00:00Z")])
    assert desk.delivered(target, source).header("delayd-due") == "1577836800000"


def test_delayd_key_is_the_key_of_the_delivered_record_and_decides_its_partition(
    desk: Desk, target: str
) -> None:
    source = desk.put(
        [
            ("delayd-topic", target.encode()),
            ("delayd-due", b"0"),
            ("delayd-key", "schlüssel".encode()),
        ],
        key=b"another",
    )
    record = desk.delivered(target, source)
    assert record.key == "schlüssel".encode()
    assert record.partition == partition_of("schlüssel".encode(), 4)


def test_delayd_partition_is_the_target_partition(desk: Desk, target: str) -> None:
    for partition in range(4):
        source = desk.put(
            [
                ("delayd-topic", target.encode()),
                ("delayd-due", b"0"),
                ("delayd-partition", b"%d" % partition),
            ]
        )
        assert desk.delivered(target, source).partition == partition


GOOD: HeaderList = [("delayd-topic", b"t"), ("delayd-due", b"0")]
BAD: list[tuple[str, HeaderList]] = [
    ("missing-topic", [("delayd-due", b"0")]),
    ("bad-topic", [("delayd-topic", b"no spaces"), ("delayd-due", b"0")]),
    ("forbidden-topic", [("delayd-topic", b"__consumer_offsets"), ("delayd-due", b"0")]),
    ("missing-due", [("delayd-topic", b"t")]),
    ("several-dues", [*GOOD, ("delayd-delay", b"1s")]),
    ("bad-due", [("delayd-topic", b"t"), ("delayd-due", b"tomorrow")]),
    ("bad-delay", [("delayd-topic", b"t"), ("delayd-delay", b"-5s")]),
    ("bad-level", [("delayd-topic", b"t"), ("delayd-level", b"19")]),
    ("too-far", [("delayd-topic", b"t"), ("delayd-delay", b"3000d")]),
    ("bad-partition", [*GOOD, ("delayd-partition", b"-1")]),
    ("repeated-header", [*GOOD, ("delayd-topic", b"u")]),
    ("empty-header", [*GOOD, ("delayd-key", b"")]),
    ("not-utf8", [("delayd-topic", b"\xff"), ("delayd-due", b"0")]),
    ("unknown-header", [*GOOD, ("delayd-dely", b"1s")]),
    ("not-supported", [*GOOD, ("delayd-cron", b"* * * * *")]),
    ("bad-id", [*GOOD, ("delayd-id", b"not the key")]),
    ("missing-id", [("delayd-op", b"cancel")]),
    ("bad-redrive", [*GOOD, ("delayd-redrive", b"nowhere")]),
    ("bad-proof", [*GOOD, ("delayd-continues", b"0")]),
]


def test_what_is_not_understood_is_a_dead_letter_and_a_log_line_and_holds_nothing_up(
    desk: Desk, target: str
) -> None:
    """Source: docs/reference/requests.md, "Rejects"."""
    sources = {
        desk.put([("mine", b"1"), *headers], key=b"key", value=b"original"): (reason, headers)
        for reason, headers in BAD
    }
    behind = desk.put([("delayd-topic", target.encode()), ("delayd-due", b"0")])
    desk.delivered(target, behind)
    letters = read_until(
        desk.cluster.bootstrap,
        desk.cluster.dead,
        lambda seen: sources.keys() <= {letter.header("delayd-source") for letter in seen},
    )
    by_source = {letter.header("delayd-source"): letter for letter in letters}
    assert len(by_source) == len(letters), "each reject is dead-lettered once"
    for source, (reason, headers) in sources.items():
        letter = by_source[source]
        assert letter.header("delayd-reason") == reason
        assert letter.header("delayd-detail")
        assert (letter.key, letter.value) == (b"key", b"original")
        assert letter.headers[: 1 + len(headers)] == [("mine", b"1"), *headers]
        assert f"source={source}" in desk.node.log and reason in desk.node.log


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


def test_a_message_whose_topic_never_comes_is_a_dead_letter_after_the_last_retry(
    desk: Desk,
) -> None:
    """Source: docs/reference/requests.md, "Rejects"."""
    lost = desk.put([("delayd-topic", b"never-created"), ("delayd-due", b"0")], value=b"keep me")
    letters = read_until(
        desk.cluster.bootstrap,
        desk.cluster.dead,
        lambda seen: any(dict(r.headers).get("delayd-origin") == lost.encode() for r in seen),
    )
    [letter] = [r for r in letters if dict(r.headers).get("delayd-origin") == lost.encode()]
    assert letter.value == b"keep me"
    assert letter.header("delayd-reason") == "dead"
    assert letter.header("delayd-attempt") == str(len(RETRY_DELAYS_MS) + 1)
    assert "never-created does not exist" in letter.header("delayd-detail")


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
        wait_for(lambda: bool(node.status().get("ready")), 20, "the node is ready again")
    assert len({letter.header("delayd-source") for letter in letters}) == len(letters) == 2_000
