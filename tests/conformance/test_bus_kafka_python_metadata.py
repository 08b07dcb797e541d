"""The guards around kafka-python's metadata: topics that come, go, or still spread."""

import uuid
from collections.abc import Iterator
from typing import Any, cast

import pytest
import test_bus_desk
import test_bus_kafka_python
from confluent_kafka import Uuid
from test_bus_desk import POLL_MS, TIMEOUT_MS, Desk, RealSite, eventually, read, send
from test_bus_kafka_python import CLOSE_MS_MAX, opened

from delayd.bus.existence import Existence
from delayd.bus.kafka_python import descriptions
from delayd.bus.kafka_python.cluster import KafkaPythonCluster
from delayd.bus.kafka_python.consumer import KafkaPythonConsumer
from delayd.bus.kafka_python.descriptions import id_text
from delayd.bus.kafka_python.library import Future, errors
from delayd.bus.kafka_python.producer import KafkaPythonProducer
from delayd.bus.kafka_python.questions import Said
from delayd.errors import KafkaUnreachableError, ProducerError
from delayd.runtime.clock import SystemClock

pytestmark = pytest.mark.real
desk, site = test_bus_desk.desk, test_bus_kafka_python.site

VANISHED_MS_MAX = 5_000
"""Much less than the 10 s after which a record expires."""


