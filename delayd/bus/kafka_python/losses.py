"""What became of a transaction that cannot be committed: the first cause, and who refused records.

Not here: who finds it out (the sender thread, the coordinator's answers, the producer itself).

Invariants:
- the first cause stays the cause;
- only what is said of a topic or a record is held against a topic: any other error is about the
  connection, the producer or the transaction, and ends all records that were on their way.
"""

from typing import Final

from delayd.bus.kafka_python.failure import name_of, told
from delayd.bus.kafka_python.library import errors
from delayd.errors import FencedError, ProducerError

TOPICS_NAMED_MAX: Final = 5
"""How many of the refused topics an error's text names."""

_FENCED: Final = (errors.ProducerFencedError, errors.InvalidProducerEpochError)


class UnknownPartitionError(errors.KafkaError):  # type: ignore[misc]  # kafka-python has no types
    """The topic exists and has no such partition; kafka-python has no name for it."""

    message = "_UNKNOWN_PARTITION"


class QueueFullError(errors.KafkaError):  # type: ignore[misc]
    """Too much waits unacknowledged; kafka-python knows no such bound."""

    message = "_QUEUE_FULL"


_REFUSED: Final = (
    UnknownPartitionError,
    errors.CorruptRecordError,
    errors.InvalidRecordError,
    errors.InvalidTimestampError,
    errors.InvalidTopicError,
    errors.MessageSizeTooLargeError,
    errors.NotEnoughReplicasAfterAppendError,
    errors.NotEnoughReplicasError,
    errors.PolicyViolationError,
    errors.RecordListTooLargeError,
    errors.TopicAuthorizationFailedError,
    errors.UnknownTopicIdError,
    errors.UnknownTopicOrPartitionError,
    errors.UnsupportedCompressionTypeError,
    errors.UnsupportedForMessageFormatError,
)
"""As in the other driver."""


class Losses:
    """Of one producer, which is dead after the first. Written by its thread and the sender's."""

    def __init__(self) -> None:
        self.cause: BaseException | None = None
        self._refusals: dict[str, str] = {}

    def note(self, error: BaseException) -> None:
        """Note that a record is lost, or the transaction."""
        if self.cause is None:
            self.cause = error

    def note_refusal(self, topic: str, error: BaseException) -> None:
        """Note the refusal of a topic's records, unless the error is not about the topic."""
        if isinstance(error, _REFUSED):
            self._refusals.setdefault(topic, name_of(error))

    def failure(self, whose: str, doing: str, error: BaseException) -> ProducerError:
        """Return what to raise for `error`, or for the cause that was noted before it."""
        first = self.cause or error
        fenced = isinstance(error, _FENCED) or isinstance(first, _FENCED)
        refusals = dict(self._refusals)
        topics = ", ".join(sorted(refusals)[:TOPICS_NAMED_MAX])
        return (FencedError if fenced else ProducerError)(
            f"{whose}: {doing}: {told(first, topics)}",
            remedy="another master took over" if fenced else "",
            refusals=refusals,
        )
