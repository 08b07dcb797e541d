"""delayd.bus.confluent.producer: what a delivery report is taken for."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from delayd.bus import Ack
from delayd.bus.confluent.producer import _acknowledge, _kafka_error


def report(offset: int | None) -> Any:
    return SimpleNamespace(
        partition=lambda: 0, offset=lambda: offset, timestamp=lambda: (2, 1_000), topic=lambda: "t"
    )


@pytest.mark.parametrize("offset", [None, -1])
def test_an_acknowledgement_without_a_place_is_a_loss(offset: int | None) -> None:
    """So a broker answers for a repeated batch that it no longer recognises; the time is not its
    own then."""
    noted: list[KafkaError | None] = []
    acks: list[Ack] = []
    _acknowledge(lambda error, _: noted.append(error), acks.append, None, report(offset))
    [error] = noted
    assert error is not None and error.code() == KafkaError.DUPLICATE_SEQUENCE_NUMBER
    assert acks == []


def test_an_acknowledgement_says_where_and_when_a_record_was_appended() -> None:
    noted: list[KafkaError | None] = []
    acks: list[Ack] = []
    _acknowledge(lambda error, _: noted.append(error), acks.append, None, report(7))
    assert (noted, acks) == ([], [Ack(0, 7, 1_000)])


def test_the_cause_of_what_the_driver_raises_is_found_behind_it() -> None:
    fenced = KafkaError(KafkaError._FENCED)
    raised = SystemError("returned a result with an exception set")
    raised.__cause__ = KafkaException(fenced)
    assert _kafka_error(raised) is fenced


def test_a_cause_that_the_driver_has_lost_is_the_producers_failure_and_not_the_nodes() -> None:
    """As `flush` raised it on a busy machine when a frozen master woke, fenced."""
    error = _kafka_error(SystemError("flush returned NULL without setting an exception"))
    assert error.code() == KafkaError._FAIL and "returned NULL" in error.str()
