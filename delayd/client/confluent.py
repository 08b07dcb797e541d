"""The client's port over librdkafka (confluent-kafka).

Invariants: what the wire contract fixes cannot be overridden; nothing is awaited before the first
request; a property that librdkafka refuses is a ConfigError when the driver is made.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from delayd.bus import Ack
from delayd.bus.refusals import remedy_of
from delayd.client.driver import (
    READ_RECORDS_MAX,
    Failure,
    NotTakenError,
    OnOutcome,
    Overrides,
    PlainRecord,
    UserTransaction,
    cannot_be_made,
    no_topic,
    of_role,
    refuse_fixed,
)
from delayd.errors import ConsumerError, KafkaUnreachableError

POLL_INTERVAL_MS: Final = 100
"""How soon the thread that collects acknowledgements notices `close`."""

ANY_PARTITION: Final = -1
"""librdkafka's word for leaving it to the partitioner."""

_FIXED_PRODUCER: Final[Mapping[str, str]] = {
    "acks": "all",
    "enable.idempotence": "true",
    # Requests that share a key share a partition: Java's, so that ids meet across languages.
    "partitioner": "murmur2_random",
}
_FIXED_CONSUMER: Final[Mapping[str, Any]] = {
    "group.id": "delayd-client",  # librdkafka wants one; it is never joined
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
}
_FORBIDDEN: Final = frozenset({"transactional.id"})
"""The client's own requests are in no transaction: for that there is the user's own producer."""

