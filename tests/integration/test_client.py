"""The client against a real Kafka (docs/design, wire contract)."""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from delayd import Client
from delayd.bus import Position, Record
from delayd.bus.confluent import ConfluentBus
from delayd.client import (
    REPORT_GRACE_MS,
    NotScheduledError,
    OutcomeUnknownError,
    RequestRefusedError,
)
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions
from delayd.errors import NotInitialisedError
from delayd.request import Request, RequestLimits, parse

PARTITIONS = 4
TIMEOUT_MS = 30_000
SHORT_ACK_MS = 1_500
MANY = 20_000
"""As many as the demo schedules."""

MANY_MS_MAX = 20_000
"""Fifteen times what it takes here; waiting for each acknowledgement would take longer."""

MURMUR2_OF = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""The vectors of Kafka's own UtilsTest."""

pytestmark = pytest.mark.real


class Kafka(Protocol):
    """What these tests need of the shared cluster."""

    @property
    def bootstrap(self) -> str: ...


@pytest.fixture
def bootstrap(kafka_and_etcd: Kafka) -> str:
    return kafka_and_etcd.bootstrap


def new_buffer(bootstrap: str, **config: str) -> str:
    """A buffer topic of the test's own."""
    buffer = f"client-{uuid4().hex}-buffer"
    cluster = ConfluentBus(bootstrap, client_id="test-client").cluster()
    try:
        cluster.create_topic(
            buffer,
            partitions=PARTITIONS,
            replication_factor=1,
            config={"message.timestamp.type": "LogAppendTime", **config},
            timeout_ms=TIMEOUT_MS,
        )
    finally:
        cluster.close()
    return buffer


@pytest.fixture
def buffer(bootstrap: str) -> str:
    return new_buffer(bootstrap)


@pytest.fixture
def freezing(tmp_path: Path) -> Iterator[tuple[Client, Callable[[], object]]]:
    """A client that has scheduled a message, and a way to freeze the only broker under it."""
    with LocalCluster(tmp_path, ClusterOptions(nodes=0)) as cluster:
        buffer = new_buffer(cluster.bootstrap)
        client = Client(cluster.bootstrap, buffer=buffer, ack_timeout_ms=SHORT_ACK_MS)
        try:
            client.schedule("orders", b"v", in_="1s")
            yield client, lambda: freeze(cluster)
        finally:
            client.close()


@pytest.fixture
def client(bootstrap: str, buffer: str) -> Iterator[Client]:
    with Client(bootstrap, buffer=buffer) as client:
        yield client


def freeze(cluster: LocalCluster) -> None:
    """Stop the broker, and wait until the kernel has stopped it."""
    cluster.kill("broker-1", signal.SIGSTOP)
    deadline_s = time.monotonic() + TIMEOUT_MS / 1000
    while not cluster.stopped():
        assert time.monotonic() < deadline_s, "the broker does not stop"


def read(bootstrap: str, buffer: str, count: int) -> list[Record]:
    """The first records of the buffer, by way of delayd's own consumer."""
    consumer = ConfluentBus(bootstrap, client_id="test-client").consumer(buffer)
    records: list[Record] = []
    deadline_s = time.monotonic() + TIMEOUT_MS / 1000
    try:
        consumer.assign({partition: Position(0) for partition in range(PARTITIONS)})
        while len(records) < count and time.monotonic() < deadline_s:
            records += consumer.poll(count, 1_000)
    finally:
        consumer.close()
    assert len(records) == count
    return records


def test_a_scheduled_message_is_in_the_buffer_as_delayd_reads_it(
    bootstrap: str, buffer: str, client: Client
) -> None:
    headers: list[tuple[str, bytes | str | None]] = [("b", b"2"), ("ä", None), ("b", "1")]
    scheduled = client.schedule(
        "orders", b"v", key="k", in_=timedelta(seconds=10), headers=headers, partition=3
    )
    (record,) = read(bootstrap, buffer, 1)
    assert (record.partition, record.offset) == (scheduled.partition, scheduled.offset)
    assert scheduled.source == f"{record.partition}/{record.offset}"
    assert record.append_ms == scheduled.append_ms
    request = parse(record, RequestLimits(60_000, 10_000, PARTITIONS, "test", b""))
    assert isinstance(request, Request)
    assert (request.topic, request.key, request.value) == ("orders", b"k", b"v")
    assert request.headers == [("b", b"2"), ("ä", None), ("b", b"1")]
    assert request.partition == 3
    assert request.asked_due_ms == scheduled.due_ms == scheduled.append_ms + 10_000


