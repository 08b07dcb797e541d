"""Rates of the two hot paths: a node's ingest, and a master's exactly-once delivery.

Each run uses topics and a cluster name of its own, so that no run sees another's records. The bare
runs do with confluent-kafka alone what delayd must do with it: read all of the buffer in batches,
read_committed; write the same records, with the same headers, in transactions of the same size.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from delayd.bench.figures import Figure
from delayd.bus import Bus
from delayd.bus.overrides import of_role
from delayd.clock import SystemClock
from delayd.cluster_key import new_cluster_key
from delayd.frontier_log import FrontierLog
from delayd.mastership import Grant, Mastership
from delayd.node import open_bus
from delayd.pace import Pace
from delayd.replica import Replica
from delayd.suspects import Suspects
from delayd.targets import Targets
from delayd.topics import create_topics
from delayd.wheel.storage import Wheel
from replication.settings import Settings

VALUE = b"v" * 300
USER_HEADERS: list[tuple[str, bytes]] = [("tenant", b"acme-4711"), ("trace", b"0af7651916cd43dd")]
DELIVERED_HEADERS: list[tuple[str, bytes]] = [
    *USER_HEADERS,
    ("delayd-due", b"1795257447533"),
    ("delayd-fired", b"1795257447534"),
    ("delayd-source", b"1/123456"),
]
PARTITIONS = 4
TRANSACTION_RECORDS = 10_000
BATCH_RECORDS = 2_000
CHECKPOINT_MS = 1_000
FOREVER_MS = 10**15
IDLE_ROUNDS_MAX = 600


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how much."""

    bootstrap: str
    messages: int
    runs: int
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How to get in, as of a node."""

    def properties(self, role: str) -> dict[str, str]:
        """For a bare client."""
        return {"bootstrap.servers": self.bootstrap, **of_role(self.kafka, role)}


def bench_ingest(bench: Bench) -> list[Figure]:
    """A node's ingest of a full buffer, due times over 60 s, against a bare read of it."""
    own, bare = [], []
    for run in range(bench.runs):
        with _cluster(bench, f"ingest-{run}") as (bus, settings):
            now_ms = SystemClock().wall_ms()
            _fill(bench, settings, [now_ms + 600_000 + n % 60_000 for n in range(1000)])
            bare.append(_bare_read(bench, settings))
            with _replica(settings) as replica:
                own.append(_ingest(bench, bus, replica))
    return [Figure("ingest", "messages/s", tuple(own), "bare read_committed consume", tuple(bare))]


def bench_deliver(bench: Bench) -> list[Figure]:
    """A master's delivery of a backlog that is due, against bare transactional produce."""
    own, bare = [], []
    for run in range(bench.runs):
        with _cluster(bench, f"deliver-{run}") as (bus, settings):
            target = f"{settings.prefix.removesuffix('-')}.target"
            with contextlib.closing(bus.cluster()) as kafka:
                kafka.create_topic(
                    target,
                    partitions=PARTITIONS,
                    replication_factor=1,
                    config={},
                    timeout_ms=30_000,
                )
            due_ms = SystemClock().wall_ms() + 1000
            _fill(bench, settings, [due_ms + n % 1000 for n in range(1000)], target)
            with _replica(settings) as replica:
                _ingest(bench, bus, replica)
                bare.append(_bare_transactions(bench, target))
                own.append(_deliver(bench, bus, replica))
    return [Figure("deliver", "messages/s", tuple(own), "bare transactional produce", tuple(bare))]


@contextlib.contextmanager
def _cluster(bench: Bench, name: str) -> Iterator[tuple[Bus, Settings]]:
    """A delayd cluster of its own on the brokers: topics and first frontier."""
    bus = open_bus(bench.bootstrap, dict(bench.kafka))
    unique = f"bench-{SystemClock().wall_ms()}-{name}"
    yield (
        bus,
        create_topics(
            bus,
            cluster=unique,
            prefix=f"{unique}-",
            partitions=PARTITIONS,
            cluster_key=new_cluster_key(),
            replication_factor=1,
        ),
    )


@contextlib.contextmanager
def _replica(settings: Settings) -> Iterator[Replica]:
    with tempfile.TemporaryDirectory(prefix="delayd-bench-") as folder:
        replica = Replica(
            Wheel.open(Path(folder), partitions=settings.partitions),
            settings,
            proof_key=b"none of its records is read back",
            export_hold_ms=900_000,
            disk_free_min_bytes=0,
        )
        try:
            yield replica
        finally:
            replica.close()


