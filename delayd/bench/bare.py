"""The bare driver doing parts of delayd's work: each of them is the limit of a figure.

confluent-kafka alone, with the same values, headers and sizes of transactions, and with the same
settings where they cost or gain time: reads a buffer, writes a target in transactions, writes it at
the due times, takes over a transactional id.
"""

import threading
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from delayd.bench.errors import BenchError
from delayd.bench.job import started
from delayd.bench.load import DELIVERED_HEADERS, Load
from delayd.bench.process_costs import cpu_s
from delayd.bench.reading import READER
from delayd.bench.sending import produce
from delayd.dev.job import Job
from delayd.runtime.clock import SystemClock

RETRY_BACKOFF_MS: Final = 5
LINGER_MS: Final = 20
"""In transactions, as a node has them; `delayd/bus/confluent/settings.py` says what they gain."""

TRANSACTION_RECORDS: Final = 10_000
"""As many as a step of a node takes by default."""

BATCH_RECORDS: Final = 2_000
IDLE_ROUNDS_MAX: Final = 600
PAUSE_S: Final = 0.001
INIT_S: Final = 30


class Progress(NamedTuple):
    """A stretch of work."""

    rate: float
    """Messages per second."""
    cpu_us: float
    """Processor time for each message; a node's with that of its child processes."""

    @classmethod
    def of(cls, count: int, elapsed_ms: int, used_s: float) -> "Progress":
        """Return what it is to handle so many messages in this time."""
        return cls(count * 1000 / max(1, elapsed_ms), used_s * 10**6 / count)


class Bare:
    """The bare driver on some brokers."""

    def __init__(self, kafka: dict[str, str]) -> None:
        self._kafka = kafka
        self._clock = SystemClock(offset_ms=0)

    def consume(self, topic: str, partitions: int, count: int) -> Progress:
        """Read so many records, read_committed. Raises BenchError if they do not come."""
        consumer = Consumer({**self._kafka, **READER, "fetch.wait.max.ms": 50})
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        stretch = _Stretch()
        read, idle = 0, 0
        while read < count and idle < IDLE_ROUNDS_MAX:
            batch = consumer.consume(BATCH_RECORDS, 0.05)
            idle = 0 if batch else idle + 1
            read += len(batch)
        progress = stretch.progress(count)
        consumer.close()
        if read < count:
            raise BenchError(f"of {count} records in {topic} {read} were read")
        return progress

    def produce(self, load: Load) -> Progress:
        """Write a load to its target, without transactions."""
        producer = Producer({**self._kafka, "acks": "all", "enable.idempotence": True})
        stretch = _Stretch()
        for number in range(load.count):
            _produce(producer, load, number)
        if producer.flush(INIT_S):
            raise BenchError(f"{load.target} did not take all records")
        return stretch.progress(load.count)

    def transactions(self, load: Load) -> Progress:
        """Write a load to its target in transactions."""
        producer = _transactional(self._kafka, f"{load.target}-bare")
        stretch = _Stretch()
        for first in range(0, load.count, TRANSACTION_RECORDS):
            producer.begin_transaction()
            for number in range(first, min(load.count, first + TRANSACTION_RECORDS)):
                _produce(producer, load, number)
            producer.commit_transaction()
        return stretch.progress(load.count)

    def at_due_times(self, load: Load) -> AbstractContextManager[Job]:
        """Return a process that writes a load to its target, each message as soon as it is due,
        in transactions, and then says the seconds of processor time that this took. It must begin
        before the first is due."""
        return started(write_at_due_times, self._kafka, load)

    def takeover(self, target: str, partitions: int) -> int:
        """Return the ms from the end of a producer in mid-transaction to its successor's first
        record at a reader: the cost of a failover on these brokers when the successor learns of
        it at once."""
        name = f"{target}-takeover"
        load = Load(target, 2, self._clock.wall_ms(), 1)
        consumer = Consumer({**self._kafka, **READER})
        consumer.assign([TopicPartition(target, number, 0) for number in range(partitions)])
        consumer.poll(0.1)
        before = _transactional(self._kafka, name)
        before.begin_transaction()
        _produce(before, load, 0)
        before.flush(INIT_S)
        started_ms = self._clock.monotonic_ms()
        # It meets its predecessor's open transaction, as expected: nothing to warn of.
        after = _transactional({**self._kafka, "log_level": "3"}, name)
        after.begin_transaction()
        _produce(after, load, 1)
        after.commit_transaction()
        for _ in range(IDLE_ROUNDS_MAX):
            message = consumer.poll(0.05)
            if message is not None and load.number_of(message.value()) == 1:
                took_ms = self._clock.monotonic_ms() - started_ms
                consumer.close()
                return took_ms
        raise BenchError("a bare successor's record was not seen")


class _Stretch:
    """From now on: the time, and the processor time of this process."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._begun_ms, self._begun_s = self._clock.monotonic_ms(), cpu_s()

    def progress(self, count: int) -> Progress:
        """Return rate and cost of so many messages since then."""
        elapsed_ms = self._clock.monotonic_ms() - self._begun_ms
        return Progress.of(count, elapsed_ms, cpu_s() - self._begun_s)


def _transactional(kafka: dict[str, str], name: str) -> Producer:
    producer = Producer(
        {
            **kafka,
            "transactional.id": name,
            "retry.backoff.ms": RETRY_BACKOFF_MS,
            "linger.ms": LINGER_MS,
        }
    )
    producer.init_transactions(INIT_S)
    return producer


def _produce(producer: Producer, load: Load, number: int) -> None:
    value, key = load.value(number), load.key(number)
    produce(producer, load.target, value, key, list(DELIVERED_HEADERS))
    if number % 500 == 0:
        producer.poll(0)


def write_at_due_times(kafka: dict[str, str], load: Load) -> float:
    """Write the load. Return the seconds of processor time that it took."""
    clock = SystemClock(offset_ms=0)
    producer = _transactional(kafka, f"{load.target}-paced")
    waiting = load.by_due()
    written, begun_cpu_s = 0, cpu_s()
    while written < len(waiting):
        now_ms = clock.wall_ms()
        if waiting[written][0] > now_ms:
            threading.Event().wait(PAUSE_S)
            continue
        producer.begin_transaction()
        first = written
        while written < min(len(waiting), first + TRANSACTION_RECORDS):
            due_ms, number = waiting[written]
            if due_ms > now_ms:
                break
            _produce(producer, load, number)
            written += 1
        producer.commit_transaction()
    return cpu_s() - begun_cpu_s