def test_a_due_time_is_reported_as_asked(client: Client) -> None:
    at = datetime(2026, 1, 31, 23, 59, 59, 250_000, tzinfo=UTC)
    assert client.schedule("orders", None, at=at).due_ms == 1_769_903_999_250
    assert client.schedule("orders", None, at=at.isoformat()).due_ms == 1_769_903_999_250
    assert client.schedule("orders", None, at=0).due_ms == 0


@pytest.mark.parametrize(("key", "murmur2"), MURMUR2_OF.items())
def test_requests_lie_in_the_partition_that_javas_murmur2_gives_their_key(
    client: Client, key: bytes, murmur2: int
) -> None:
    partition = client.schedule("orders", b"v", key=key, in_="1h").partition
    assert partition == (murmur2 & 0x7FFFFFFF) % PARTITIONS


def test_twenty_thousand_requests_are_scheduled_without_waiting_for_each(
    bootstrap: str, buffer: str, client: Client
) -> None:
    start_s = time.monotonic()
    futures = [
        client.schedule_async("orders", b"%d" % number, key=b"%d" % number, in_="1h")
        for number in range(MANY)
    ]
    client.flush()
    elapsed_ms = (time.monotonic() - start_s) * 1000
    print(f"scheduled {MANY} in {elapsed_ms:.0f} ms")
    done = [future.result(0) for future in futures]
    stored = {(r.partition, r.offset): r.value for r in read(bootstrap, buffer, MANY)}
    assert stored == {(s.partition, s.offset): b"%d" % n for n, s in enumerate(done)}
    assert elapsed_ms < MANY_MS_MAX


def test_the_buffer_is_never_created_by_sending_to_it(bootstrap: str) -> None:
    missing = f"client-{uuid4().hex}-buffer"
    with (
        Client(bootstrap, buffer=missing) as client,
        pytest.raises(NotInitialisedError, match=r"delayd topics create"),
    ):
        client.schedule("orders", b"v", in_="1s")
    cluster = ConfluentBus(bootstrap, client_id="test-client").cluster()
    try:
        assert cluster.describe([missing], TIMEOUT_MS) == {}
    finally:
        cluster.close()


def test_without_an_acknowledgement_every_call_and_future_ends_with_an_unknown_outcome(
    freezing: tuple[Client, Callable[[], object]],
) -> None:
    client, freeze_broker = freezing
    freeze_broker()
    start_s = time.monotonic()
    with pytest.raises(OutcomeUnknownError, match="may be scheduled or not"):
        client.schedule("orders", b"v", in_="1s")
    assert time.monotonic() - start_s < (SHORT_ACK_MS + REPORT_GRACE_MS) / 1000 + 1
    futures = [client.schedule_async("orders", b"v", in_="1s") for _ in range(100)]
    assert not futures[0].cancel()
    with pytest.raises(OutcomeUnknownError, match="unacknowledged"):
        client.flush(timeout_ms=1)
    client.close()
    done, waiting = wait(futures, timeout=0)
    assert not waiting
    assert all(isinstance(future.exception(), OutcomeUnknownError) for future in done)
    with pytest.raises(RequestRefusedError, match="closed"):
        client.schedule_async("orders", b"v", in_="1s")


def test_a_record_that_kafka_refuses_is_not_scheduled_and_the_next_one_is(bootstrap: str) -> None:
    small = new_buffer(bootstrap, **{"max.message.bytes": "2000"})
    with Client(bootstrap, buffer=small) as client:
        with pytest.raises(NotScheduledError, match="too large"):
            client.schedule("orders", b"v" * 5_000, in_="1s")
        with pytest.raises(NotScheduledError, match="too large"):
            client.schedule("orders", b"v" * 5_000_000, in_="1s")
        assert client.schedule("orders", b"v", in_="1s").offset == 0
