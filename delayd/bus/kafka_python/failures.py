"""kafka-python's exceptions in the words of the other driver, and why a transaction failed.

Not here: which of delayd's errors one becomes elsewhere; who finds a loss out (the sender thread,
the coordinator's answers, the producer itself).

Invariants:
- the same refusal of a broker has the same name whichever driver met it, so that a remedy can be
  looked up by it;
- the first cause of a failure stays the cause;
- only an error about a topic or a record is held against a topic: any other error is about the
  connection, the producer or the transaction, and ends all records that were on their way.
"""

from typing import Final

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

_NAMES: Final = {
    errors.CorruptRecordError: "INVALID_MSG",
    errors.InvalidConfigurationError: "INVALID_CONFIG",
    errors.InvalidTopicError: "TOPIC_EXCEPTION",
    errors.KafkaConnectionError: "_TRANSPORT",
    errors.KafkaTimeoutError: "_TIMED_OUT",
    errors.MessageSizeTooLargeError: "MSG_SIZE_TOO_LARGE",
    errors.NodeNotReadyError: "_TRANSPORT",
    errors.UnknownTopicOrPartitionError: "UNKNOWN_TOPIC_OR_PART",
}
"""librdkafka's names of errors, where the protocol has another name or none."""


def name_of(error: BaseException) -> str:
    """Return a short name in capitals, such as `MSG_SIZE_TOO_LARGE`; else the class."""
    known = _NAMES.get(type(error))
    return known or str(getattr(error, "message", type(error).__name__))


def told(error: BaseException, whose: str = "") -> str:
    """Return the name of an error, what it is about (`whose`), and kafka-python's own text."""
    said = ", ".join(str(each) for each in error.args if each is not None)
    said = said or getattr(error, "description", type(error).__name__)
    return f"{name_of(error)}{f' of {whose}' if whose else ''}, {said}"


class Losses:
    """Of one producer, which is dead after the first. Written by its thread and the sender's."""

    def __init__(self) -> None:
        self.cause: BaseException | None = None
        self._refusals: dict[str, str] = {}
        self.silent: set[tuple[str, int]] = set()
        """Topics and partitions whose acknowledgements were missing when the time was over."""

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
            silent=self.silent,
        )
