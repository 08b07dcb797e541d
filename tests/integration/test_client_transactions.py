"""Requests inside a user's own transaction, on a real Kafka, with both libraries' producers."""

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import answering
import pytest
from answering import PARTITIONS, Answering
from confluent_kafka import Producer
from nodes import HANGS_S

from delayd import Client
from delayd.bus.murmur2 import partition_of
from delayd.client import (
    NotScheduledError,
    OutcomeUnknownError,
    RequestRefusedError,
    VerdictUnknownError,
    cancel_record,
    schedule_record,
)
from delayd.dev.cluster import LocalCluster

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka import KafkaProducer
    from kafka.serializer import Serializer

IDS = [f"order-{number}" for number in range(20)]

pytestmark = pytest.mark.real
master = answering.master


@pytest.fixture
def client(master: Answering) -> Iterator[Client]:
    with Client(master.bootstrap, buffer=master.buffer) as client:
        yield client


@pytest.fixture(params=["confluent", "kafka-python"])
def producer(request: pytest.FixtureRequest, master: Answering) -> Iterator[Any]:
    """A transactional producer as a user would have it: librdkafka's partitioner is not Java's."""
    transactional_id = f"shop-{uuid4().hex}"
    if request.param == "confluent":
        confluent = Producer(
            {"bootstrap.servers": master.bootstrap, "transactional.id": transactional_id}
        )
        confluent.init_transactions(HANGS_S)
        yield confluent
        return
    kafka = KafkaProducer(bootstrap_servers=master.bootstrap, transactional_id=transactional_id)
    try:
        kafka.init_transactions()
        yield kafka
    finally:
        kafka.close(timeout=1)