def _fill(
    bench: Bench, settings: Settings, due_times_ms: list[int], target: str = "bench.target"
) -> None:
    producer = Producer({**bench.properties("producer"), "linger.ms": 20, "acks": "all"})
    for number in range(bench.messages):
        due_ms = due_times_ms[number % len(due_times_ms)]
        headers = [*USER_HEADERS, ("delayd-topic", target), ("delayd-due", str(due_ms))]
        while True:
            try:
                producer.produce(
                    settings.buffer.name,
                    VALUE,
                    b"key-%d" % (number % 10_000),
                    headers=headers,  # type: ignore[arg-type]
                )
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _bare_read(bench: Bench, settings: Settings) -> float:
    consumer = Consumer(
        {
            **bench.properties("consumer"),
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(settings.buffer.name, p, 0) for p in range(PARTITIONS)])
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    read, idle = 0, 0
    while read < bench.messages and idle < IDLE_ROUNDS_MAX:
        batch = consumer.consume(BATCH_RECORDS, 0.05)
        idle = 0 if batch else idle + 1
        read += len(batch)
    elapsed_ms = clock.monotonic_ms() - started_ms
    consumer.close()
    return read * 1000 / max(1, elapsed_ms)


def _ingest(bench: Bench, bus: Bus, replica: Replica) -> float:
    clock = SystemClock()
    started_ms = checkpointed_ms = clock.monotonic_ms()
    idle = 0
    with contextlib.closing(bus.consumer(replica.settings.buffer.name)) as consumer:
        consumer.assign(replica.positions)
        while replica.ingested_count < bench.messages and idle < IDLE_ROUNDS_MAX:
            records = consumer.poll(BATCH_RECORDS, 50)
            idle = 0 if records else idle + 1
            replica.take(records)
            if clock.monotonic_ms() - checkpointed_ms > CHECKPOINT_MS:
                replica.checkpoint()
                checkpointed_ms = clock.monotonic_ms()
        replica.checkpoint()
    return replica.ingested_count * 1000 / max(1, clock.monotonic_ms() - started_ms)


def _bare_transactions(bench: Bench, target: str) -> float:
    producer = Producer(
        {
            **bench.properties("producer"),
            "transactional.id": f"{target}-bare",
            "retry.backoff.ms": 5,
            "linger.ms": 0,
        }
    )
    producer.init_transactions()
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    for first in range(0, bench.messages, TRANSACTION_RECORDS):
        producer.begin_transaction()
        for number in range(first, min(bench.messages, first + TRANSACTION_RECORDS)):
            key = b"key-%d" % (number % 10_000)
            producer.produce(target, VALUE, key, headers=DELIVERED_HEADERS)  # type: ignore[arg-type]
            if number % 500 == 0:
                producer.poll(0)
        producer.commit_transaction()
    return bench.messages * 1000 / max(1, clock.monotonic_ms() - started_ms)


def _deliver(bench: Bench, bus: Bus, replica: Replica) -> float:
    """From the first step that delivers to the last commit, with the node's own code."""
    clock = SystemClock()
    frontier_log = FrontierLog(bus, replica.settings.frontier.name, 0)
    cluster = bus.cluster()
    grant = Grant("bench/0", FOREVER_MS)
    mastership = Mastership(
        bus,
        replica,
        frontier_log,
        Targets(cluster, clock, 10_000),
        Suspects(),
        clock,
        grant,
        Pace(TRANSACTION_RECORDS, 64 * 1024 * 1024),
        lambda: None,
        idle_interval_ms=1000,
        clock_drift_max_ms=500,
    )
    started: list[int] = []

    def watch() -> None:
        if mastership.is_delivering and not started:
            started.append(clock.monotonic_ms())
        if mastership.delivered_count >= bench.messages:
            grant.withdrawn = True

    mastership.on_progress = watch
    with contextlib.closing(frontier_log), contextlib.closing(cluster):
        frontier_log.open(10_000)
        try:
            mastership.run()
        finally:
            mastership.close()
    return bench.messages * 1000 / max(1, clock.monotonic_ms() - started[0])
