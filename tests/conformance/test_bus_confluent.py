"""What only the real bus can be asked: threads, silence, poison, a frozen client's corpse."""

from pathlib import Path
from typing import Any

import pytest
import test_bus_desk
from confluent_kafka.admin import AdminClient
from test_bus_desk import TIMEOUT_MS, Desk, RealSite, eventually, poll_until_it_raises, read, send

from delayd.bus import Position
from delayd.bus.confluent import ConfluentBus
from delayd.bus.confluent.consumer import UNREADABLE_HEADERS
from delayd.errors import BufferPositionError, ConsumerError, FencedError

desk = test_bus_desk.desk


@pytest.fixture
def site(kafka_and_etcd: Any) -> RealSite:
    return RealSite(kafka_and_etcd.bootstrap)


def thread_count() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


class BrokenName(str):
    """A header name that kafka-python encodes to something that is not UTF-8."""

    def encode(self, *_: Any) -> bytes:
        return b"ab\xff\xfe"


# kafka-python reads its schemas with a deprecated call when it is imported.
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
@pytest.mark.real
def test_a_header_name_that_is_not_utf_8_poisons_its_own_record_only(
    desk: Desk, site: RealSite
) -> None:
    from kafka import KafkaProducer

    topic = desk.topic()
    producer = KafkaProducer(bootstrap_servers=site.bootstrap)
    try:
        for n in range(6):
            name = BrokenName("x") if n in (1, 2, 5) else "good"
            headers = [("first", b"1"), (name, b"2")]
            producer.send(topic, b"%d" % n, key=b"k", headers=headers, partition=0).get(10)
    finally:
        producer.close()
    records = read(desk.consumer(topic), 6)
    assert [r.value for r in records] == [b"%d" % n for n in range(6)]
    good = [("first", b"1"), ("good", b"2")]
    assert [r.headers for r in records] == [
        UNREADABLE_HEADERS if n in (1, 2, 5) else good for n in range(6)
    ]


@pytest.mark.real
def test_closing_gives_every_thread_back(desk: Desk, site: RealSite) -> None:
    topic = desk.topic()
    before_count = thread_count()
    consumer = site.bus.consumer(topic)
    for _ in range(3):
        consumer.assign({0: Position(0)})
        consumer.poll(10, 100)
    producer = site.bus.transactional_producer(desk.id)
    producer.init_transactions(TIMEOUT_MS)
    producer.begin()
    for _ in range(100):
        send(producer, topic, b"x", on_ack=lambda ack: None)
    cluster = site.bus.cluster()
    cluster.broker_count(TIMEOUT_MS)
    assert thread_count() > before_count
    for client in (consumer, producer, cluster):
        client.close()
        client.close()
    eventually(lambda: thread_count() == before_count, "the threads end")


@pytest.mark.real
def test_a_name_that_no_topic_can_have_is_refused_by_itself(desk: Desk) -> None:
    """docs/design/frontier.md, Targets: one refusal does not stand for all."""
    topic = desk.topic()
    survey = desk.cluster.survey([topic, "bad name!"], TIMEOUT_MS)
    assert survey.states.keys() == {topic}
    assert "TOPIC_EXCEPTION" in survey.refused["bad name!"]


@pytest.mark.real
def test_librdkafka_prints_nothing(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    topic = desk.topic()
    zombie = desk.open_transaction(topic, b"x")
    desk.producer()
    send(zombie, topic, b"x")
    with pytest.raises(FencedError):
        zombie.commit(TIMEOUT_MS)
    unreachable = ConfluentBus("127.0.0.1:1").consumer(topic)
    unreachable.assign({0: Position(0)})
    unreachable.poll(1, 300)
    unreachable.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.real
def test_deleting_the_topic_under_a_reader_raises(desk: Desk, site: RealSite) -> None:
    topic = desk.topic()
    desk.commit(topic, b"x")
    consumer = desk.consumer(topic)
    read(consumer, 1)
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    admin.delete_topics([topic])[topic].result(TIMEOUT_MS / 1000)
    with pytest.raises((ConsumerError, BufferPositionError)):
        poll_until_it_raises(consumer)


@pytest.mark.real
def test_a_full_local_queue_makes_send_wait_instead_of_fail(desk: Desk, site: RealSite) -> None:
    topic = desk.topic()
    bus = ConfluentBus(site.bootstrap, overrides={"producer.queue.buffering.max.messages": "100"})
    producer = bus.transactional_producer(desk.id)
    producer.init_transactions(TIMEOUT_MS)
    producer.begin()
    for n in range(2_000):
        send(producer, topic, b"%d" % n)
    producer.commit(TIMEOUT_MS)
    producer.close()
    assert [r.value for r in read(desk.consumer(topic), 2_000)] == [b"%d" % n for n in range(2_000)]


@pytest.mark.real
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_is_an_override(desk: Desk, site: RealSite, compression: str) -> None:
    topic = desk.topic()
    bus = ConfluentBus(site.bootstrap, overrides={"producer.compression.type": compression})
    producer = bus.transactional_producer(desk.id)
    producer.init_transactions(TIMEOUT_MS)
    producer.begin()
    send(producer, topic, b"x" * 10_000)
    producer.commit(TIMEOUT_MS)
    producer.close()
    assert read(desk.consumer(topic), 1)[0].value == b"x" * 10_000
