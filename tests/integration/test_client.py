"""The client against a real Kafka (docs/design, wire contract)."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from uuid import uuid4

import answering
import pytest
from answering import PARTITIONS, freeze, read

from delayd import Client
from delayd.bus.confluent import ConfluentBus
from delayd.bus.murmur2 import partition_of
from delayd.bus.reading import read_between
from delayd.client import (
    REPORT_GRACE_MS,
    NotScheduledError,
    OutcomeUnknownError,
    Request,
    RequestRefusedError,
    Scheduled,
)
from delayd.client.connection import WINDOW
from delayd.client.driver import DriverName
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.dev.startup import ClusterOptions
from delayd.errors import NotInitialisedError
from delayd.request import Request as Parsed
from delayd.request import RequestLimits, parse
from delayd.runtime.clock import SystemClock

SENDERS = ("delayd-client", "kafka-python-producer")
"""Names of the threads that send; other tests' producers go by other names."""

TIMEOUT_MS = 30_000
SHORT_ACK_MS = 1_500
MANY = 20_000
"""As many as the demo schedules."""

pytestmark = pytest.mark.real
driver = answering.driver


@pytest.fixture
def bootstrap(kafka_and_etcd: LocalCluster) -> str:
    return kafka_and_etcd.bootstrap


def new_buffer(bootstrap: str, **config: str) -> str:
    """A buffer topic of the test's own."""
    config = {"message.timestamp.type": "LogAppendTime", **config}
    name = f"client-{uuid4().hex}-buffer"
    return create_topic(ConfluentBus(bootstrap), name, PARTITIONS, config)


@pytest.fixture
def buffer(bootstrap: str) -> str:
    return new_buffer(bootstrap)


@pytest.fixture
def freezing(tmp_path: Path, driver: DriverName) -> Iterator[tuple[Client, Callable[[], object]]]:
    """A client that has scheduled a message, and a way to freeze the only broker under it."""
    with LocalCluster(tmp_path, ClusterOptions(nodes=0)) as cluster:
        buffer = new_buffer(cluster.bootstrap)
        client = Client(
            cluster.bootstrap, driver=driver, buffer=buffer, ack_timeout_ms=SHORT_ACK_MS
        )
        try:
            client.schedule("orders", b"v", in_="1s")
            yield client, lambda: freeze(cluster)
        finally:
            client.close()


@pytest.fixture
def client(bootstrap: str, buffer: str, driver: DriverName) -> Iterator[Client]:
    with Client(bootstrap, driver=driver, buffer=buffer) as client:
        yield client


def read_all(bootstrap: str, buffer: str) -> list[bytes]:
    """Every value in the buffer now."""
    bus = ConfluentBus(bootstrap, client_id="test-client")
    with closing(bus.cluster()) as cluster:
        starts = cluster.start_offsets(buffer, TIMEOUT_MS)
        ends = cluster.end_offsets(buffer, TIMEOUT_MS, committed=True)
    runs = read_between(
        bus, buffer, starts, ends, SystemClock(), records_max=1_000, timeout_ms=TIMEOUT_MS
    )
    return [record.value or b"" for run in runs for record in run]


def test_a_scheduled_message_is_in_the_buffer_as_delayd_reads_it(
    bootstrap: str, buffer: str, client: Client, driver: DriverName
) -> None:
    null = None if driver == "confluent" else b""
    headers: list[tuple[str, bytes | str | None]] = [("b", b"2"), ("ä", null), ("b", "1")]
    scheduled = client.schedule(
        "orders", b"v", key="k", in_=timedelta(seconds=10), headers=headers, partition=3
    )
    (record,) = read(bootstrap, buffer, 1)
    assert (record.partition, record.offset) == (scheduled.partition, scheduled.offset)
    assert scheduled.source == f"{record.partition}/{record.offset}"
    assert record.append_ms == scheduled.append_ms
    request = parse(record, RequestLimits(60_000, 10_000, PARTITIONS, "test", b""))
    assert isinstance(request, Parsed)
    assert (request.topic, request.key, request.value) == ("orders", b"k", b"v")
    assert request.headers == [("b", b"2"), ("ä", null), ("b", b"1")]
    assert request.partition == 3
    assert request.asked_due_ms == scheduled.due_ms == scheduled.append_ms + 10_000


def test_a_due_time_is_reported_as_asked(client: Client) -> None:
    at = datetime(2026, 1, 31, 23, 59, 59, 250_000, tzinfo=UTC)
    assert client.schedule("orders", None, key="k", at=at).due_ms == 1_769_903_999_250
    at_text = at.isoformat()
    assert client.schedule("orders", None, key="k", at=at_text).due_ms == 1_769_903_999_250
    assert client.schedule("orders", None, key="k", at=0).due_ms == 0


