"""Batches that expand beyond what is read, on real brokers, with each driver.

Not here: what a node makes of them (`tests/integration/test_heavy_batches.py`).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import test_bus_desk
from confluent_kafka import Producer
from test_bus_desk import DRIVERS, TIMEOUT_MS, Desk, RealSite, eventually, read_to

from delayd.bus import Position, Record
from delayd.bus.unreadable import TOO_LARGE, UnreadableBatch
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real
site = test_bus_desk.real_site
desk = test_bus_desk.desk

MIB = 1 << 20
PATIENCE_S = 120


class Case(NamedTuple):
    """A batch: `records` records of `record_bytes` zeros."""

    codec: str
    records: int
    record_bytes: int
    is_readable: bool


CASES = {
    "zstd-beyond-librdkafka": Case("zstd", 1, 140 * MIB, False),
    "zstd-between-its-steps": Case("zstd", 1, 90 * MIB, True),
    "zstd-of-many": Case("zstd", 90, MIB, True),
    "gzip-of-one": Case("gzip", 1, 140 * MIB, False),
    "gzip-of-hundreds": Case("gzip", 700, MIB // 4, False),
    "gzip-of-thousands": Case("gzip", 3_000, 64 * 1024, False),
    "gzip-of-tiny": Case("gzip", 270_000, 5, False),
    "lz4-below": Case("lz4", 1_000, 64 * 1024, True),
    "snappy": Case("snappy", 8, MIB, True),
    "none-of-tiny": Case("none", 30_000, 5, True),
}


def send_batch(bootstrap: str, topic: str, case: Case, transactional_id: str = "") -> Producer:
    """Write `case` as one batch; in a transaction that is left open, if its id is given."""
    transactional: dict[str, Any] = {"transactional.id": transactional_id}
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": case.codec,
            "linger.ms": 30_000,
            "batch.size": 1_000_000_000,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "enable.idempotence": True,
            **(transactional if transactional_id else {}),
        }
    )
    if transactional_id:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
    outcomes: list[Any] = []
    for _ in range(case.records):
        producer.produce(
            topic,
            bytes(case.record_bytes),
            partition=0,
            on_delivery=lambda error, _: outcomes.append(error),
        )
    assert producer.flush(PATIENCE_S) == 0 and outcomes == [None] * case.records
    return producer


@pytest.fixture
def desks(kafka_and_etcd: LocalCluster) -> Iterator[list[Desk]]:
    """One of each driver at the same brokers."""
    desks = [Desk(RealSite(kafka_and_etcd.bootstrap, driver)) for driver in DRIVERS.values()]
    yield desks
    for each in desks:
        each.close()


def around(desk: Desk, topic: str, write: Callable[[], object]) -> list[Record]:
    """Write something between two records of partition 0, and read all of it."""
    desk.commit(topic, b"before")
    write()
    desk.commit(topic, b"after")
    eventually(lambda: desk.stable_offset(topic) == desk.end_offset(topic), "the last marker")
    return read_to(desk.consumer(topic), 0, desk.end_offset(topic))


@pytest.mark.parametrize("name", CASES)
def test_what_is_too_large_is_one_record_for_both_drivers_and_the_partition_goes_on(
    name: str, desks: list[Desk], kafka_and_etcd: LocalCluster
) -> None:
    """docs/design/frontier.md, "Unreadable batches"."""
    case = CASES[name]
    desk, other = desks
    topic = desk.topic()
    records = around(desk, topic, lambda: send_batch(kafka_and_etcd.bootstrap, topic, case))
    assert read_to(other.consumer(topic), 0, desk.end_offset(topic)) == records
    first, *batch, last = records
    assert (first.value, last.value) == (b"before", b"after")
    if case.is_readable:
        assert [len(record.value or b"") for record in batch] == [case.record_bytes] * case.records
        assert not any(isinstance(record, UnreadableBatch) for record in batch)
        return
    [stands_for_all] = batch
    assert isinstance(stands_for_all, UnreadableBatch)
    begin = first.offset + 2  # behind the commit marker
    assert stands_for_all.offset == begin + case.records - 1
    assert (stands_for_all.key, stands_for_all.headers) == (None, [])
    assert stands_for_all.value is not None and stands_for_all.value.decode() == (
        f"the batch at offsets {begin} to {begin + case.records - 1} of partition 0 "
        f"({case.records} records, codec {case.codec}) cannot be read: {TOO_LARGE}"
    )
    assert first.append_ms <= stands_for_all.append_ms <= last.append_ms


def test_a_batch_of_an_aborted_transaction_is_nothing(desk: Desk, site: RealSite) -> None:
    topic = desk.topic()

    def write() -> None:
        producer = send_batch(
            site.bootstrap, topic, CASES["zstd-beyond-librdkafka"], transactional_id=topic
        )
        producer.abort_transaction(PATIENCE_S)

    assert [record.value for record in around(desk, topic, write)] == [b"before", b"after"]


def test_other_partitions_go_on_in_order(desk: Desk, site: RealSite) -> None:
    topic = desk.topic(partitions=3)
    producer = desk.idempotent()
    sent: dict[int, list[bytes]] = {1: [], 2: []}
    for number in range(400):
        if number == 200:
            send_batch(site.bootstrap, topic, CASES["zstd-beyond-librdkafka"])
        for partition, values in sent.items():
            values.append(b"%d" % number)
            producer.send(topic, key=None, value=values[-1], headers=[], partition=partition)
        producer.flush(TIMEOUT_MS)
    consumer = desk.consumer(topic, {partition: Position(0) for partition in range(3)})
    seen: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
    while sum(map(len, seen.values())) < 801:
        for record in consumer.poll(50, TIMEOUT_MS):
            seen[record.partition].append(record.value)
            assert consumer.position(record.partition) > record.offset
    assert len(seen[0]) == 1 and {1: seen[1], 2: seen[2]} == sent


def test_a_topic_that_stores_batches_uncompressed_refuses_them(desk: Desk, site: RealSite) -> None:
    """docs/operations.md, "Compressed batches": `max.message.bytes` then limits what is read."""
    topic = desk.topic(compression_type="uncompressed")
    refused: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": site.bootstrap,
            "compression.type": "zstd",
            "message.max.bytes": 1_000_000_000,
        }
    )
    producer.produce(
        topic,
        bytes(3 * MIB),
        on_delivery=lambda error, _: refused.append(error.name() if error else ""),
    )
    assert producer.flush(PATIENCE_S) == 0
    assert refused == ["MSG_SIZE_TOO_LARGE"] and desk.end_offset(topic) == 0