class Upper(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """What a user may have set for records of his own."""

    def serialize(self, topic: str, headers: Any, data: bytes) -> bytes:
        return data.upper()


def sources(master: Answering, count: int) -> dict[str, str]:
    """Committed requests by key."""
    return {(r.key or b"").decode(): f"{r.partition}/{r.offset}" for r in master.read(count)}


def test_requests_of_a_committed_transaction_are_seen_each_in_its_ids_partition(
    master: Answering, client: Client, producer: Any
) -> None:
    producer.begin_transaction()
    futures = {
        id: client.schedule_in(producer, "orders", b"v", in_="1h", id=id, key="k") for id in IDS
    }
    futures["x"] = client.replace_in(producer, "x", "orders", b"v", in_="1h")
    cancelled = client.cancel_in(producer, "y")
    producer.flush()
    producer.commit_transaction()
    seen = sources(master, len(IDS) + 2)
    assert seen == {
        **{id: future.result(0).source for id, future in futures.items()},
        "y": cancelled.result(0).source,
    }
    for id, source in seen.items():
        assert source.startswith(f"{partition_of(id.encode(), PARTITIONS)}/")


def test_requests_of_an_aborted_transaction_are_never_seen(
    master: Answering, client: Client, producer: Any
) -> None:
    producer.begin_transaction()
    lost = client.schedule_in(producer, "orders", b"v", in_="1h", id="lost")
    client.cancel_in(producer, "lost")
    producer.flush()
    assert lost.result(HANGS_S).source, "it is in the log, and yet it will not be"
    producer.abort_transaction()
    producer.begin_transaction()
    client.schedule_in(producer, "orders", b"v", in_="1h", id="kept")
    producer.commit_transaction()
    assert sources(master, 1).keys() == {"kept"}


def test_the_block_commits_and_an_exception_in_it_aborts(
    master: Answering, client: Client, producer: Any
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        client.transaction(producer) as transaction,
    ):
        transaction.schedule("orders", b"v", in_="1h", id="lost")
        _ = 1 / 0
    with client.transaction(producer) as transaction:
        scheduled = transaction.schedule("orders", b"v", in_="1h", id="a")
        transaction.replace("b", "orders", b"v", in_="1h")
        transaction.cancel("c")
    assert sources(master, 3).keys() == {"a", "b", "c"}
    assert scheduled.result(0).due_ms > 0


def test_a_transaction_without_one_of_its_requests_is_not_committed(
    kafka_and_etcd: LocalCluster, producer: Any
) -> None:
    """Left alone, kafka-python commits it, and the request is missing."""
    master = Answering(kafka_and_etcd.bootstrap, **{"max.message.bytes": "20000"})
    with Client(master.bootstrap, buffer=master.buffer) as client:
        with (
            pytest.raises((NotScheduledError, OutcomeUnknownError)),
            client.transaction(producer) as transaction,
        ):
            transaction.schedule("orders", b"v", in_="1h", id="small")
            transaction.schedule("orders", b"v" * 30_000, in_="1h", id="large")
        client.schedule("orders", b"v", in_="1h", id="small")
    [after] = master.read(1)
    assert after.key == b"small"
    assert after.offset > 0, "the aborted one is before it"


def test_a_wait_for_a_verdict_inside_the_open_transaction_is_refused_at_once(
    master: Answering, client: Client, producer: Any
) -> None:
    with client.transaction(producer) as transaction:
        transaction.cancel("a")
        with pytest.raises(RequestRefusedError, match="no verdict can come"):
            client.cancel("a")
        with pytest.raises(RequestRefusedError, match="no verdict can come"):
            client.replace("a", "orders", b"v", in_="1h")
        with (
            pytest.raises(RequestRefusedError, match="open already"),
            client.transaction(producer),
        ):
            pass
        assert client.cancel("b", wait=False)
    with master.answering():
        assert client.cancel("a").verdict == "cancelled", "the transaction is over"


def test_another_threads_wait_ends_when_the_transaction_does(
    master: Answering, client: Client, producer: Any
) -> None:
    """Its request lies behind the open transaction; the error would say that as well."""
    with master.answering(), ThreadPoolExecutor(1) as pool:
        with client.transaction(producer) as transaction:
            held = transaction.schedule("orders", b"v", in_="1h", id="a")
            producer.flush()
            assert held.result(HANGS_S)
            waiting = pool.submit(client.cancel, "a", timeout_ms=500)
            with pytest.raises(VerdictUnknownError, match="end it first"):
                waiting.result(HANGS_S)
            waiting = pool.submit(client.cancel, "a")
        assert waiting.result(HANGS_S).verdict == "cancelled"


def test_a_producer_without_an_open_transaction_refuses_and_the_client_says_so(
    client: Client, producer: Any
) -> None:
    with pytest.raises(NotScheduledError):
        client.schedule_in(producer, "orders", b"v", in_="1h")


def test_plain_records_can_be_sent_by_hand(master: Answering) -> None:
    own = Producer({"bootstrap.servers": master.bootstrap, "partitioner": "murmur2_random"})
    for record in (
        schedule_record("orders", b"v", in_="1h", id="a", buffer=master.buffer),
        cancel_record("a", buffer=master.buffer),
    ):
        own.produce(record.topic, record.value, record.key, headers=list(record.headers))
    assert own.flush(HANGS_S) == 0
    assert {r.partition for r in master.read(2)} == {partition_of(b"a", PARTITIONS)}


def test_a_kafka_producer_with_serializers_is_refused(master: Answering, client: Client) -> None:
    own = KafkaProducer(bootstrap_servers=master.bootstrap, value_serializer=Upper())
    try:
        with pytest.raises(NotScheduledError, match="value_serializer"):
            client.schedule_in(own, "orders", b"v", in_="1h")
    finally:
        own.close(timeout=1)


def test_a_serializing_producer_of_confluent_changes_nothing(
    master: Answering, client: Client
) -> None:
    from confluent_kafka import SerializingProducer

    own = SerializingProducer(
        {
            "bootstrap.servers": master.bootstrap,
            "value.serializer": lambda value, _: value.upper(),
        }
    )
    client.schedule_in(own, "orders", b"v", in_="1h", id="a")
    assert own.flush(HANGS_S) == 0
    assert [record.value for record in master.read(1)] == [b"v"]


def test_the_buffer_is_not_created_through_the_users_producer(master: Answering) -> None:
    missing = f"client-{uuid4().hex}-buffer"
    own = Producer({"bootstrap.servers": master.bootstrap})
    from delayd.errors import NotInitialisedError

    with (
        Client(master.bootstrap, buffer=missing) as client,
        pytest.raises(NotInitialisedError),
    ):
        client.schedule_in(own, "orders", b"v", in_="1h")
    assert len(own) == 0
