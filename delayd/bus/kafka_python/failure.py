"""kafka-python's exceptions in the words of the other driver.

Not here: which of delayd's errors one becomes; each client decides that.

Invariant: the same refusal of a broker has the same name whichever driver met it, so that a remedy
can be looked up by it.
"""

from typing import Final

from delayd.bus.kafka_python.library import errors

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
"""Where librdkafka has another name than the protocol's, or the protocol has none."""


def name_of(error: BaseException) -> str:
    """Return a short name in capitals, such as `MSG_SIZE_TOO_LARGE`; else the class."""
    known = _NAMES.get(type(error))
    return known or str(getattr(error, "message", type(error).__name__))


def told(error: BaseException, whose: str = "") -> str:
    """Return the name of an error, whose it is, and kafka-python's own text."""
    said = ", ".join(str(each) for each in error.args if each is not None)
    said = said or getattr(error, "description", type(error).__name__)
    return f"{name_of(error)}{f' of {whose}' if whose else ''}, {said}"
