"""Writing in C, against librdkafka's own mock brokers: what arrives, and who learns of
what does not.

Each test runs by both paths: a producer without the library sends flat records one by one.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as Client

from delayd.bus import Ack, Headers, Record
from delayd.bus.confluent import producer as module
from delayd.bus.confluent.producer import ConfluentProducer
from delayd.bus.confluent.settings import Settings
from delayd.bus.flat import Outgoing, flattened
from delayd.errors import ProducerError
from delayd.runtime import native

TOPICS = ("orders", "mails")
TIMEOUT_MS = 30_000
READS_MAX = 600
Arrived = tuple[bytes | None, bytes | None, Any]
Make = Callable[..., ConfluentProducer]


class Mock:
    """One mock broker, whose topics have four partitions; it ends with the last reference."""

    def __init__(self) -> None:
        self._client = Client(
            {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0}
        )
        [broker] = self._client.list_topics(timeout=30).brokers.values()
        self.bootstrap = f"{broker.host}:{broker.port}"
        for topic in TOPICS:  # which makes it
            self._client.list_topics(topic, timeout=30)

    def arrived(self, topic: str, count: int) -> dict[int, list[Arrived]]:
        """The records of a topic, by partition."""
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "g"})
        reader.assign([TopicPartition(topic, number, 0) for number in range(4)])
        found: dict[int, list[Arrived]] = {}
        with closing(reader):
            for _ in range(READS_MAX):
                for message in reader.consume(count, 0.1):
                    assert message.error() is None, message.error()
                    place = message.partition()
                    assert place is not None
                    record = message.key(), message.value(), message.headers()
                    found.setdefault(place, []).append(record)
                if sum(map(len, found.values())) == count:
                    return found
        raise AssertionError(f"of {count} records in {topic} there are {found.keys()}")


@pytest.fixture
def mock() -> Mock:
    return Mock()


@pytest.fixture(params=["native", "Python"])
def make(request: pytest.FixtureRequest, mock: Mock) -> Iterator[Make]:
    """Makes producers without transactions, of the mock broker or another one."""
    library = request.getfixturevalue("library") if request.param == "native" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PURGE_WAIT_MS_MAX", 5_000)
        made: list[ConfluentProducer] = []

        def of(bootstrap: str = mock.bootstrap, **properties: Any) -> ConfluentProducer:
            settings = Settings(bootstrap, "delayd", {}, None).producer(None)
            made.append(ConfluentProducer(None, settings | properties, library))
            assert (made[-1]._writer is None) == (library is None), "it writes by this path"
            return made[-1]

        yield of
        for each in made:
            each.close()


def outgoing(*records: Record) -> Outgoing:
    """These records; their leader epochs are the numbers of their topics."""
    data = flattened(records)
    return Outgoing(TOPICS, data, 0, len(data))


def record(
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Headers | None = None,
    *,
    partition: int = -1,
    topic: int = 0,
) -> Record:
    return Record(partition, 0, topic, 0, key, value, headers or [])


def test_records_arrive_as_they_are(mock: Mock, make: Make) -> None:
    many: Headers = [(f"h{number % 7}", b"%d" % number) for number in range(2_000)]
    kinds: list[tuple[bytes | None, bytes | None, Headers]] = [
        (None, None, []),
        (b"", b"", [("", b"")]),
        (b"k", b"v", [("null", None), ("twice", b"1"), ("twice", b"\0\xff")]),
        (b"\0", b"x" * 900_000, many),
    ]
    sent = [record(*kind, partition=number) for number, kind in enumerate(kinds)]
    producer = make()
    producer.send_flat(outgoing(*sent))
    producer.flush(TIMEOUT_MS)
    found = mock.arrived("orders", len(kinds))
    for number, (key, value, headers) in enumerate(kinds):
        assert found[number] == [(key, value, headers or None)], number


def test_records_of_some_topics_keep_their_order_among_what_is_sent_one_by_one(
    mock: Mock, make: Make
) -> None:
    producer, acks = make(), list[Ack]()
    for turn in range(20):
        producer.send_flat(
            outgoing(*(record(b"k", b"%d/%d" % (turn, n), topic=n % 2) for n in range(30)))
        )
        producer.send(TOPICS[0], key=b"k", value=b"%d/30" % turn, headers=[], on_ack=acks.append)
    producer.flush(TIMEOUT_MS)
    places = (range(0, 31, 2), range(1, 30, 2))
    for topic, numbers in zip(TOPICS, places, strict=True):
        [found] = mock.arrived(topic, 20 * len(numbers)).values()
        assert [value for _, value, _ in found] == [
            b"%d/%d" % (turn, n) for turn in range(20) for n in numbers
        ]
    assert [ack.offset for ack in acks] == [16 * turn + 15 for turn in range(20)]


def test_keys_go_where_python_sends_them(mock: Mock, make: Make) -> None:
    producer = make()
    keys = [b"key-%d" % number for number in range(200)]
    producer.send_flat(outgoing(*(record(key, b"c") for key in keys)))
    for key in keys:
        producer.send(TOPICS[1], key=key, value=b"c", headers=[])
    producer.flush(TIMEOUT_MS)
    found, wanted = (mock.arrived(topic, len(keys)) for topic in TOPICS)
    assert found == wanted and len(found) == 4


def test_a_record_that_is_too_large_is_refused_by_its_topic(make: Make) -> None:
    producer = make()
    records = [record(), record(value=b"x" * 2_000_000, topic=1), record()]
    with pytest.raises(ProducerError, match="send to mails: MSG_SIZE_TOO_LARGE") as raised:
        producer.send_flat(outgoing(*records))
    assert raised.value.refusals == {"mails": "MSG_SIZE_TOO_LARGE"}


def test_a_partition_that_is_not_there_is_refused_by_its_topic(mock: Mock, make: Make) -> None:
    producer = make()
    producer.send_flat(outgoing(record(partition=0)))
    producer.flush(TIMEOUT_MS)  # it knows the partitions now
    with pytest.raises(ProducerError, match="send to orders: _UNKNOWN_PARTITION") as raised:
        producer.send_flat(outgoing(record(partition=9)))
    assert raised.value.refusals == {"orders": "_UNKNOWN_PARTITION"}


def test_a_full_queue_is_waited_for(mock: Mock, make: Make) -> None:
    producer = make(**{"queue.buffering.max.messages": 20})
    values = [b"%d" % number for number in range(500)]
    producer.send_flat(outgoing(*(record(value=value, partition=1) for value in values)))
    producer.flush(TIMEOUT_MS)
    found = mock.arrived("orders", len(values))
    assert [value for _, value, _ in found[1]] == values


def test_a_queue_that_stays_full_is_waited_for_so_long_and_no_longer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_WAIT_MS_MAX", 100)
    producer = make("127.0.0.1:1", **{"queue.buffering.max.messages": 20})
    with pytest.raises(ProducerError, match="send: _QUEUE_FULL for 100 ms"):
        producer.send_flat(outgoing(*[record()] * 21))


def test_records_that_time_out_are_lost(make: Make) -> None:
    """A flush waits until none is left, which is so when all are lost, too."""
    producer = make("127.0.0.1:1", **{"message.timeout.ms": 100})
    producer.send_flat(outgoing(record(), record(topic=1)))
    with pytest.raises(ProducerError, match="_MSG_TIMED_OUT") as raised:
        producer.flush(TIMEOUT_MS)
    assert raised.value.refusals == {} and raised.value.silent == frozenset()


def test_partitions_of_a_silent_broker_are_named(mock: Mock, make: Make) -> None:
    producer = make()
    producer.send_flat(outgoing(record(partition=0), record(partition=1, topic=1)))
    producer.flush(TIMEOUT_MS)
    mock._client = None  # type: ignore[assignment]  # the broker is gone
    producer.send_flat(
        outgoing(record(partition=0), record(partition=3), record(partition=1, topic=1))
    )
    with pytest.raises(ProducerError, match="flush: _TIMED_OUT, 3 records") as raised:
        producer.flush(300)
    assert raised.value.silent == {("orders", 0), ("orders", 3), ("mails", 1)}


def test_no_more_failures_are_kept_than_there_is_room_for(
    mock: Mock, library: native.Library
) -> None:
    topics = [f"topic-{number}" for number in range(300)]
    settings = Settings("127.0.0.1:1", "delayd", {}, None).producer(None)
    with closing(
        ConfluentProducer(None, settings | {"message.timeout.ms": 100}, library)
    ) as producer:
        data = flattened([record(topic=number % 300) for number in range(900)])
        producer.send_flat(Outgoing(topics, data, 0, len(data)))
        with pytest.raises(ProducerError, match="_MSG_TIMED_OUT"):
            producer.flush(TIMEOUT_MS)
        assert producer._writer is not None
        lost = producer._writer.failures()
        assert len(lost) == len(set(lost)) == 256


def test_what_python_sends_is_reported_to_python_alone(library: native.Library) -> None:
    settings = Settings("127.0.0.1:1", "delayd", {}, None).producer(None)
    with closing(
        ConfluentProducer(None, settings | {"message.timeout.ms": 100}, library)
    ) as producer:
        producer.send("orders", key=None, value=b"v", headers=[])
        with pytest.raises(ProducerError, match="_MSG_TIMED_OUT"):
            producer.flush(TIMEOUT_MS)
        assert producer._writer is not None and producer._writer.failures() == []


def test_a_client_that_is_closed_with_records_waiting_lets_go_of_all(make: Make) -> None:
    """Reports that come meanwhile find what they are noted in: the sanitizer watches."""
    for _ in range(5):
        producer = make("127.0.0.1:1")
        producer.send_flat(outgoing(*[record(headers=[("h", b"x")])] * 50))
        producer.close()
