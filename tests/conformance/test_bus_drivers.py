"""What only real brokers can be asked, of each driver: threads, silence, poison, codecs."""

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
import test_bus_desk
from confluent_kafka import TopicPartition
from giving_back import (
    a_consumer_of_no_broker,
    alone,
    clients_of_a_silent_broker,
    clients_that_were_never_used,
    clients_that_work,
)
from test_bus_desk import (
    DRIVERS,
    RECORD_BYTES_MAX,
    TIMEOUT_MS,
    Desk,
    RealSite,
    eventually,
    poll_until_it_raises,
    read,
    read_to,
    send,
    silent_broker,
)

from delayd.bus import UNREADABLE_HEADERS, Ack, Headers, Position, Record
from delayd.bus.confluent.consumer import ConfluentConsumer
from delayd.bus.guarded import GuardedConsumer
from delayd.errors import (
    BufferPositionError,
    ConsumerError,
    FencedError,
    ProducerError,
)

pytestmark = pytest.mark.real
site = test_bus_desk.real_site
desk = test_bus_desk.desk

OTHERS = {name: next(other for other in DRIVERS if other != name) for name in DRIVERS}


def name_of(site: RealSite) -> str:
    [name] = [name for name, driver in DRIVERS.items() if isinstance(site.bus, driver)]
    return name


