"""The tool that plants defects changes what it is told to, and nothing else that a reader sees.

A real broker serves what was changed, to read_committed consumers of both drivers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from defects.surgery import PartitionLog, Surgeon
from kafka import KafkaConsumer, TopicPartition
from nodes import HANGS_S
from topics_read import all_of

from chaos.batches import LogRecord, batches_of
from delayd.bus import Record
from delayd.bus.confluent import ConfluentBus
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.dev.startup import ClusterOptions

pytestmark = pytest.mark.real

BROKER = "broker-1"
TRANSACTIONS = 6
RECORDS = 40
"""Of each transaction; each third is aborted."""

APPEND_TIME = "by.append-time"
CREATE_TIME = "by.create-time"

Read = list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]
"""Offset, time, key, value and headers, by offset."""


@dataclass(frozen=True, slots=True)
class Site:
    """A broker of this module's own, and the two topics in it."""

    cluster: LocalCluster
    kept: Path
    before: dict[str, Read]

    @contextmanager
    def operated(self, operation: Callable[[PartitionLog, str], object]) -> Iterator[None]:
        """Inside, both topics are served as the operation leaves them."""
        surgeon = Surgeon(self.cluster.directory / "data" / BROKER, self.kept)
        self.cluster.stop(BROKER)
        for topic in self.before:
            operation(surgeon.open(topic, 0), topic)
        self.cluster.start(BROKER)
        try:
            yield
        finally:
            self.cluster.stop(BROKER)
            surgeon.undo()
            self.cluster.start(BROKER)

    def read(self, topic: str) -> Read:
        """What a topic holds; both drivers must say the same."""
        found = read_by_kafka_python(self.cluster.bootstrap, topic)
        assert found == read_by_librdkafka(self.cluster.bootstrap, topic)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("surgery")
    with LocalCluster(folder / "cluster", ClusterOptions(nodes=0)) as cluster:
        for topic, kind in ((APPEND_TIME, "LogAppendTime"), (CREATE_TIME, "CreateTime")):
            config = {"message.timestamp.type": kind}
            create_topic(ConfluentBus(cluster.bootstrap), topic, config=config)
        fill(cluster.bootstrap)
        made = Site(cluster, folder / "kept", {})
        for topic in (APPEND_TIME, CREATE_TIME):
            made.before[topic] = made.read(topic)
            assert len(made.before[topic]) == 4 * RECORDS + 1
        yield made


def fill(bootstrap: str) -> None:
    """Transactions, some aborted, and a last record of nobody's."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "surgery"})
    producer.init_transactions(HANGS_S)
    number = 0
    for transaction in range(TRANSACTIONS):
        producer.begin_transaction()
        for _ in range(RECORDS):
            number += 1
            for topic in (APPEND_TIME, CREATE_TIME):
                producer.produce(
                    topic,
                    value=None if number % 7 == 0 else b"v%d" % number * (number % 5 * 60),
                    key=None if number % 5 == 0 else b"k%d" % number,
                    headers=[("trace", b"1"), ("null", None), ("trace", b"\xff"), ("ü", b"")],
                    partition=0,
                )
        producer.flush(HANGS_S)
        if transaction % 3 == 1:
            producer.abort_transaction(HANGS_S)
        else:
            producer.commit_transaction(HANGS_S)
    plain = Producer({"bootstrap.servers": bootstrap})
    for topic in (APPEND_TIME, CREATE_TIME):
        plain.produce(topic, value=b"last", partition=0)
    assert plain.flush(HANGS_S) == 0


def read_by_kafka_python(bootstrap: str, topic: str) -> Read:
    consumer: Any = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        check_crcs=True,
    )
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        found: Read = []
        while consumer.position(place) < end:
            for records in consumer.poll(timeout_ms=100).values():
                found += [
                    (r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in records
                ]
        return found
    finally:
        consumer.close()


def read_by_librdkafka(bootstrap: str, topic: str) -> Read:
    return [as_read(record) for record in all_of(bootstrap, topic, 1)]


def as_read(record: LogRecord | Record) -> Any:
    """A record as the readers above see it."""
    at_ms = record.append_ms if isinstance(record, Record) else record.timestamp_ms
    return (record.offset, at_ms, record.key, record.value, tuple(record.headers))


def test_surgery_that_changes_nothing_is_seen_by_nobody(site: Site) -> None:
    with site.operated(lambda log, _: log.rewrite_all()):
        for topic, before in site.before.items():
            assert site.read(topic) == before


def test_each_operation_changes_what_it_says_and_nothing_else(site: Site) -> None:
    places = [offset for offset, *_ in site.before[APPEND_TIME]]
    changed, cut, first, second = places[3], places[50], places[20], places[21]
    whole = places[2 * RECORDS : 3 * RECORDS]
    assert places == [offset for offset, *_ in site.before[CREATE_TIME]]

    def other(record: LogRecord, topic: str) -> LogRecord:
        earlier_ms = 0 if topic == APPEND_TIME else 5_000
        headers = (("other", b"x" * 3_000), *record.headers[:1])
        at_ms = record.timestamp_ms - earlier_ms
        return replace(record, key=b"other", value=None, headers=headers, timestamp_ms=at_ms)

    expected: dict[str, dict[int, Any]] = {}

    def operate(log: PartitionLog, topic: str) -> None:
        want = expected[topic] = {each[0]: each for each in site.before[topic]}
        was = log.change(changed, lambda record: other(record, topic))
        want[changed] = as_read(other(was, topic))
        for offset in (cut, *whole):
            assert as_read(log.cut(offset)) == want.pop(offset)
        log.swap(first, second)
        one, two = want[first], want[second]
        want[first], want[second] = (*one[:2], *two[2:]), (*two[:2], *one[2:])
        added = log.append(was)
        want[added] = as_read(replace(was, offset=added))
        assert added == places[-1] + 1

    with site.operated(operate):
        for topic, want in expected.items():
            assert site.read(topic) == [want[offset] for offset in sorted(want)]
    for topic, before in site.before.items():
        assert site.read(topic) == before, "undone"


def test_a_broker_goes_on_writing_where_surgery_ended(site: Site) -> None:
    """So the last offset is what it must be, and a record that was added counts."""
    with site.operated(lambda log, _: log.append(log.records()[0])):
        producer = Producer({"bootstrap.servers": site.cluster.bootstrap})
        for topic in site.before:
            producer.produce(topic, value=b"after", partition=0)
        assert producer.flush(HANGS_S) == 0
        for topic, before in site.before.items():
            last = before[-1][0]
            assert [each[0] for each in site.read(topic)[-2:]] == [last + 1, last + 2]


def test_what_is_added_is_of_the_leader_that_reigned_last(site: Site) -> None:
    """Or else a consumer that asks how far an older leader came reads it twice."""
    epochs: list[list[int]] = []

    def operate(log: PartitionLog, topic: str) -> None:
        log.append(log.records()[0])
        folder = site.cluster.directory / "data" / BROKER / f"{topic}-0"
        segment = max(folder.glob("*.log"))
        epochs.append([batch.leader_epoch for batch in batches_of(segment.read_bytes())])

    for _ in range(2):  # each beginning of the broker is another leader's
        with site.operated(operate):
            pass
    assert all(found == sorted(found) for found in epochs)
    assert all(later[-1] > sooner[-1] for sooner, later in zip(epochs[:2], epochs[2:], strict=True))
