"""The guards around the traps of kafka-python (docs/adr/0014-kafka-python-for-nodes.md).

Those about metadata are in `test_bus_kafka_python_metadata.py`. The library's
inner parts are looked at in these two and nowhere else: each test provokes one trap and is red when
its guard is taken out.
"""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import test_bus_desk
from test_bus_desk import (
    POLL_MS,
    TIMEOUT_MS,
    Desk,
    RealSite,
    eventually,
    read,
    read_to,
    send,
    silent_broker,
)

from delayd.bus import Ack, Headers, Position
from delayd.bus.kafka_python import KafkaPythonBus, descriptions
from delayd.bus.kafka_python.consumer import KafkaPythonConsumer
from delayd.bus.kafka_python.guards import _AddPartitions
from delayd.bus.kafka_python.library import Future, TopicPartition, errors
from delayd.bus.kafka_python.producer import KafkaPythonProducer, _Waiting
from delayd.errors import ProducerError
from delayd.runtime.clock import SystemClock

pytestmark = pytest.mark.real
desk = test_bus_desk.desk

CLOSE_MS_MAX = 2_000


@pytest.fixture
def site(kafka_and_etcd: Any) -> RealSite:
    return RealSite(kafka_and_etcd.bootstrap, KafkaPythonBus)


def opened(desk: Desk) -> KafkaPythonProducer:
    """A producer with a transaction, whose inner parts may be touched."""
    return cast(KafkaPythonProducer, desk.begun())


def only_next_is_committed(desk: Desk, topic: str) -> None:
    desk.commit(topic, b"next")
    assert [r.value for r in read(desk.consumer(topic), 1)] == [b"next"]


def test_a_record_that_expired_keeps_the_transaction_from_committing(desk: Desk) -> None:
    """kafka-python calls that retriable, and commits the rest."""
    topic, producer = desk.topic(), opened(desk)
    send(producer, topic, b"sent")
    producer.flush(TIMEOUT_MS)
    producer._accumulator.config["delivery_timeout_ms"] = 0
    send(producer, topic, b"expired")
    with pytest.raises(ProducerError, match="_TIMED_OUT"):
        producer.commit(TIMEOUT_MS)
    producer.close()
    only_next_is_committed(desk, topic)