def test_requests_lie_in_the_partition_that_javas_murmur2_gives_their_key(client: Client) -> None:
    for key in (b"21", b"foobar", b"a-little-bit-long-string", b"abc"):
        partition = client.schedule("orders", b"v", key=key, in_="1h").partition
        assert partition == partition_of(key, PARTITIONS)


def test_twenty_thousand_requests_are_scheduled_without_waiting_for_each(
    bootstrap: str, buffer: str, client: Client
) -> None:
    futures = [
        client.schedule_async("orders", b"%d" % number, key=b"%d" % number, in_="1h")
        for number in range(MANY)
    ]
    client.flush()
    done = [future.result(0) for future in futures]
    stored = {(r.partition, r.offset): r.value for r in read(bootstrap, buffer, MANY)}
    assert stored == {(s.partition, s.offset): b"%d" % n for n, s in enumerate(done)}


def test_the_buffer_is_never_created_by_sending_to_it(bootstrap: str, driver: DriverName) -> None:
    missing = f"client-{uuid4().hex}-buffer"
    with (
        Client(bootstrap, driver=driver, buffer=missing) as client,
        pytest.raises(NotInitialisedError, match=r"delayd topics create"),
    ):
        client.schedule("orders", b"v", in_="1s")
    with closing(ConfluentBus(bootstrap, client_id="test-client").cluster()) as cluster:
        assert cluster.describe([missing], TIMEOUT_MS) == {}


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


def test_a_record_that_kafka_refuses_is_not_scheduled_and_the_next_one_is(
    bootstrap: str, driver: DriverName
) -> None:
    small = new_buffer(bootstrap, **{"max.message.bytes": "2000"})
    with Client(bootstrap, driver=driver, buffer=small) as client:
        with pytest.raises(NotScheduledError, match=r"too large|MessageSizeTooLarge"):
            client.schedule("orders", b"v" * 5_000, in_="1s")
        with pytest.raises(NotScheduledError, match=r"too large|MessageSizeTooLarge"):
            client.schedule("orders", b"v" * 5_000_000, in_="1s")
        assert client.schedule("orders", b"v", in_="1s").offset == 0


def test_close_leaves_no_thread_whatever_the_broker_does(
    freezing: tuple[Client, Callable[[], object]],
) -> None:
    client, freeze_broker = freezing
    assert any(thread.name.startswith(SENDERS) for thread in threading.enumerate())
    freeze_broker()
    future = client.schedule_async("orders", b"v", in_="1s")
    client.close()
    assert isinstance(future.exception(0), OutcomeUnknownError)
    assert not any(thread.name.startswith(SENDERS) for thread in threading.enumerate())


def test_many_requests_have_their_outcomes_in_order_and_a_bad_one_is_one_of_them(
    bootstrap: str, buffer: str, client: Client
) -> None:
    taken = 0

    def endless() -> Iterator[Request]:
        nonlocal taken
        for taken in count(1):
            yield Request("orders" if taken != 10 else "__bad", b"%d" % taken, at=taken, id="i")

    outcomes = client.schedule_many(endless())
    assert taken == 0, "nothing is taken before the first outcome is asked for"
    first = [next(outcomes) for _ in range(2_000)]
    assert taken < 2_000 + 2 * WINDOW, "the source is taken as it goes"
    assert isinstance(first[9], RequestRefusedError)
    assert "forbidden-topic" in str(first[9])
    done = [outcome for outcome in first if isinstance(outcome, Scheduled)]
    assert [outcome.due_ms for outcome in done] == [n for n in range(1, 2_001) if n != 10]
    offsets = [outcome.offset for outcome in done]
    assert offsets == sorted(offsets), "one id, one partition, in the order of the source"
    client.flush()


def test_no_outcome_is_a_lie_when_some_records_of_a_burst_are_refused(
    bootstrap: str, driver: DriverName
) -> None:
    """Both libraries send batches; kafka-python fails all it has with the error of one."""
    small = new_buffer(bootstrap, **{"max.message.bytes": "20000"})
    with Client(bootstrap, driver=driver, buffer=small) as client:
        futures = {}
        for number in range(600):
            value = b"%d" % number if number % 50 else b"%d" % number + b"v" * 30_000
            futures[number] = client.schedule_async("orders", value, in_="1h")
        client.flush()
        assert client.schedule("orders", b"last", in_="1h")
        done = {n for n, future in futures.items() if future.exception() is None}
        refused = {
            n for n, future in futures.items() if isinstance(future.exception(), NotScheduledError)
        }
        unknown = futures.keys() - done - refused
    assert refused and not done & {n for n in futures if n % 50 == 0}
    assert all(isinstance(futures[n].exception(), OutcomeUnknownError) for n in unknown)
    stored = Counter(read_all(bootstrap, small))
    assert set(stored.values()) == {1}, "nothing is doubled"
    assert {b"%d" % n for n in done} <= stored.keys()
    assert not {b"%d" % n for n in refused} & stored.keys()
