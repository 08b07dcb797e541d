"""What librdkafka's errors mean to a producer: fenced, refused, given up, or to be asked again.

Not here: what a producer does then.
"""

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from delayd.bus import Ack

FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)

REFUSED: Final = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)
"""Errors about a topic or a record. Any other report is about the connection, the producer or the
transaction, and names every record that happened to be in flight."""


REMEDIES: Final = {
    "CONCURRENT_TRANSACTIONS": "the last transaction cannot be ended, because a partition in it "
    "has no leader or too few replicas in sync: see docs/operations.md, 'A transaction that cannot "
    "end'",
}

PURGED: Final = frozenset({KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE})
"""Errors of records that were not at fault, or never tried."""


class Failures:
    """Lost records, by delivery reports: the first cause, and the refusal of each topic."""

    __slots__ = ("first", "refusals", "silent")

    def __init__(self) -> None:
        self.first: KafkaError | None = None
        self.refusals: dict[str, str] = {}
        self.silent: set[tuple[str, int]] = set()
        """Partitions of records that were dropped before they were acknowledged."""

    def note_report(self, error: KafkaError | None, message: Message) -> None:
        """Take a delivery report; called once per record, so it does next to nothing."""
        if error is None:
            return
        topic, partition = message.topic(), message.partition()
        self.note(error, topic or "", -1 if partition is None else partition)

    def note(self, error: KafkaError, topic: str, partition: int) -> None:
        """Note that a record of this partition was lost, -1 if it had none yet."""
        if self.first is None:
            self.first = error
        if error.code() in REFUSED:
            self.refusals.setdefault(topic, error.name())
        elif error.code() in PURGED and topic and partition >= 0:
            self.silent.add((topic, partition))


def kafka_error(error: KafkaException | SystemError) -> KafkaError:
    """Return Kafka's error in an exception of the driver."""
    # confluent-kafka raises a fatal error and goes on to call the delivery callbacks, in which
    # the pending exception turns into a SystemError that has it as its cause.
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KafkaException):
            found = cause.args[0]
            assert isinstance(found, KafkaError), f"not an error of Kafka: {cause!r}"
            return found
        cause = cause.__cause__ or cause.__context__
    # Sometimes it is lost on the way: "returned NULL without setting an exception".
    return KafkaError(KafkaError._FAIL, f"the driver lost the cause: {error}")


def may_go_on(error: KafkaError) -> bool:
    """True if the same call may be repeated, because only its time was over."""
    return error.code() == KafkaError._TIMED_OUT and error.retriable()


def acknowledge(
    note: Callable[[KafkaError | None, Message], None],
    on_ack: Callable[[Ack], None],
    error: KafkaError | None,
    message: Message,
) -> None:
    """Take the delivery report of a record that somebody waits for."""
    if error is not None:
        note(error, message)
        return
    partition, offset = message.partition(), message.offset()
    if partition is None or offset is None or offset < 0:
        # A repeated batch whose place and time the broker no longer remembers.
        note(
            KafkaError(KafkaError.DUPLICATE_SEQUENCE_NUMBER, "acknowledged without a place"),
            message,
        )
        return
    on_ack(Ack(partition, offset, message.timestamp()[1]))
