"""delayd.bus.confluent.producer: what a delivery report is taken for."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from delayd.bus import Ack
from delayd.bus.confluent import producer
from delayd.bus.confluent.producer import ConfluentProducer, _acknowledge, _kafka_error
from delayd.errors import FencedError, ProducerError


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


PASSING = (
    KafkaError._TIMED_OUT,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.NOT_COORDINATOR,
)
"""What librdkafka calls retriable."""


class ScriptedClients:
    """In place of librdkafka's producer: each call for an epoch ends as the script says."""

    def __init__(self, *script: int | None) -> None:
        self._script = list(script)
        self.asked: list[int] = []
        """Which client was asked, call by call."""
        self._made = 0

    def __call__(self, _: object) -> "ScriptedClients.Client":
        self._made += 1
        return ScriptedClients.Client(self, self._made)

    class Client:
        def __init__(self, clients: "ScriptedClients", number: int) -> None:
            self._clients = clients
            self._number = number

        def list_topics(self, timeout: float) -> None:
            """It is connected."""

        def init_transactions(self, _: float) -> None:
            self._clients.asked.append(self._number)
            script = self._clients._script
            ended = script.pop(0) if len(script) > 1 else script[0]
            if ended is not None:
                raise KafkaException(KafkaError(ended, "said", False, ended in PASSING))


def test_a_coordinator_that_ends_a_transaction_first_is_asked_anew_by_another_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka waits 0.5 s by itself. One that has not answered yet is waited for: its answer may
    come, and would fence another client."""
    silent, busy, moved = PASSING
    clients = ScriptedClients(silent, busy, busy, moved, None)
    monkeypatch.setattr(producer, "Client", clients)
    ConfluentProducer("id", {}).init_transactions(60_000)
    assert clients.asked == [1, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("ended", "raised"),
    [(KafkaError._FENCED, FencedError), (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None)],
)
def test_any_other_answer_ends_the_producer(
    ended: int, raised: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "Client", ScriptedClients(ended))
    with pytest.raises(raised or ProducerError):
        ConfluentProducer("id", {}).init_transactions(60_000)


def test_a_transaction_that_cannot_be_ended_is_named_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer, "Client", ScriptedClients(KafkaError.CONCURRENT_TRANSACTIONS))
    with pytest.raises(ProducerError, match="CONCURRENT_TRANSACTIONS"):
        ConfluentProducer("id", {}).init_transactions(50)


def test_the_cause_of_what_the_driver_raises_is_found_behind_it() -> None:
    fenced = KafkaError(KafkaError._FENCED)
    raised = SystemError("returned a result with an exception set")
    raised.__cause__ = KafkaException(fenced)
    assert _kafka_error(raised) is fenced


def test_a_cause_that_the_driver_has_lost_is_the_producers_failure_and_not_the_nodes() -> None:
    """As `flush` raised it on a busy machine when a frozen master woke, fenced."""
    error = _kafka_error(SystemError("flush returned NULL without setting an exception"))
    assert error.code() == KafkaError._FAIL and "returned NULL" in error.str()
