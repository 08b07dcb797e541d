"""Consumers that retry what they cannot process, on a real Kafka with a real node."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from nodes import HANGS_S, running, wait_for
from topics_read import Seen, read_until

from delayd import AsyncClient, RetryPolicy
from delayd.dev.cluster import LocalCluster

PARTITIONS = 2
RECORDS = 40
POLICY = RetryPolicy(delays=("200ms", "300ms"))
CRASHES_EVERY = 3
"""Of the transactions: each third one is aborted, with all that was processed in it."""

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def cluster(
    kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestCluster]:
    made = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("retries"))
    with running([made.node(1)]):
        yield made


def filled(cluster: TestCluster, name: str) -> str:
    """A topic with RECORDS orders, and what belongs to it."""
    topic = cluster.target(name, PARTITIONS)
    for suffix in ("-dead", "-done"):
        cluster.create_topic(f"{topic}{suffix}")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, b"k%d" % number, headers=[("trace", b"\xff")])
    assert producer.flush(HANGS_S) == 0
    return topic


def process(value: bytes, attempts: int) -> None:
    """Raise ValueError the first time, the first two or three times, or never, by the order."""
    if attempts < int(value) % 4:
        raise ValueError(f"attempt {attempts}")


def attempts_of(headers: list[tuple[str, bytes]] | None) -> int:
    return int(dict(headers or []).get("retry-attempt", b"0"))


def check(cluster: TestCluster, topic: str, done: list[Seen]) -> None:
    """Each order was processed once after as many attempts as it takes, or is dead after three."""
    assert Counter(each.value for each in done) == Counter(
        b"%d" % number for number in range(RECORDS) if number % 4 < 3
    )
    assert all(attempts_of(each.headers) == int(each.value or b"") % 4 for each in done)  # type: ignore[arg-type]
    dead = read_until(cluster.bootstrap, f"{topic}-dead", lambda seen: len(seen) >= RECORDS // 4)
    assert sorted(int(each.value or b"") for each in dead) == list(range(3, RECORDS, 4))
    for each in dead:
        assert each.key == b"k" + (each.value or b"")
        assert each.header("retry-attempt") == "3"
        assert each.header("retry-error") == "ValueError: attempt 2"
        assert each.header("retry-origin").startswith(f"{topic}/")
        assert dict(each.headers)["trace"] == b"\xff"


def test_a_retry_in_the_consumers_transaction_is_neither_lost_nor_doubled(
    cluster: TestCluster,
) -> None:
    """Offsets, results and retries of a transaction become true together, or not at all."""
    topic = filled(cluster, "transacted")
    brokers = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    consumer = Consumer(
        {**brokers, "group.id": f"{topic}.g", "enable.auto.commit": False, "fetch.wait.max.ms": 20}
    )
    partitions = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    producer = Producer({**brokers, "transactional.id": f"{topic}.worker"})
    producer.init_transactions(HANGS_S)
    finished, transactions = 0, 0
    with cluster.client() as client:

        def work() -> bool:
            nonlocal finished, transactions
            messages = [m for m in consumer.consume(7, 0.1) if m.error() is None]
            if not messages:
                return False
            transactions += 1
            ended = 0
            producer.begin_transaction()
            for message in messages:
                attempts = attempts_of(message.headers())  # type: ignore[arg-type]
                try:
                    process(message.value() or b"", attempts)
                except ValueError as error:
                    client.retry_in(producer, message, error, POLICY)
                    ended += attempts == len(POLICY.delays)
                else:
                    producer.produce(f"{topic}-done", message.value(), headers=message.headers())
                    ended += 1
            if transactions % CRASHES_EVERY == 0:
                producer.flush()
                producer.abort_transaction()
                for each in consumer.committed(partitions, HANGS_S):
                    each.offset = max(each.offset, 0)
                    consumer.seek(each)
                return False
            positions = [each for each in consumer.position(partitions) if each.offset >= 0]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            producer.commit_transaction()
            finished += ended
            return finished >= RECORDS

        wait_for(work, "each order is processed or dead")
    consumer.close()
    assert transactions >= CRASHES_EVERY, "no transaction was aborted"
    enough = RECORDS - RECORDS // 4
    done = read_until(cluster.bootstrap, f"{topic}-done", lambda seen: len(seen) >= enough)
    check(cluster, topic, done)


def test_records_of_kafka_python_are_retried_from_asyncio(cluster: TestCluster) -> None:
    """Without transactions, each retry is acknowledged before its offset would be committed."""
    topic = filled(cluster, "acknowledged")
    consumer: Any = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=None,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=20,
    )
    done: list[Seen] = []
    ended = 0

    async def work() -> None:
        nonlocal ended
        async with AsyncClient(cluster.bootstrap, buffer=cluster.buffer) as client:
            while ended < RECORDS:
                polled = await asyncio.to_thread(consumer.poll, 100)
                for record in (each for batch in polled.values() for each in batch):
                    attempts = attempts_of(record.headers)
                    try:
                        process(record.value, attempts)
                    except ValueError as error:
                        await client.retry(record, error, POLICY)
                        ended += attempts == len(POLICY.delays)
                    else:
                        done.append(
                            Seen(record.partition, record.key, record.value, record.headers, 0)
                        )
                        ended += 1

    asyncio.run(asyncio.wait_for(work(), HANGS_S))
    consumer.close()
    check(cluster, topic, done)


def test_a_batch_with_retries_commits_or_aborts_as_a_block(cluster: TestCluster) -> None:
    """`Client.transaction` knows of retries, too."""
    topic = filled(cluster, "block")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"{topic}.g"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    [message] = consumer.consume(1, HANGS_S)
    consumer.close()
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}.worker"}
    )
    producer.init_transactions(HANGS_S)
    hopeless = RetryPolicy(delays=())
    with cluster.client() as client:
        with pytest.raises(ZeroDivisionError), client.transaction(producer) as transaction:
            transaction.retry(message, "lost", hopeless)
            _ = 1 / 0
        with client.transaction(producer) as transaction:
            transaction.retry(message, "kept", hopeless)
    [dead] = read_until(cluster.bootstrap, f"{topic}-dead", lambda seen: len(seen) >= 1)
    assert dead.header("retry-error") == "kept"