def test_a_lost_sequence_is_the_end_and_bumps_no_epoch(desk: Desk) -> None:
    """kafka-python has the broker abort the transaction, and goes on with the next epoch."""
    topic, producer = desk.topic(), opened(desk)
    send(producer, topic, b"sent")
    producer.flush(TIMEOUT_MS)
    before = producer._transactions.producer_id_and_epoch
    producer._transactions.set_sequence_number(TopicPartition(topic, 0), 7)
    send(producer, topic, b"out of order")
    with pytest.raises(ProducerError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        producer.flush(TIMEOUT_MS)
    assert producer._transactions.has_fatal_error()
    assert producer._transactions.producer_id_and_epoch == before
    with pytest.raises(AssertionError, match="dead"):
        send(producer, topic, b"of the dead transaction")
    producer.close()
    only_next_is_committed(desk, topic)


def test_a_fenced_producer_does_not_come_back_with_a_newer_epoch(desk: Desk) -> None:
    topic, zombie = desk.topic(), opened(desk)
    send(zombie, topic, b"before")
    zombie.flush(TIMEOUT_MS)
    successor = desk.producer()
    send(zombie, topic, b"after")
    with pytest.raises(ProducerError):
        zombie.flush(TIMEOUT_MS)
    assert not zombie._transactions.is_bumping_epoch()
    assert zombie._transactions.has_fatal_error()
    successor.begin()
    send(successor, topic, b"successor")
    successor.commit(TIMEOUT_MS)


def test_closing_ends_the_sender_thread_with_a_request_that_is_never_answered(
    site: RealSite,
) -> None:
    with silent_broker() as (address, _):
        bus = site.other_bus(address)
        producer = cast(KafkaPythonProducer, bus.transactional_producer("held"))
        with pytest.raises(ProducerError):
            producer.init_transactions(300)
        before_ms = SystemClock().monotonic_ms()
        producer.close()
        producer._sender.join(CLOSE_MS_MAX / 1000)
        assert not producer._sender.is_alive()
        assert SystemClock().monotonic_ms() - before_ms < CLOSE_MS_MAX


def test_closing_ends_the_sender_thread_that_connects_to_a_silent_coordinator(desk: Desk) -> None:
    topic, producer = desk.topic(), opened(desk)
    with silent_broker() as (_, silent):
        host, port = silent.getsockname()
        moved = SimpleNamespace(error_code=0, node_id=77, host=host, port=port, rack=None)
        producer._transactions._transaction_coordinator = producer._metadata.add_coordinator(
            moved, "transaction", desk.id
        )
        send(producer, topic, b"x")
        connection, _ = silent.accept()
        with connection:
            producer.close()
            producer._sender.join(CLOSE_MS_MAX / 1000)
            assert not producer._sender.is_alive()


def test_closing_ends_the_sender_thread_with_records_that_were_never_sent(desk: Desk) -> None:
    topic, producer = desk.topic(), opened(desk)
    producer._accumulator.config["linger_ms"] = 60_000
    send(producer, topic, b"lingers")
    producer.close()
    producer._sender.join(CLOSE_MS_MAX / 1000)
    assert not producer._sender.is_alive()
    assert desk.end_offset(topic) == 0, "closing sends nothing more"


@contextmanager
def bounded(desk: Desk, site: RealSite, of: str, limit: int) -> Iterator[KafkaPythonProducer]:
    """A producer with a transaction, whose queue takes no more."""
    bus = site.other_bus(**{f"producer.queue.buffering.max.{of}": str(limit)})
    with closing(cast(KafkaPythonProducer, bus.transactional_producer(desk.id))) as producer:
        producer.init_transactions(TIMEOUT_MS)
        producer.begin()
        yield producer


def test_what_waits_unacknowledged_is_bounded(desk: Desk, site: RealSite) -> None:
    """kafka-python has a setting for it that it ignores."""
    topic = desk.topic()
    with bounded(desk, site, "messages", 100) as producer:
        acks: list[Ack] = []
        for n in range(1_000):
            send(producer, topic, b"%d" % n, on_ack=acks.append)
            assert n + 1 - len(acks) <= 100
        producer.commit(TIMEOUT_MS)
    assert len(acks) == 1_000


def test_the_bytes_that_wait_are_bounded_too(desk: Desk, site: RealSite) -> None:
    topic = desk.topic()
    with bounded(desk, site, "kbytes", 100) as producer:
        acks: list[Ack] = []
        for n in range(100):
            send(producer, topic, bytes(10_000), on_ack=acks.append)
            assert n + 1 - len(acks) <= 10
        producer.commit(TIMEOUT_MS)


def test_a_queue_that_does_not_empty_fails_send_in_bounded_time(
    desk: Desk, site: RealSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.bus.kafka_python.producer.SEND_WAIT_MS_MAX", 300)
    with bounded(desk, site, "messages", 2) as producer:
        topic = desk.topic()
        producer._accumulator.config["linger_ms"] = 60_000
        with pytest.raises(ProducerError, match="_QUEUE_FULL"):
            for n in range(3):
                send(producer, topic, b"%d" % n)


def test_no_client_lets_a_broker_create_a_topic(desk: Desk, site: RealSite) -> None:
    """kafka-python takes `allow_auto_create_topics` and forgets it."""
    topic = desk.topic()
    consumer = cast(KafkaPythonConsumer, desk.consumer(topic))
    producer = cast(KafkaPythonProducer, desk.producer())
    for client in (consumer._client, producer._client, cast(Any, desk.cluster)._client):
        assert client.cluster.metadata_request().allow_auto_topic_creation is False
    assert descriptions.metadata_request([topic]).allow_auto_topic_creation is False


def test_the_epoch_of_a_position_outlives_empty_answers(desk: Desk) -> None:
    """kafka-python forgets it, and with it whether the log was truncated behind the position."""
    topic = desk.topic()
    desk.commit(topic, b"0")
    consumer = cast(KafkaPythonConsumer, desk.consumer(topic))
    read_to(consumer, 0, 2)
    for _ in range(5):
        assert consumer.poll(10, POLL_MS) == []
    assert consumer._positions.position(TopicPartition(topic, 0)).leader_epoch == 0


def test_a_position_with_an_epoch_is_checked_before_anything_is_read(desk: Desk) -> None:
    topic = desk.topic()
    desk.commit(topic, b"0")
    consumer = cast(KafkaPythonConsumer, desk.consumer(topic, {0: Position(0, 0)}))
    place = TopicPartition(topic, 0)
    assert not consumer._positions.is_fetchable(place)
    read(consumer, 1)
    assert consumer._positions.is_fetchable(place)


def test_the_error_names_the_guilty_topic_and_not_its_neighbours(desk: Desk) -> None:
    """A broker's refusal ends the whole transaction, with every record in it."""
    good, compacted = desk.topic(), desk.topic(cleanup_policy="compact")
    producer = opened(desk)
    producer._accumulator.muted.add(TopicPartition(good, 0))  # so that it fails with the other
    send(producer, good, b"innocent", key=b"k")
    send(producer, compacted, b"no key")
    with pytest.raises(ProducerError) as raised:
        producer.flush(TIMEOUT_MS)
    assert compacted in str(raised.value) and good not in str(raised.value)


def test_an_answer_with_several_refusals_is_noted_as_a_whole(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one wakes the caller, who must not go away with half of them."""
    guilty = [desk.topic(cleanup_policy="compact") for _ in range(3)]
    producer = opened(desk)
    for topic in guilty:
        send(producer, topic, b"fine", key=b"k")
    producer.commit(TIMEOUT_MS)
    note = producer._losses.note_refusal

    def note_slowly(topic: str, error: BaseException) -> None:
        threading.Event().wait(0.2)
        note(topic, error)

    monkeypatch.setattr(producer._losses, "note_refusal", note_slowly)
    producer.begin()
    for topic in guilty:
        send(producer, topic, b"no key")
    with pytest.raises(ProducerError) as raised:
        producer.flush(TIMEOUT_MS)
    assert raised.value.topics == set(guilty)


def test_a_batch_above_the_limit_of_its_topic_is_split_and_arrives_once_and_unaltered(
    desk: Desk,
) -> None:
    """kafka-python splits and numbers it anew, within the transaction."""
    small, producer = desk.topic(max_message_bytes="20000"), opened(desk)
    headers: Headers = [("h", None), ("h", b""), ("", b"\xff")]
    acks: list[Ack] = []
    for n in range(100):
        send(producer, small, b"%04d" % n * 250, headers=headers, on_ack=acks.append)
    producer.commit(TIMEOUT_MS)
    records = read(desk.consumer(small), 100)
    assert [r.value for r in records] == [b"%04d" % n * 250 for n in range(100)]
    assert all(r.headers == headers for r in records)
    assert acks == [Ack(r.partition, r.offset, r.append_ms) for r in records]


def test_a_refusal_that_was_mended_by_splitting_accuses_nobody(desk: Desk) -> None:
    small, compacted = desk.topic(max_message_bytes="20000"), desk.topic(cleanup_policy="compact")
    producer = opened(desk)
    for _ in range(100):
        send(producer, small, bytes(1_000))
    producer.flush(TIMEOUT_MS)
    send(producer, compacted, b"no key")
    with pytest.raises(ProducerError) as raised:
        producer.flush(TIMEOUT_MS)
    assert raised.value.refusals == {compacted: "INVALID_RECORD"}


def test_a_failed_record_is_noticed_while_sending(desk: Desk) -> None:
    good, compacted = desk.topic(), desk.topic(cleanup_policy="compact")
    producer = opened(desk)
    send(producer, compacted, b"no key")

    def noticed() -> bool:
        try:
            send(producer, good, b"x")
        except ProducerError:
            return True
        return False

    eventually(noticed, "an exception out of send")


def test_a_flush_ends_in_time_though_its_records_cannot_be_sent(desk: Desk) -> None:
    topic, producer = desk.topic(), opened(desk)
    producer._accumulator.muted.add(TopicPartition(topic, 0))
    send(producer, topic, b"x")
    before_ms = SystemClock().monotonic_ms()
    with pytest.raises(ProducerError, match="_TIMED_OUT") as raised:
        producer.flush(300)
    assert SystemClock().monotonic_ms() - before_ms < CLOSE_MS_MAX
    assert not raised.value.topics, "that says nothing about the topic"


def test_a_coordinator_that_does_not_know_a_partition_yet_is_asked_again_for_a_while(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, producer = desk.topic(), opened(desk)
    transactions, losses = producer._transactions, producer._losses
    answer = SimpleNamespace(results_by_topic_v3_and_below=[(topic, [(0, 3)])])
    asked = _AddPartitions(transactions, {TopicPartition(topic, 0)}, losses, SystemClock())
    monkeypatch.setattr(transactions, "_enqueue_request", lambda request: None)
    asked.handle_response(answer)
    assert not transactions.has_error()
    asked._deadline_ms = 0
    asked.handle_response(answer)
    assert transactions.has_abortable_error()
    assert losses.failure("id", "flush", transactions.last_error).topics == {topic}


def test_an_acknowledgement_without_a_place_is_a_loss(desk: Desk) -> None:
    """So it answers for a batch whose repetition the broker no longer recognises."""
    topic, producer = desk.topic(), opened(desk)
    acks: list[Ack] = []
    report = Future().success(SimpleNamespace(partition=0, offset=-1, timestamp=1))
    producer._waiting.append(_Waiting(report, topic, 1, acks.append))
    with pytest.raises(ProducerError, match="DUPLICATE_SEQUENCE_NUMBER"):
        producer.flush(TIMEOUT_MS)
    assert acks == []


def test_a_broker_that_refused_credentials_once_is_asked_again(desk: Desk) -> None:
    cluster = cast(Any, desk.cluster)
    refused = errors.SaslAuthenticationFailedError("for now")
    brokers = ("bootstrap-0", 1)
    cluster._client._manager._auth_failures.update(dict.fromkeys(brokers, refused))
    assert desk.cluster.broker_count(TIMEOUT_MS) == 1


@pytest.mark.parametrize("alone", [True, False])
def test_a_position_passes_a_tail_that_compaction_emptied_if_its_partition_is_read_alone(
    desk: Desk, alone: bool
) -> None:
    """Beside others an empty part may be one that did not fit into the answer."""
    topic = desk.topic(partitions=2)
    positions = {0: Position(0)} if alone else {0: Position(0), 1: Position(0)}
    consumer = cast(KafkaPythonConsumer, desk.consumer(topic, positions))
    consumer._client._net.stop()  # nothing but the answer below
    part = SimpleNamespace(
        error_code=0,
        high_watermark=9,
        last_stable_offset=7,
        records=b"",
        aborted_transactions=[],
        diverging_epoch=None,
        preferred_read_replica=-1,
    )
    answer = SimpleNamespace(
        topic_partition=TopicPartition(topic, 0),
        fetched_offset=0,
        response_version=12,
        partition_data=part,
        metric_aggregator=None,
    )
    consumer._fetcher._parse_fetched_data(answer)
    assert consumer.position(0) == (7 if alone else 0)