def test_one_broker_that_does_not_know_a_topic_yet_ends_no_reading(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.bus.existence.EXISTENCE_CHECK_MS", 0)
    monkeypatch.setattr("delayd.bus.existence.EXISTENCE_RECHECK_MS", 100)
    topic = desk.topic()
    consumer = cast(KafkaPythonConsumer, desk.consumer(topic))
    metadata = consumer._client.cluster
    know = metadata.partitions_for_topic
    denials = iter(["once"])
    asked: list[set[int] | None] = []

    def deny_at_first(name: str) -> set[int] | None:
        asked.append(None if next(denials, None) else know(name))
        return asked[-1]

    monkeypatch.setattr(metadata, "partitions_for_topic", deny_at_first)
    consumer._existence = Existence(topic, 0)

    def asked_again() -> bool:
        assert consumer.poll(10, POLL_MS) == []
        return len(asked) > 1

    eventually(asked_again, "it is asked about again")
    desk.commit(topic, b"x")
    assert [r.value for r in read(consumer, 1)] == [b"x"]


def test_silence_says_nothing_about_whether_a_topic_exists(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EXISTENCE_CHECK_MS", "EXISTENCE_RECHECK_MS"):
        monkeypatch.setattr(f"delayd.bus.existence.{name}", 0)
    consumer = cast(KafkaPythonConsumer, desk.consumer(desk.topic()))
    metadata = consumer._client.cluster
    lost = errors.KafkaConnectionError("lost")
    monkeypatch.setattr(metadata, "request_update", lambda: Future().failure(lost))
    monkeypatch.setattr(metadata, "partitions_for_topic", lambda topic: None)
    assert [consumer.poll(10, POLL_MS) for _ in range(10)] == [[]] * 10


def vanish(desk: Desk, topic: str) -> None:
    cast(RealSite, desk.site).delete(topic)
    eventually(lambda: desk.cluster.describe([topic], TIMEOUT_MS) == {}, "the topic is gone")


def fails_soon(producer: KafkaPythonProducer, topic: str) -> None:
    before_ms = SystemClock().monotonic_ms()
    with pytest.raises(ProducerError, match="UNKNOWN_TOPIC_OR_PART") as raised:
        producer.flush(TIMEOUT_MS)
    assert SystemClock().monotonic_ms() - before_ms < VANISHED_MS_MAX
    assert topic in str(raised.value)


def test_a_topic_that_vanished_before_the_transaction_fails_it_soon(desk: Desk) -> None:
    """kafka-python asks the coordinator to take it in, again and again, without end."""
    topic, producer = desk.topic(), opened(desk)
    send(producer, topic, b"1")
    producer.commit(TIMEOUT_MS)
    vanish(desk, topic)
    producer.begin()
    send(producer, topic, b"2")
    fails_soon(producer, topic)


def test_a_topic_that_vanished_within_the_transaction_fails_it_soon(desk: Desk) -> None:
    """kafka-python keeps its records until they expire, after the transaction did."""
    topic, producer = desk.topic(), opened(desk)
    send(producer, topic, b"1")
    producer.flush(TIMEOUT_MS)
    vanish(desk, topic)
    send(producer, topic, b"2")
    fails_soon(producer, topic)


def test_a_survey_of_many_topics_takes_two_requests(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [desk.topic() for _ in range(5)]
    cluster = cast(KafkaPythonCluster, desk.cluster)
    cluster.broker_count(TIMEOUT_MS)
    asked: list[str] = []
    ask = cluster._client._manager.send

    async def counted(request: Any, **properties: Any) -> Any:
        asked.append(type(request).__name__)
        return await ask(request, **properties)

    monkeypatch.setattr(cluster._client._manager, "send", counted)
    assert cluster.survey([*topics, "absent"], TIMEOUT_MS).states.keys() == set(topics)
    assert asked == ["MetadataRequest", "DescribeConfigsRequest"]


@pytest.mark.parametrize("left_out", [True, False])
@pytest.mark.parametrize("part", ["_read_metadata", "_read_configs"])
def test_a_topic_whose_description_still_spreads_holds_up_the_others_for_a_moment_only(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, part: str, left_out: bool
) -> None:
    early, others = desk.topic(), {desk.topic(), desk.topic()}
    read_answer = getattr(descriptions, part)

    def not_yet(answer: Any) -> Iterator[Said]:
        for said in read_answer(answer):
            if said.key != early:
                yield said
            elif not left_out:
                yield said._replace(error=errors.LeaderNotAvailableError())

    monkeypatch.setattr(descriptions, part, not_yet)
    before_ms = SystemClock().monotonic_ms()
    survey = desk.cluster.survey([early, *others], TIMEOUT_MS)
    assert SystemClock().monotonic_ms() - before_ms < TIMEOUT_MS / 5
    assert survey.states.keys() == others
    assert survey.silent == {early} and not survey.refused
    with pytest.raises(KafkaUnreachableError, match=f"{early}|LEADER_NOT_AVAILABLE|left it out"):
        desk.cluster.describe([early, *others], 1_500)


def test_a_question_whose_connection_is_lost_is_asked_again_and_one_without_answer_ends_in_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cast(KafkaPythonCluster, desk.cluster)
    cluster.broker_count(TIMEOUT_MS)
    ask = cluster._client._manager.send
    failures = iter([errors.KafkaConnectionError("lost"), errors.NotControllerError("moved")])

    async def at_second_try(request: Any, **properties: Any) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await ask(request, **properties)

    async def never(request: Any, **properties: Any) -> Any:
        return await Future()

    monkeypatch.setattr(cluster._client._manager, "send", at_second_try)
    assert cluster.broker_count(TIMEOUT_MS) == 1
    monkeypatch.setattr(cluster._client._manager, "send", never)
    before_ms = SystemClock().monotonic_ms()
    with pytest.raises(KafkaUnreachableError):
        cluster.describe(["any"], 300)
    assert SystemClock().monotonic_ms() - before_ms < CLOSE_MS_MAX


def test_a_topic_is_not_created_before_its_partitions_have_leaders(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = iter(range(3))
    read_answer = descriptions._read_metadata

    def none_yet(answer: Any) -> Iterator[Said]:
        for said in read_answer(answer):
            # A broker that has just heard of the topic names no partition yet.
            if said.given.partitions and next(waiting, None) is not None:
                said.given.partitions[0].leader_id = -1
            yield said

    monkeypatch.setattr(descriptions, "_read_metadata", none_yet)
    desk.topic()
    assert next(waiting, None) is None


def test_a_topic_s_id_is_written_as_by_the_other_driver() -> None:
    """Frontier records hold it, and nodes compare it with what their brokers say."""
    for number in (2**128 - 1, 0x0123456789ABCDEF_FFEEDDCCBBAA9988, 62 << 120):
        high, low = number >> 64, number & (2**64 - 1)
        theirs = Uuid(high - (high >> 63 << 64), low - (low >> 63 << 64))
        assert id_text(uuid.UUID(int=number)) == str(theirs)