_CERTAIN: Final = frozenset(
    {
        KafkaError._PURGE_QUEUE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_TRANSIENT: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        # The coordinator of a group that is never joined: none of a reader's business.
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)


class ConfluentDriver:
    """See the port `Driver`."""

    def __init__(self, bootstrap: str, overrides: Overrides, ack_timeout_ms: int) -> None:
        address = {"bootstrap.servers": bootstrap}
        producer = {**_FIXED_PRODUCER, **address, "message.timeout.ms": str(ack_timeout_ms)}
        consumer = {**_FIXED_CONSUMER, **address}
        refuse_fixed(overrides, {*producer, *_FIXED_CONSUMER, *_FORBIDDEN})
        self._refusals = _Refusals()
        told = {"error_cb": self._refusals.take}
        self._consumer = {**told, **of_role("consumer", overrides), "logger": _Log(), **consumer}
        try:
            self._producer = Producer(
                {**told, "logger": _Log(), **of_role("producer", overrides), **producer}
            )
        except (KafkaException, ValueError, TypeError) as error:
            raise cannot_be_made("the producer", error) from error

    def sender(self) -> "ConfluentSender":
        """See the port. One per driver."""
        return ConfluentSender(self._producer, self._refusals)

    def reader(self, topic: str) -> "ConfluentReader":
        """See the port."""
        return ConfluentReader(topic, self._consumer, self._refusals)

    def refusal(self, record: PlainRecord) -> str | None:
        """See the port: librdkafka sends everything."""
        return None


class ConfluentSender:
    """See the port `Sender`. A thread of its own collects the acknowledgements."""

    def __init__(self, producer: Producer, refusals: "_Refusals") -> None:
        self._producer = producer
        self._refusals = refusals
        self._closed = False
        self._collector = Thread(target=self._collect, name="delayd-client", daemon=True)
        self._collector.start()

    def partition_count(self, topic: str, timeout_ms: int) -> int:
        """See the port."""
        return _partition_count(self._producer, topic, timeout_ms, self._refusals)

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        """See the port."""
        return _produce(self._producer, record, on_outcome)

    def wait_for_room(self, timeout_ms: int) -> None:
        """See the port."""
        self._producer.poll(timeout_ms / 1000)

    def close(self, timeout_ms: int) -> None:
        """See the port."""
        self._closed = True
        self._producer.purge()
        self._producer.flush(timeout_ms / 1000)
        self._collector.join(timeout_ms / 1000)

    def _collect(self) -> None:
        while not self._closed:
            self._producer.poll(POLL_INTERVAL_MS / 1000)


class ConfluentReader:
    """See the port `Reader`."""

    def __init__(self, topic: str, properties: Mapping[str, Any], refusals: "_Refusals") -> None:
        self._topic = topic
        self._properties = properties
        self._refusals = refusals
        self._client: Consumer | None = None

    def open(self, timeout_ms: int) -> None:
        """See the port."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            self._client = Consumer(dict(self._properties))
        except (KafkaException, ValueError, TypeError) as error:
            raise cannot_be_made("the consumer", error) from error
        ends = []
        count = _partition_count(self._client, self._topic, timeout_ms, self._refusals)
        for number in range(count):
            each = TopicPartition(self._topic, number)
            left_s = max(0.001, deadline_s - time.monotonic())
            try:
                # Asked for here, not left to the assignment, which would ask at its leisure.
                each.offset = self._client.get_watermark_offsets(each, timeout=left_s)[1]
            except KafkaException as error:
                raise _unreachable(timeout_ms, error, self._refusals) from error
            ends.append(each)
        self._client.assign(ends)

    def poll(self, timeout_ms: int) -> list[tuple[bytes | None, bytes | None]]:
        """See the port."""
        assert self._client is not None, "open before polling"
        try:
            # With a time-out librdkafka waits for a whole batch; so wait for one, take the rest.
            messages = self._client.consume(1, timeout_ms / 1000)
            if messages:
                messages += self._client.consume(READ_RECORDS_MAX - 1, 0)
        except KafkaException as error:
            raise self._broken(error.args[0]) from error
        for message in messages:
            fault = message.error()
            if fault is not None and fault.code() not in _TRANSIENT and not fault.retriable():
                raise self._broken(fault)
        return [(each.key(), each.value()) for each in messages if each.error() is None]

    def close(self) -> None:
        """See the port."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _broken(self, error: KafkaError) -> ConsumerError:
        return ConsumerError(f"reading {self._topic} failed: {error.name()}, {error.str()}")


def transacting(producer: object) -> UserTransaction | None:
    """Wrap the user's own producer, if it is of this library. Outcomes come inside calls to it.

    It ends each record by its own `message.timeout.ms`.
    """
    if not isinstance(producer, Producer):
        return None
    return UserTransaction(producer, partial(_produce, producer), partial(_flush, producer))


class _Log:
    """librdkafka's lines about the reader: it warns of every property that is the producer's."""

    def log(self, severity: int, text: str, *arguments: object) -> None:
        logging.getLogger("delayd.client.librdkafka").debug(text, *arguments)


class _Refusals:
    """Why brokers refused a client. It holds no reference to the client."""

    def __init__(self) -> None:
        self.last: str | None = None

    def take(self, error: KafkaError) -> None:
        """Take one of librdkafka's errors. "No broker is left" says less than those before it."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last = f"{error.name()}, {error.str()}"


def _flush(producer: Producer) -> None:
    while producer.flush(1.0):
        pass


def failure_of(error: KafkaError) -> Failure:
    """Return what a failed delivery report means for its record."""
    return Failure(error.code() in _CERTAIN, error.str())


def _produce(producer: Producer, record: PlainRecord, on_outcome: OnOutcome) -> bool:
    try:
        # The base class's own method: a SerializingProducer would change key and value.
        Producer.produce(
            producer,
            record.topic,
            record.value,
            record.key,
            headers=list(record.headers),
            on_delivery=_reporter(on_outcome),
            partition=ANY_PARTITION if record.partition is None else record.partition,
        )
    except BufferError:
        return False
    except KafkaException as error:
        raise NotTakenError(error.args[0].str()) from error
    return True


def _reporter(on_outcome: OnOutcome) -> Callable[[KafkaError | None, Message], None]:
    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            on_outcome(failure_of(error))
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None and offset is not None, "an acknowledged record has a place"
        on_outcome(Ack(partition, offset, message.timestamp()[1]))

    return on_delivery


def _partition_count(
    client: Producer | Consumer, topic: str, timeout_ms: int, refusals: "_Refusals"
) -> int:
    """Count in all topics' metadata: asking for one topic by name may create it."""
    try:
        topics = client.list_topics(timeout=timeout_ms / 1000).topics
    except KafkaException as error:
        client.poll(0)  # where a refusal is told
        raise _unreachable(timeout_ms, error, refusals) from error
    if topic not in topics or not topics[topic].partitions:
        raise no_topic(topic)
    return len(topics[topic].partitions)


def _unreachable(
    timeout_ms: int, error: KafkaException, refusals: "_Refusals"
) -> KafkaUnreachableError:
    why = refusals.last or error.args[0].str()
    return KafkaUnreachableError(
        f"no broker answered within {timeout_ms} ms: {why}", remedy=remedy_of(why)
    )
