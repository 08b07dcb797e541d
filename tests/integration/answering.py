"""A stand-in for a master, as a client sees one: writes receipts in transactions.

Its topics are a test's own: a buffer and its receipts, on the shared Kafka.
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from nodes import HANGS_S

from delayd.bus import Position, Record
from delayd.bus.confluent import ConfluentBus
from delayd.bus.murmur2 import partition_of
from delayd.client.driver import DriverName
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic

PARTITIONS = 4
DUE_MS = 1_900_000_000_000
AT_MS = 1_800_000_000_000
ANSWERS = {"cancel": "cancelled", "replace": "replaced"}


class Answering:
    """Topics with a prefix of their own, and someone who answers."""

    def __init__(self, bootstrap: str, **config: str) -> None:
        self.bootstrap = bootstrap
        prefix = f"client-{uuid4().hex}-"
        self.buffer = f"{prefix}buffer"
        self.receipts = f"{prefix}receipts"
        config = {"message.timestamp.type": "LogAppendTime", **config}
        for topic in (self.buffer, self.receipts):
            create_topic(ConfluentBus(bootstrap), topic, PARTITIONS, config)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{prefix}master",
                "retry.backoff.ms": 5,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(HANGS_S)

    def write(
        self,
        source: str,
        id: str,
        verdict: str,
        *,
        op: str = "cancel",
        killed: tuple[str, ...] = (),
        due_ms: int | None = DUE_MS,
        detail: str = "",
        commit: bool = True,
    ) -> None:
        """One receipt in a transaction of its own, as the wire contract says."""
        fields = {
            "id": id,
            "verdict": verdict,
            "op": op,
            "source": source,
            "killed": list(killed),
            "due_ms": due_ms,
            "at_ms": AT_MS,
            "detail": detail,
        }
        self._producer.begin_transaction()
        self._producer.produce(
            self.receipts,
            json.dumps(fields).encode(),
            id.encode(),
            partition=partition_of(id.encode(), PARTITIONS),
            headers=[("delayd-source", source.encode())],
        )
        if commit:
            self._producer.commit_transaction(HANGS_S)
        else:
            self._producer.flush(HANGS_S)
            self._producer.abort_transaction(HANGS_S)

    def next_source(self, id: str) -> str:
        """Where the next request about the id will lie, if nobody else sends one."""
        partition = partition_of(id.encode(), PARTITIONS)
        with closing(ConfluentBus(self.bootstrap, client_id="test-client").cluster()) as cluster:
            ends = cluster.end_offsets(self.buffer, int(HANGS_S * 1000), committed=False)
        return f"{partition}/{ends[partition]}"

    def read(self, count: int) -> list[Record]:
        """The first records of the buffer; fewer than `count` fail."""
        return read(self.bootstrap, self.buffer, count)

    @contextmanager
    def answering(self, answer: Callable[[Record], None] | None = None) -> Iterator[None]:
        """Meanwhile, each request with an operation, or that wants receipts, is answered."""
        over = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                for record in records_of(self.bootstrap, self.buffer):
                    if over.is_set():
                        return
                    if {"delayd-op", "delayd-receipt"} & dict(record.headers).keys():
                        (answer or self.answer)(record)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(HANGS_S)
        assert not thread.is_alive() and not failures, failures

    def answer(self, record: Record) -> None:
        """The usual answer: everything is in time."""
        id, op = id_of(record), op_of(record)
        self.write(f"{record.partition}/{record.offset}", id, ANSWERS[op], op=op, killed=("0/1",))


def records_of(bootstrap: str, buffer: str) -> Generator[Record, None, None]:
    """The committed records of a buffer, from its beginning; ends only with the caller."""
    with closing(ConfluentBus(bootstrap, client_id="test-client").consumer(buffer)) as consumer:
        consumer.assign({partition: Position(0) for partition in range(PARTITIONS)})
        while True:
            yield from consumer.poll(1_000, 50) or [NOTHING]


def read(bootstrap: str, buffer: str, count: int) -> list[Record]:
    """The first records of a buffer, by way of delayd's own consumer; fewer than `count` fail."""
    deadline_s = time.monotonic() + HANGS_S
    found: list[Record] = []
    with closing(records_of(bootstrap, buffer)) as records:
        while len(found) < count and time.monotonic() < deadline_s:
            record = next(records)
            if record is not NOTHING:
                found.append(record)
    assert len(found) == count
    return found


def freeze(cluster: LocalCluster) -> None:
    """Stop the broker."""
    cluster.kill("broker-1", signal.SIGSTOP)
    assert cluster.stopped(), "the broker does not stop"


def id_of(record: Record) -> str:
    """The id that a request is about."""
    id = dict(record.headers)["delayd-id"]
    assert id is not None and id == record.key
    return id.decode()


def op_of(record: Record) -> str:
    """What a request wants done with it."""
    return (dict(record.headers)["delayd-op"] or b"").decode()


NOTHING = Record(-1, -1, -1, -1, None, None, [])
"""A poll that found none."""


@pytest.fixture
def master(kafka_and_etcd: LocalCluster) -> Answering:
    return Answering(kafka_and_etcd.bootstrap)


@pytest.fixture(params=["confluent", "kafka-python"])
def driver(request: pytest.FixtureRequest) -> DriverName:
    name: DriverName = request.param
    return name
