"""delayd.bus.confluent.producer: what a delivery report is taken for."""

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from delayd.bus import Ack
from delayd.bus.confluent import producer
from delayd.bus.confluent.failures import acknowledge, kafka_error
from delayd.bus.confluent.producer import ConfluentProducer
from delayd.errors import FencedError, ProducerError

T = TypeVar("T")


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
    acknowledge(lambda error, _: noted.append(error), acks.append, None, report(offset))
    [error] = noted
    assert error is not None and error.code() == KafkaError.DUPLICATE_SEQUENCE_NUMBER
    assert acks == []


def test_an_acknowledgement_says_where_and_when_a_record_was_appended() -> None:
    noted: list[KafkaError | None] = []
    acks: list[Ack] = []
    acknowledge(lambda error, _: noted.append(error), acks.append, None, report(7))
    assert (noted, acks) == ([], [Ack(0, 7, 1_000)])


PASSING = (
    KafkaError._TIMED_OUT,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.NOT_COORDINATOR,
)
"""What librdkafka calls retriable."""


class ScriptedClients:
    """In place of librdkafka's producer: each call that waits for brokers ends as the script
    says, and so do the questions which brokers there are."""

    def __init__(self, *script: int | None, brokers: Sequence[Collection[int] | None] = ((),)):
        self._script = list(script)
        self._brokers = list(brokers)
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

        def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
            assert timeout >= 0 and topic.startswith("__"), "about one topic that is there"
            if (told := _next(self._clients._brokers)) is None:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return SimpleNamespace(brokers=dict.fromkeys(told))

        def init_transactions(self, _: float) -> None:
            self._clients.asked.append(self._number)
            if (ended := _next(self._clients._script)) is not None:
                raise KafkaException(KafkaError(ended, "said", False, ended in PASSING))

        commit_transaction = init_transactions

        def flush(self, _: float) -> int:
            self._clients.asked.append(self._number)
            return _next(self._clients._script) or 0

        def purge(self, **_: bool) -> None:
            """Nothing is in flight."""


def _next(script: list[T]) -> T:
    return script.pop(0) if len(script) > 1 else script[0]


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


def test_a_new_client_asks_for_the_coordinator_that_replaces_a_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """docs/design/frontier.md, A broker that dies. One that does not answer which brokers there are
    tells nothing, and a broker that comes back is no news."""
    told: list[Collection[int] | None] = [{1, 2, 3}, {1, 2, 3}, None, {1, 2}, {1, 2}, {1, 2, 3}]
    clients = ScriptedClients(*[PASSING[0]] * 7, None, brokers=told)
    monkeypatch.setattr(producer, "Client", clients)
    monkeypatch.setattr(producer, "LOOK_MS", 0)
    ConfluentProducer("id", {}).init_transactions(60_000)
    assert clients.asked == [1, 1, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("doing", ["flush", "commit"])
def test_a_transaction_that_waits_is_given_up_once_a_broker_is_gone(
    doing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, A broker that dies."""
    told: list[Collection[int] | None] = [{1, 2, 3}, {1, 2, 3}, None, {1, 3}]
    waits = 5 if doing == "flush" else KafkaError._TIMED_OUT
    clients = ScriptedClients(None, waits, brokers=told)
    monkeypatch.setattr(producer, "Client", clients)
    made = ConfluentProducer("id", {})
    made.init_transactions(60_000)
    with pytest.raises(ProducerError, match=f"{doing}: broker 2 is gone") as given_up:
        getattr(made, doing)(60_000)
    assert given_up.value.is_broker_gone


@pytest.mark.parametrize("doing", ["flush", "commit"])
def test_a_transaction_waits_on_while_all_brokers_are_there(
    doing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 5 if doing == "flush" else KafkaError._TIMED_OUT
    clients = ScriptedClients(None, waits, waits, None, brokers=[{1, 2}])
    monkeypatch.setattr(producer, "Client", clients)
    made = ConfluentProducer("id", {})
    made.init_transactions(60_000)
    getattr(made, doing)(60_000)
    assert len(clients.asked) == 4


def test_a_producer_without_transactions_gives_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends may be there: another one would send it again."""
    monkeypatch.setattr(producer, "Client", ScriptedClients(5, brokers=[{1, 2}, {1}]))
    with pytest.raises(ProducerError, match="_TIMED_OUT") as failed:
        ConfluentProducer(None, {}).flush(60_000)
    assert not failed.value.is_broker_gone


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
    assert kafka_error(raised) is fenced


def test_a_cause_that_the_driver_has_lost_is_the_producers_failure_and_not_the_nodes() -> None:
    """As `flush` raised it on a busy machine when a frozen master woke, fenced."""
    error = kafka_error(SystemError("flush returned NULL without setting an exception"))
    assert error.code() == KafkaError._FAIL and "returned NULL" in error.str()
