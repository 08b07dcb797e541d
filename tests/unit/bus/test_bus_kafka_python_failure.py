"""A refusal has one name, whichever driver met it: what is done about it hangs on the name."""

import pytest
from confluent_kafka import KafkaError

from delayd.bus.confluent.failures import REFUSED as REFUSED_BY_LIBRDKAFKA
from delayd.bus.kafka_python.failures import Losses, name_of
from delayd.bus.kafka_python.library import errors

NO_REFUSAL = {KafkaError.INVALID_MSG_SIZE}
"""No broker says this of a produced record: in the protocol the number is of fetches."""

OF_BROKERS = sorted(code for code in REFUSED_BY_LIBRDKAFKA - NO_REFUSAL if code > 0)


@pytest.mark.parametrize("code", OF_BROKERS)
def test_what_is_held_against_a_topic_is_the_same_in_both_drivers(code: int) -> None:
    losses = Losses()
    losses.note_refusal("t", errors.for_code(code)())
    name = KafkaError(code).name()
    assert losses.failure("id", "flush", errors.KafkaError()).refusals == {"t": name}
    assert name_of(errors.for_code(code)()) == name


@pytest.mark.parametrize(
    "error",
    [
        errors.KafkaConnectionError,
        errors.KafkaTimeoutError,
        errors.InvalidProducerEpochError,
        errors.InvalidTxnStateError,
        errors.OutOfOrderSequenceNumberError,
        errors.ProducerFencedError,
        errors.TransactionalIdAuthorizationFailedError,
        errors.UnknownError,
        errors.KafkaStorageError,
    ],
)
def test_what_is_not_said_of_a_topic_is_held_against_none(error: type[BaseException]) -> None:
    losses = Losses()
    losses.note(error())
    losses.note_refusal("t", error())
    assert not losses.failure("id", "flush", error()).topics


def test_the_first_cause_is_told_and_being_fenced_is_told_however_late() -> None:
    losses = Losses()
    losses.note(errors.InvalidRecordError("first"))
    losses.note(errors.InvalidTopicError("second"))
    losses.note_refusal("b", errors.InvalidRecordError("first"))
    failure = losses.failure("id", "commit", errors.KafkaError("third"))
    assert str(failure) == "id: commit: INVALID_RECORD of b, first"
    fenced = losses.failure("id", "commit", errors.ProducerFencedError())
    assert fenced.code == "fenced" and fenced.remedy
