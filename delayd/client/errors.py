"""What can go wrong with a request that a Python program makes.

Invariant: a failure is called definite only if the record certainly is not in the buffer; whatever
else Kafka says leaves the outcome unknown.
"""

from typing import Final

from confluent_kafka import KafkaError

from delayd.errors import DelaydError

_DEFINITE: Final = frozenset(
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


class RequestRefusedError(DelaydError, ValueError):
    """delayd would reject this request, or the call makes no sense; nothing was sent."""

    code = "request-refused"


class NotScheduledError(DelaydError):
    """Kafka or the local queue refused the request for good: it is not scheduled."""

    code = "not-scheduled"


class OutcomeUnknownError(DelaydError):
    """No acknowledgement within the bound: the message may be scheduled or not."""

    code = "outcome-unknown"


def failure(error: KafkaError) -> DelaydError:
    """What a failed delivery report means for the request."""
    return not_scheduled(error.str()) if error.code() in _DEFINITE else outcome_unknown(error.str())


def not_scheduled(what: str) -> NotScheduledError:
    """The error for a request that Kafka certainly does not have."""
    return NotScheduledError(f"the message is not scheduled: {what}", remedy="mend it and repeat")


def outcome_unknown(what: str) -> OutcomeUnknownError:
    """The error for a request that Kafka may or may not have."""
    return OutcomeUnknownError(
        f"the message may be scheduled or not: {what}",
        remedy="repeat it only if a second delivery does no harm",
    )
