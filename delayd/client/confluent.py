"""The client's port over librdkafka (confluent-kafka).

Invariants: what the wire contract fixes cannot be overridden; nothing is awaited before the first
request; a property that librdkafka refuses is a ConfigError when the driver is made.
"""

from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from delayd.bus import Ack
from delayd.bus.confluent.cluster import ConfluentCluster
from delayd.bus.confluent.consumer import ConfluentConsumer
from delayd.bus.confluent.log import LibrdkafkaLog
from delayd.bus.overrides import of_role
from delayd.client.driver import (
    ROLES,
    Failure,
    NotTakenError,
    OnOutcome,
    Overrides,
    PlainRecord,
    Role,
    UserTransaction,
    cannot_be_made,
    refuse_fixed,
)

T = TypeVar("T")

POLL_INTERVAL_MS: Final = 100
"""How soon the thread that collects acknowledgements notices `close`."""

ANY_PARTITION: Final = -1
"""librdkafka's value that leaves the choice to the partitioner."""

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
"""The client's own requests are in no transaction; the user's own producer is for that."""

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


class ConfluentDriver:
    """See the port `Driver`."""

    def __init__(self, bootstrap: str, overrides: Overrides, ack_timeout_ms: int) -> None:
        address = {"bootstrap.servers": bootstrap}
        producer = {**_FIXED_PRODUCER, "message.timeout.ms": str(ack_timeout_ms)}
        refuse_fixed(overrides, {*address, *producer, *_FIXED_CONSUMER, *_FORBIDDEN})
        self._of_user: dict[Role, dict[str, Any]] = {
            role: {"logger": LibrdkafkaLog("client"), **of_role(overrides, role, ROLES), **address}
            for role in ROLES
        }
        self._consumer = {**self._of_user["consumer"], **_FIXED_CONSUMER}
        self._producer = self._made(Producer, {**self._of_user["producer"], **producer})

    def sender(self) -> "ConfluentSender":
        """See the port. One per driver."""
        return ConfluentSender(self._producer)

    def cluster(self, role: Role) -> ConfluentCluster:
        return self._made(
            ConfluentCluster, {**self._of_user[role], "allow.auto.create.topics": False}
        )

    def consumer(self, topic: str) -> ConfluentConsumer:
        return ConfluentConsumer(topic, self._consumer)

    def refusal(self, record: PlainRecord) -> str | None:
        """See the port: librdkafka sends everything."""
        return None

    def _made(self, kind: Callable[[dict[str, Any]], T], properties: dict[str, Any]) -> T:
        try:
            return kind(properties)
        except (KafkaException, ValueError, TypeError) as error:
            raise cannot_be_made(kind.__name__, error) from error


class ConfluentSender:
    """See the port `Sender`. A thread of its own collects the acknowledgements."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._closed = False
        self._collector = Thread(target=self._collect, name="delayd-client", daemon=True)
        self._collector.start()

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        return _produce(self._producer, record, on_outcome)

    def wait_for_room(self, timeout_ms: int) -> None:
        self._producer.poll(timeout_ms / 1000)

    def close(self, timeout_ms: int) -> None:
        self._closed = True
        self._producer.purge()
        self._producer.flush(timeout_ms / 1000)
        self._collector.join(timeout_ms / 1000)

    def _collect(self) -> None:
        while not self._closed:
            self._producer.poll(POLL_INTERVAL_MS / 1000)


def transacting(producer: object) -> UserTransaction | None:
    """Wrap the user's own producer, if it is of this library. Outcomes come inside calls to it.

    It ends each record by its own `message.timeout.ms`.
    """
    if not isinstance(producer, Producer):
        return None
    return UserTransaction(producer, partial(_produce, producer), partial(_flush, producer))


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