@pytest.fixture
def other(site: RealSite, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A desk at the same brokers with the other driver, and the same transactional id."""
    desk: Desk = request.getfixturevalue("desk")
    other = Desk(RealSite(site.bootstrap, DRIVERS[OTHERS[name_of(site)]]))
    other.id = desk.id
    yield other
    other.close()


class RawName(str):
    """A header name that kafka-python encodes to whatever bytes it was given."""

    raw: bytes

    def __new__(cls, raw: bytes) -> "RawName":
        made = super().__new__(cls, "raw")
        made.raw = raw
        return made

    def encode(self, *_: Any) -> bytes:
        return self.raw


def send_raw_names(bootstrap: str, topic: str, *names: bytes) -> None:
    """One record for each header name: `first`, then that name, then `last`."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    try:
        for n, name in enumerate(names):
            headers = [("first", b"1"), (RawName(name), b"2"), ("last", b"3")]
            producer.send(topic, b"%d" % n, key=b"k", headers=headers, partition=0).get(10)
    finally:
        producer.close()


def test_a_header_name_that_is_not_utf_8_poisons_its_own_record_only(
    desk: Desk, site: RealSite
) -> None:
    topic = desk.topic()
    names = [b"good", b"ab\xff\xfe", b"\xc3", b"good", "ключ".encode(), b"\xed\xa0\x80"]
    send_raw_names(site.bootstrap, topic, *names)
    records = read(desk.consumer(topic), len(names))
    assert [r.value for r in records] == [b"%d" % n for n in range(len(names))]
    for n, record in enumerate(records):
        readable = [("first", b"1"), (names[n].decode(errors="replace"), b"2"), ("last", b"3")]
        assert record.headers == (UNREADABLE_HEADERS if n in (1, 2, 5) else readable)


def test_a_header_name_ends_at_its_first_nul(desk: Desk, site: RealSite) -> None:
    """delayd/bus/__init__.py: nodes with different drivers must agree on every record."""
    topic = desk.topic()
    send_raw_names(site.bootstrap, topic, b"a\0b", b"\0", b"a\0\xff")
    names = [r.headers[1][0] for r in read(desk.consumer(topic), 3)]
    assert names == ["a", "", "a"]


def test_both_drivers_read_a_log_alike(desk: Desk, other: Desk, site: RealSite) -> None:
    topic = desk.topic()
    send_raw_names(site.bootstrap, topic, b"x", b"\xff", b"nul\0")
    for writer in (desk, other):
        writer.abort(topic, b"aborted")
        producer = writer.producer()
        producer.begin()
        headers: Headers = [("h", None), ("h", b""), ("", b"\0")]
        send(producer, topic, None, headers=headers)
        send(producer, topic, b"", key=b"", headers=[])
        producer.commit(TIMEOUT_MS)
        producer.close()
    eventually(lambda: desk.stable_offset(topic) == desk.end_offset(topic), "the last marker")
    end = desk.end_offset(topic)
    seen = [read_to(reader.consumer(topic), 0, end) for reader in (desk, other)]
    assert seen[0] == seen[1] and len(seen[0]) == 7


def test_both_drivers_describe_a_topic_alike(desk: Desk, other: Desk) -> None:
    topic = desk.topic(partitions=3, min_insync_replicas="1")
    [ours] = desk.cluster.describe([topic], TIMEOUT_MS).values()
    [theirs] = other.cluster.describe([topic], TIMEOUT_MS).values()
    assert ours == theirs, "frontier records hold topic ids and nodes compare them"


def test_a_name_that_no_topic_can_have_is_refused_by_itself(desk: Desk) -> None:
    """docs/design/frontier.md, Targets: it comes from a request, among others that are good."""
    topic, names = desk.topic(), [".", "..", "a b", "x" * 250]
    survey = desk.cluster.survey([*names, topic], TIMEOUT_MS)
    assert survey.states.keys() == {topic}
    assert survey.refused.keys() == set(names)
    assert all(why.startswith("TOPIC_EXCEPTION") for why in survey.refused.values())


@pytest.mark.parametrize("name", ["..", "a b"])
def test_a_record_for_a_name_that_no_topic_can_have_fails_its_transaction(
    desk: Desk, name: str
) -> None:
    innocent, producer = desk.topic(), desk.begun()
    with pytest.raises(ProducerError) as raised:
        send(producer, innocent, b"x")
        send(producer, name, b"x")
        producer.flush(TIMEOUT_MS)
    # librdkafka says the second where an answer without the topic comes before the send.
    assert raised.value.refusals in ({name: "TOPIC_EXCEPTION"}, {name: "_UNKNOWN_TOPIC"})


def test_a_successor_with_another_driver_fences(desk: Desk, other: Desk) -> None:
    topic = desk.topic()
    zombie = desk.open_transaction(topic, b"before")
    successor = other.producer()
    with pytest.raises(FencedError):
        send(zombie, topic, b"after")
        zombie.commit(TIMEOUT_MS)
    successor.begin()
    send(successor, topic, b"successor")
    successor.commit(TIMEOUT_MS)
    assert [r.value for r in read(desk.consumer(topic), 1)] == [b"successor"]


def test_closing_gives_every_thread_and_descriptor_back(desk: Desk, site: RealSite) -> None:
    alone(clients_that_work, name_of(site), site.bootstrap, desk.topic(), desk.id)


def test_clients_that_were_never_used_are_closed_too(site: RealSite) -> None:
    alone(clients_that_were_never_used, name_of(site), site.bootstrap)


def test_a_broker_that_never_answers_holds_nobody(site: RealSite) -> None:
    with silent_broker() as (address, _):
        alone(clients_of_a_silent_broker, name_of(site), address)


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """The lines of libraries, as `delayd.runtime.logs` would print them: warnings that reach the
    root."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield lines
    logging.getLogger().removeHandler(handler)


def test_a_driver_prints_nothing(
    desk: Desk, site: RealSite, capfd: pytest.CaptureFixture[str], heard: list[str]
) -> None:
    topic = desk.topic()
    zombie = desk.open_transaction(topic, b"x")
    desk.producer()
    send(zombie, topic, b"x")
    with pytest.raises(FencedError):
        zombie.commit(TIMEOUT_MS)
    unreachable = site.unreachable_bus().consumer(topic)
    unreachable.assign({0: Position(0)})
    unreachable.poll(1, 300)
    unreachable.close()
    assert capfd.readouterr() == ("", "")
    assert heard == []


def test_deleting_the_topic_under_a_reader_raises(desk: Desk, site: RealSite) -> None:
    topic = desk.topic()
    desk.commit(topic, b"x")
    consumer = desk.consumer(topic)
    read(consumer, 1)
    site.delete(topic)
    with pytest.raises((ConsumerError, BufferPositionError)):
        poll_until_it_raises(consumer)


def test_deleting_the_topic_under_a_producer_fails_its_transaction(
    desk: Desk, site: RealSite
) -> None:
    gone, kept = desk.topic(), desk.topic()
    producer = desk.begun()
    send(producer, gone, b"1")
    send(producer, kept, b"1")
    producer.commit(TIMEOUT_MS)
    site.delete(gone)
    eventually(lambda: desk.cluster.describe([gone], TIMEOUT_MS) == {}, "the topic is gone")
    producer.begin()
    with pytest.raises(ProducerError, match=r"UNKNOWN_TOPIC|_MSG_TIMED_OUT"):
        send(producer, kept, b"2")
        send(producer, gone, b"2")
        producer.flush(TIMEOUT_MS)
    producer.close()
    desk.commit(kept, b"3")
    assert [r.value for r in read(desk.consumer(kept), 2)] == [b"1", b"3"]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"cleanup_policy": "compact"}, "INVALID_RECORD"),
        ({"max_message_bytes": "20000"}, "MSG_SIZE_TOO_LARGE"),
    ],
)
def test_a_record_that_a_broker_refuses_for_good_fails_the_transaction(
    desk: Desk, config: dict[str, Any], error: str
) -> None:
    good, strict = desk.topic(), desk.topic(**config)
    producer = desk.begun()
    send(producer, good, b"innocent")
    send(producer, strict, bytes(30_000))
    with pytest.raises(ProducerError, match=error):
        producer.commit(TIMEOUT_MS)
    producer.close()
    desk.commit(good, b"next")
    assert [r.value for r in read(desk.consumer(good), 1)] == [b"next"]


def test_a_full_local_queue_makes_send_wait_instead_of_fail(desk: Desk, site: RealSite) -> None:
    topic = desk.topic()
    bus = site.other_bus(**{"producer.queue.buffering.max.messages": "100"})
    with closing(bus.transactional_producer(desk.id)) as producer:
        producer.init_transactions(TIMEOUT_MS)
        producer.begin()
        for n in range(2_000):
            send(producer, topic, b"%d" % n)
        producer.commit(TIMEOUT_MS)
    assert [r.value for r in read(desk.consumer(topic), 2_000)] == [b"%d" % n for n in range(2_000)]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_written_by_each_driver_and_read_by_both(
    desk: Desk, other: Desk, site: RealSite, codec: str
) -> None:
    topic = desk.topic(max_message_bytes="4000000")
    values = [b"x" * 10_000, uuid4().bytes * 60_000, *(b"%d" % n for n in range(500))]
    assert len(values[1]) < RECORD_BYTES_MAX
    acks: list[Ack] = []
    with closing(
        site.other_bus(**{"producer.compression.type": codec}).transactional_producer(desk.id)
    ) as producer:
        producer.init_transactions(TIMEOUT_MS)
        producer.begin()
        for value in values:
            send(producer, topic, value, headers=[("n", None)], on_ack=acks.append)
        producer.commit(TIMEOUT_MS)
    seen: list[Record] = read(desk.consumer(topic), len(values))
    assert [r.value for r in seen] == values
    assert seen == read(other.consumer(topic), len(values))
    assert acks == [Ack(r.partition, r.offset, r.append_ms) for r in seen]


def test_an_unreachable_broker_costs_no_descriptors(site: RealSite) -> None:
    alone(a_consumer_of_no_broker, name_of(site))


def test_a_client_that_fetches_no_more_is_replaced(desk: Desk) -> None:
    """librdkafka issues 4916 and 5153. A pause fetches no more either, and tells nobody."""
    topic = desk.topic()
    consumer = desk.consumer(topic)
    if not isinstance(consumer, GuardedConsumer):
        pytest.skip("a defect of librdkafka, which this driver does not use")
    desk.commit(topic, b"before")
    assert [record.value for record in read(consumer, 1)] == [b"before"]
    fast = consumer._fast
    assert isinstance(fast, ConfluentConsumer) and fast._client is not None
    fetching = fast._client
    fetching.pause([TopicPartition(topic, 0)])
    desk.commit(topic, b"behind")
    assert [record.value for record in read(consumer, 1)] == [b"behind"]
    assert fast._client is not fetching
