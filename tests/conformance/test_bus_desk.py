"""What the bus suite runs on: some brokers, and a desk with topics and clients of one test.

No tests here; the name says whose the file is, and pytest explains its assertions for it.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeAlias
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from delayd.bus import (
    Ack,
    Bus,
    Consumer,
    Headers,
    Position,
    Producer,
    Record,
    TransactionalProducer,
)
from delayd.bus.confluent import ConfluentBus
from delayd.bus.kafka_python import KafkaPythonBus
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.runtime.clock import SystemClock

TIMEOUT_MS = 15_000
POLL_MS = 50
RECORD_BYTES_MAX = 2_000_000
BY_BROKER = {"message.timestamp.type": "LogAppendTime"}


class Site(Protocol):
    """Some brokers, and what tests need beside the ports."""

    bus: Bus

    def unreachable_bus(self) -> Bus: ...

    def delete_before(self, topic: str, partition: int, offset: int) -> None: ...


Driver: TypeAlias = type[ConfluentBus] | type[KafkaPythonBus]


class MemorySite:
    def __init__(self) -> None:
        self.kafka = MemoryKafka(SystemClock(), real_time=True)
        self.bus: Bus = MemoryBus(self.kafka, record_bytes_max=RECORD_BYTES_MAX)

    def unreachable_bus(self) -> Bus:
        bus = MemoryBus(self.kafka)
        bus.link.up = False
        return bus

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.kafka.log(topic, partition).delete_before(offset)


class RealSite:
    """The session's Kafka, through one of the drivers."""

    def __init__(self, bootstrap: str, driver: Driver) -> None:
        self.bootstrap = bootstrap
        self._driver = driver
        self.bus: Bus = driver(bootstrap, record_bytes_max=RECORD_BYTES_MAX)

    def unreachable_bus(self) -> Bus:
        return self.other_bus("127.0.0.1:1")

    def other_bus(self, bootstrap: str | None = None, **overrides: str) -> Bus:
        """The same driver with other settings."""
        named = {name.replace("_", "."): value for name, value in overrides.items()}
        return self._driver(
            bootstrap or self.bootstrap, overrides=named, record_bytes_max=RECORD_BYTES_MAX
        )

    def delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([topic])[topic].result(TIMEOUT_MS / 1000)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        [done] = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
        done.result(TIMEOUT_MS / 1000)


DRIVERS: Mapping[str, Driver] = {"confluent": ConfluentBus, "kafka-python": KafkaPythonBus}


@pytest.fixture(
    params=["memory", *(pytest.param(name, marks=pytest.mark.real) for name in DRIVERS)]
)
def site(request: pytest.FixtureRequest) -> Site:
    if request.param == "memory":
        return MemorySite()
    kafka = request.getfixturevalue("kafka_and_etcd")
    return RealSite(kafka.bootstrap, DRIVERS[request.param])


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.real) for name in DRIVERS])
def real_site(request: pytest.FixtureRequest) -> RealSite:
    kafka = request.getfixturevalue("kafka_and_etcd")
    return RealSite(kafka.bootstrap, DRIVERS[request.param])


class Desk:
    """Topics, producers and consumers of one test; everything is closed at its end."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.bus = site.bus
        self.cluster = site.bus.cluster()
        self.id = f"id-{uuid4().hex}"
        self._opened: list[Producer | Consumer] = []

    def topic(self, partitions: int = 1, **config: str) -> str:
        name = f"t-{uuid4().hex}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        assert self.cluster.create_topic(
            name,
            partitions=partitions,
            replication_factor=1,
            config=BY_BROKER | settings,
            timeout_ms=TIMEOUT_MS,
        )
        return name

    def producer(self, transactional_id: str | None = None) -> TransactionalProducer:
        producer = self.bus.transactional_producer(transactional_id or self.id)
        self._opened.append(producer)
        producer.init_transactions(TIMEOUT_MS)
        return producer

    def begun(self) -> TransactionalProducer:
        producer = self.producer()
        producer.begin()
        return producer

    def idempotent(self) -> Producer:
        producer = self.bus.idempotent_producer()
        self._opened.append(producer)
        return producer

    def consumer(self, topic: str, positions: Mapping[int, Position] | None = None) -> Consumer:
        consumer = self.bus.consumer(topic)
        self._opened.append(consumer)
        consumer.assign({0: Position(0)} if positions is None else positions)
        return consumer

    def open_transaction(self, topic: str, *values: bytes) -> TransactionalProducer:
        producer = self.begun()
        for value in values:
            send(producer, topic, value)
        producer.flush(TIMEOUT_MS)
        return producer

    def commit(self, topic: str, *values: bytes) -> None:
        producer = self.open_transaction(topic, *values)
        producer.commit(TIMEOUT_MS)
        producer.close()

    def abort(self, topic: str, *values: bytes) -> None:
        self.open_transaction(topic, *values).close()
        self.producer().close()

    def stable_offset(self, topic: str) -> int:
        return self.cluster.end_offsets(topic, TIMEOUT_MS, committed=True)[0]

    def end_offset(self, topic: str) -> int:
        return self.cluster.end_offsets(topic, TIMEOUT_MS, committed=False)[0]

    def close(self) -> None:
        for client in self._opened:
            client.close()
        self.cluster.close()


@pytest.fixture
def desk(site: Site) -> Iterator[Desk]:
    desk = Desk(site)
    yield desk
    desk.close()


def send(
    producer: Producer,
    topic: str,
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: Headers | None = None,
    partition: int | None = 0,
    on_ack: Callable[[Ack], None] | None = None,
) -> None:
    producer.send(
        topic, key=key, value=value, headers=headers or [], partition=partition, on_ack=on_ack
    )


@contextmanager
def silent_broker() -> Iterator[tuple[str, socket.socket]]:
    """An address whose connections the kernel takes, and the socket; nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        listener.settimeout(TIMEOUT_MS / 1000)
        yield f"127.0.0.1:{listener.getsockname()[1]}", listener


def eventually(condition: Callable[[], bool], what: str) -> None:
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + TIMEOUT_MS
    while not condition():
        assert clock.monotonic_ms() < deadline_ms, f"within {TIMEOUT_MS} ms: {what}"
        threading.Event().wait(0.005)


def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []

    def enough() -> bool:
        records.extend(consumer.poll(count - len(records), POLL_MS))
        return len(records) >= count

    eventually(enough, f"{count} records")
    return records


def read_to(consumer: Consumer, partition: int, offset: int) -> list[Record]:
    records: list[Record] = []

    def there() -> bool:
        records.extend(consumer.poll(100, POLL_MS))
        return consumer.position(partition) >= offset

    eventually(there, f"position {offset}")
    assert consumer.position(partition) == offset
    return records


def poll_until_it_raises(consumer: Consumer) -> None:
    def never() -> bool:
        assert consumer.poll(100, POLL_MS) == []
        return False

    eventually(never, "an exception")
