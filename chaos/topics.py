"""Targets of a cluster under test, and the coordinator of its transactions, for any backend."""

from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.backend import BackendError

TIMEOUT_S: Final = 30
METADATA_TIMEOUT_S: Final = 10
ANSWER_TIMEOUT_S: Final = 5
"""Of a broker that runs."""
TRANSACTION_LOG: Final = "__transaction_state"
FRONTIER: Final = "delayd-frontier"


class Topics:
    """Reaches Kafka as users do. All methods raise BackendError if Kafka does not do it."""

    def __init__(
        self, bootstrap: str, *, copies: int, cluster: str, frontier: str = FRONTIER
    ) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._copies = copies
        self._cluster = cluster
        self._frontier = frontier

    def create(self, topic: str, partitions: int) -> None:
        """Create a target, stamped by the broker."""
        config = {"message.timestamp.type": "LogAppendTime"}
        new = NewTopic(topic, partitions, self._copies, config=config)
        _done(self._admin.create_topics([new], operation_timeout=TIMEOUT_S)[topic])

    def delete(self, topic: str) -> None:
        """Delete a topic and all that is in it."""
        _done(self._admin.delete_topics([topic], operation_timeout=TIMEOUT_S)[topic])

    def are_in_sync(self) -> bool:
        """Return whether each broker answers, and knows all replicas to be in sync. One that was
        killed a moment ago is in sync in what the others tell."""
        return all(map(_knows_all_in_sync, self._bootstrap.split(",")))

    def coordinator(self) -> str:
        """Return the broker."""
        try:
            asked = self._admin.describe_topics(TopicCollection([self._frontier]))
            topic_id = asked[self._frontier].result(TIMEOUT_S).topic_id
            realm = f"{self._cluster}/{topic_id}"
            return f"broker-{coordinator_of(f'delayd-{realm}-shard-0', self._admin)}"
        except KafkaException as error:
            raise BackendError(f"nobody knows the coordinator: {error}") from error


def coordinator_of(transactional_id: str, admin: AdminClient) -> int:
    """Return the broker by Kafka's rule: Java's hash of the id, modulo the partitions of the
    transaction log. Raises KafkaException."""
    found = admin.list_topics(TRANSACTION_LOG, timeout=METADATA_TIMEOUT_S).topics[TRANSACTION_LOG]
    leader: int = found.partitions[abs(_java_hash(transactional_id)) % len(found.partitions)].leader
    return leader


def _knows_all_in_sync(broker: str) -> bool:
    # A client that knows no other broker: it has an answer once this one takes connections.
    try:
        found = AdminClient({"bootstrap.servers": broker, "log_level": 0}).list_topics(
            timeout=ANSWER_TIMEOUT_S
        )
    except KafkaException:
        return False
    return all(
        len(partition.isrs) == len(partition.replicas)
        for topic in found.topics.values()
        for partition in topic.partitions.values()
    )


def _done(future: Any) -> None:
    try:
        future.result(TIMEOUT_S)
    except KafkaException as error:
        raise BackendError(str(error)) from error
    except TimeoutError as error:
        raise BackendError(f"Kafka did not answer within {TIMEOUT_S} s") from error


def _java_hash(text: str) -> int:
    """String.hashCode of ASCII, as a signed 32-bit integer."""
    value = 0
    for byte in text.encode():
        value = (31 * value + byte) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
