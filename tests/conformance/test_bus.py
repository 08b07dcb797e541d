"""One suite for every bus: the twin in memory and Kafka itself through librdkafka.

`test_bus_confluent.py` holds what only the real one can be asked.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from delayd.bus import Ack, Bus, Consumer, Headers, Position, Record, TransactionalProducer
from delayd.bus.confluent import ConfluentBus
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.murmur2 import murmur2, partition_of
from delayd.clock import SystemClock
from delayd.errors import (
    BufferPositionError,
    ConsumerError,
    FencedError,
    KafkaUnreachableError,
    ProducerError,
    TopicMismatchError,
)

TIMEOUT_MS = 15_000
POLL_MS = 50
RECORD_BYTES_MAX = 2_000_000
BY_BROKER = {"message.timestamp.type": "LogAppendTime"}


class Site(Protocol):
    """Some brokers, and what tests need beside the ports."""

    bus: Bus

    def unreachable_bus(self) -> Bus: ...

    def delete_before(self, topic: str, partition: int, offset: int) -> None: ...


class MemorySite:
    def __init__(self) -> None:
        self.kafka = MemoryKafka(SystemClock(), real_time=True)
        self.bus: Bus = MemoryBus(self.kafka, record_bytes_max=RECORD_BYTES_MAX)

    def unreachable_bus(self) -> Bus:
        bus = MemoryBus(self.kafka)
        bus.link.up = False
        return bus

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.kafka.log(topic, partition).delete_before(offset)


class RealSite:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.bus: Bus = ConfluentBus(bootstrap, record_bytes_max=RECORD_BYTES_MAX)

    def unreachable_bus(self) -> Bus:
        return ConfluentBus("127.0.0.1:1")

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        [done] = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
        done.result(TIMEOUT_MS / 1000)


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.real)])
def site(request: pytest.FixtureRequest) -> Site:
    if request.param == "memory":
        return MemorySite()
    return RealSite(request.getfixturevalue("kafka_and_etcd").bootstrap)


class Desk:
    """Topics, producers and consumers of one test; everything is closed at its end."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.bus = site.bus
        self.cluster = site.bus.cluster()
        self.id = f"id-{uuid4().hex}"
        self._opened: list[TransactionalProducer | Consumer] = []

    def topic(self, partitions: int = 1, **config: str) -> str:
        name = f"t-{uuid4().hex}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        assert self.cluster.create_topic(
            name,
            partitions=partitions,
            replication_factor=1,
            config=BY_BROKER | settings,
            timeout_ms=TIMEOUT_MS,
        )
        return name

    def producer(self, transactional_id: str | None = None) -> TransactionalProducer:
        producer = self.bus.transactional_producer(transactional_id or self.id)
        self._opened.append(producer)
        producer.init_transactions(TIMEOUT_MS)
        return producer

    def consumer(self, topic: str, positions: Mapping[int, Position] | None = None) -> Consumer:
        consumer = self.bus.consumer(topic)
        self._opened.append(consumer)
        consumer.assign({0: Position(0)} if positions is None else positions)
        return consumer

    def open_transaction(self, topic: str, *values: bytes) -> TransactionalProducer:
        producer = self.producer()
        producer.begin()
        for value in values:
            send(producer, topic, value)
        producer.flush(TIMEOUT_MS)
        return producer

    def commit(self, topic: str, *values: bytes) -> None:
        producer = self.open_transaction(topic, *values)
        producer.commit(TIMEOUT_MS)
        producer.close()

    def abort(self, topic: str, *values: bytes) -> None:
        self.open_transaction(topic, *values).close()
        self.producer().close()

    def stable_offset(self, topic: str) -> int:
        return self.cluster.end_offsets(topic, TIMEOUT_MS, committed=True)[0]

    def end_offset(self, topic: str) -> int:
        return self.cluster.end_offsets(topic, TIMEOUT_MS, committed=False)[0]

    def close(self) -> None:
        for client in self._opened:
            client.close()
        self.cluster.close()


@pytest.fixture
def desk(site: Site) -> Iterator[Desk]:
    desk = Desk(site)
    yield desk
    desk.close()


def send(
    producer: TransactionalProducer,
    topic: str,
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: Headers | None = None,
    partition: int | None = 0,
    on_ack: Callable[[Ack], None] | None = None,
) -> None:
    producer.send(
        topic, key=key, value=value, headers=headers or [], partition=partition, on_ack=on_ack
    )


def eventually(condition: Callable[[], bool], what: str) -> None:
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + TIMEOUT_MS
    while not condition():
        assert clock.monotonic_ms() < deadline_ms, f"within {TIMEOUT_MS} ms: {what}"
        threading.Event().wait(0.005)


def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []

    def enough() -> bool:
        records.extend(consumer.poll(count - len(records), POLL_MS))
        return len(records) >= count

    eventually(enough, f"{count} records")
    return records


def read_to(consumer: Consumer, partition: int, offset: int) -> list[Record]:
    records: list[Record] = []

    def there() -> bool:
        records.extend(consumer.poll(100, POLL_MS))
        return consumer.position(partition) >= offset

    eventually(there, f"position {offset}")
    assert consumer.position(partition) == offset
    return records


def poll_until_it_raises(consumer: Consumer) -> None:
    def never() -> bool:
        assert consumer.poll(100, POLL_MS) == []
        return False

    eventually(never, "an exception")


# --- what arrives is what was sent


def test_key_value_and_headers_arrive_untouched(desk: Desk) -> None:
    headers: Headers = [
        ("repeated", b"1"),
        ("other", b"\x00\xff\xfe binary"),
        ("repeated", b"2"),
        ("empty", b""),
        ("null", None),
        ("ключ", b"name beyond ASCII"),
        ("", b"empty name"),
        ("repeated", b"1"),
    ]
    topic, producer = desk.topic(), desk.producer()
    producer.begin()
    send(producer, topic, b"\x00\xffvalue", key=b"\xff\x00key", headers=headers)
    producer.commit(TIMEOUT_MS)
    [record] = read(desk.consumer(topic), 1)
    assert (record.key, record.value, record.headers) == (b"\xff\x00key", b"\x00\xffvalue", headers)


@pytest.mark.parametrize("key", [None, b""])
@pytest.mark.parametrize("value", [None, b""])
def test_null_and_empty_are_different(desk: Desk, key: bytes | None, value: bytes | None) -> None:
    topic, producer = desk.topic(), desk.producer()
    producer.begin()
    send(producer, topic, value, key=key)
    producer.commit(TIMEOUT_MS)
    [record] = read(desk.consumer(topic), 1)
    assert (record.key, record.value, record.headers) == (key, value, [])


def test_a_record_of_a_megabyte_arrives(desk: Desk) -> None:
    value = bytes(range(256)) * 4_000
    topic, producer = desk.topic(max_message_bytes="2000000"), desk.producer()
    producer.begin()
    send(producer, topic, value, key=b"k")
    producer.commit(TIMEOUT_MS)
    [record] = read(desk.consumer(topic), 1)
    assert record.value == value


def test_a_record_above_the_limit_of_the_bus_is_refused_at_once(desk: Desk) -> None:
    topic, producer = desk.topic(max_message_bytes="4000000"), desk.producer()
    producer.begin()
    with pytest.raises(ProducerError, match="MSG_SIZE_TOO_LARGE"):
        send(producer, topic, bytes(RECORD_BYTES_MAX + 1))


def test_records_come_in_offset_order_and_no_more_than_asked_for(desk: Desk) -> None:
    values = [b"%d" % n for n in range(25)]
    topic = desk.topic()
    desk.commit(topic, *values)
    consumer = desk.consumer(topic)
    seen: list[Record] = []
    while len(seen) < 25:
        batch = consumer.poll(7, POLL_MS)
        assert len(batch) <= 7
        seen += batch
    assert [r.value for r in seen] == values
    assert [r.offset for r in seen] == list(range(25))


def test_append_time_in_the_ack_is_the_record_s(desk: Desk) -> None:
    topic, producer = desk.topic(), desk.producer()
    acks: list[Ack] = []
    threads: list[int] = []

    def on_ack(ack: Ack) -> None:
        acks.append(ack)
        threads.append(threading.get_ident())

    before_ms = SystemClock().wall_ms()
    producer.begin()
    send(producer, topic, b"0")
    send(producer, topic, b"1", on_ack=on_ack)
    producer.flush(TIMEOUT_MS)
    assert len(acks) == 1, "acknowledged before the commit"
    producer.commit(TIMEOUT_MS)
    record = read(desk.consumer(topic), 2)[1]
    assert acks == [Ack(0, 1, record.append_ms)]
    assert before_ms - 1_000 <= record.append_ms <= SystemClock().wall_ms() + 1_000
    assert threads == [threading.get_ident()]


# --- partitions


# From UtilsTest.testMurmur2 of Kafka's Java client.
JAVA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


# kafka-python reads its schemas with a deprecated call when it is imported.
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
def test_murmur2_is_java_s_and_kafka_python_s() -> None:
    from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

    for key, hash_signed in JAVA_MURMUR2.items():
        assert murmur2(key) == hash_signed & 0xFFFFFFFF
    for length in range(64):
        key = bytes((37 * n + length) % 256 for n in range(length))
        assert murmur2(key) == murmur2_of_kafka_python(key) & 0xFFFFFFFF


def test_a_key_goes_to_the_partition_that_java_gives_it(desk: Desk) -> None:
    keys = [*JAVA_MURMUR2, b"", *(b"order-%d" % n for n in range(100))]
    topic, producer = desk.topic(partitions=5), desk.producer()
    producer.begin()
    for key in keys:
        send(producer, topic, None, key=key, partition=None)
    producer.commit(TIMEOUT_MS)
    records = read(desk.consumer(topic, {n: Position(0) for n in range(5)}), len(keys))
    assert {r.key: r.partition for r in records} == {key: partition_of(key, 5) for key in keys}
    assert partition_of(b"foobar", 5) == (-790332482 & 0x7FFFFFFF) % 5


def test_a_named_partition_overrules_the_key_and_a_null_key_goes_anywhere(desk: Desk) -> None:
    topic, producer = desk.topic(partitions=3), desk.producer()
    there = (partition_of(b"k", 3) + 1) % 3
    producer.begin()
    send(producer, topic, b"named", key=b"k", partition=there)
    send(producer, topic, b"any", key=None, partition=None)
    producer.commit(TIMEOUT_MS)
    records = read(desk.consumer(topic, {n: Position(0) for n in range(3)}), 2)
    assert {r.value: r.partition for r in records}[b"named"] == there


def test_a_partition_that_the_topic_lacks_fails_the_transaction(desk: Desk) -> None:
    topic, producer = desk.topic(), desk.producer()
    producer.begin()
    with pytest.raises(ProducerError, match="_UNKNOWN_PARTITION"):
        send(producer, topic, b"x", partition=7)
        producer.flush(TIMEOUT_MS)


# --- transactions


def test_a_transaction_is_seen_after_its_commit_only(desk: Desk) -> None:
    one, other = desk.topic(), desk.topic()
    producer = desk.open_transaction(one, b"x")
    send(producer, other, b"y")
    producer.flush(TIMEOUT_MS)
    consumers = [desk.consumer(one), desk.consumer(other)]
    for consumer in consumers:
        assert [consumer.poll(10, POLL_MS) for _ in range(5)] == [[]] * 5
        assert consumer.position(0) == 0
    producer.commit(TIMEOUT_MS)
    assert [[r.value for r in read(c, 1)] for c in consumers] == [[b"x"], [b"y"]]


def test_an_abandoned_transaction_is_aborted_by_the_successor_and_never_seen(desk: Desk) -> None:
    topic = desk.topic()
    desk.open_transaction(topic, b"lost").close()
    assert (desk.stable_offset(topic), desk.end_offset(topic)) == (0, 1), "close must not abort"
    desk.commit(topic, b"kept")
    assert [r.value for r in read(desk.consumer(topic), 1)] == [b"kept"]


def test_an_open_transaction_holds_the_last_stable_offset(desk: Desk) -> None:
    topic = desk.topic()
    desk.commit(topic, b"a", b"b")
    producer = desk.open_transaction(topic, b"c")
    assert (desk.stable_offset(topic), desk.end_offset(topic)) == (3, 4)
    producer.commit(TIMEOUT_MS)
    eventually(lambda: desk.stable_offset(topic) == 5, "the commit marker")
    assert desk.end_offset(topic) == 5


def test_other_producers_records_wait_behind_an_open_transaction(desk: Desk) -> None:
    topic = desk.topic()
    producer = desk.open_transaction(topic, b"open")
    later = desk.producer(f"{desk.id}-other")
    later.begin()
    send(later, topic, b"later")
    later.commit(TIMEOUT_MS)
    consumer = desk.consumer(topic)
    assert [consumer.poll(10, POLL_MS) for _ in range(5)] == [[]] * 5
    producer.commit(TIMEOUT_MS)
    assert [r.value for r in read(consumer, 2)] == [b"open", b"later"]


def test_one_producer_runs_many_transactions(desk: Desk) -> None:
    topic, producer = desk.topic(), desk.producer()
    for n in range(5):
        producer.begin()
        send(producer, topic, b"%d" % n)
        producer.flush(TIMEOUT_MS)
        producer.commit(TIMEOUT_MS)
    records = read(desk.consumer(topic), 5)
    assert [(r.offset, r.value) for r in records] == [(2 * n, b"%d" % n) for n in range(5)]


def test_an_empty_transaction_commits(desk: Desk) -> None:
    producer = desk.producer()
    producer.begin()
    producer.commit(TIMEOUT_MS)


@pytest.mark.parametrize("flush_first", [True, False])
def test_a_transaction_that_lost_a_record_never_commits(desk: Desk, flush_first: bool) -> None:
    topic, producer = desk.topic(), desk.producer()
    producer.begin()
    send(producer, topic, b"good")
    send(producer, f"absent-{uuid4().hex}", b"bad")
    with pytest.raises(ProducerError, match="UNKNOWN_TOPIC_OR_PART"):
        if flush_first:
            producer.flush(TIMEOUT_MS)
        else:
            producer.commit(TIMEOUT_MS)
    producer.close()
    desk.commit(topic, b"next")
    assert [r.value for r in read(desk.consumer(topic), 1)] == [b"next"]


def test_a_producer_that_raised_is_not_used_again(desk: Desk) -> None:
    producer = desk.producer()
    producer.begin()
    send(producer, f"absent-{uuid4().hex}", b"bad")
    with pytest.raises(ProducerError):
        producer.flush(TIMEOUT_MS)
    with pytest.raises(AssertionError, match="dead"):
        producer.begin()
    producer.close()
    producer.close()


# --- fencing


def test_a_zombie_learns_in_flush(desk: Desk) -> None:
    topic = desk.topic()
    zombie = desk.open_transaction(topic, b"before")
    desk.producer()
    send(zombie, topic, b"after")
    with pytest.raises(FencedError):
        zombie.flush(TIMEOUT_MS)


def test_a_zombie_learns_in_commit(desk: Desk) -> None:
    topic = desk.topic()
    zombie = desk.open_transaction(topic, b"before")
    desk.producer()
    with pytest.raises(FencedError):
        zombie.commit(TIMEOUT_MS)


def test_a_zombie_that_begins_anew_gets_nothing_committed(desk: Desk) -> None:
    topic, zombie = desk.topic(), desk.producer()
    successor = desk.producer()
    with pytest.raises(FencedError):
        zombie.begin()
        send(zombie, topic, b"zombie")
        zombie.commit(TIMEOUT_MS)
    successor.begin()
    send(successor, topic, b"successor")
    successor.commit(TIMEOUT_MS)
    assert [r.value for r in read(desk.consumer(topic), 1)] == [b"successor"]


# --- positions


def test_offsets_have_gaps_where_markers_and_aborted_records_are(desk: Desk) -> None:
    topic = desk.topic()
    desk.commit(topic, b"0", b"1")
    desk.abort(topic, b"3", b"4", b"5")
    desk.commit(topic, b"7")
    records = read(desk.consumer(topic), 3)
    assert [(r.offset, r.value) for r in records] == [(0, b"0"), (1, b"1"), (7, b"7")]


def test_position_passes_markers_and_aborted_records_up_to_the_stable_offset(desk: Desk) -> None:
    topic = desk.topic()
    desk.commit(topic, b"0")
    desk.abort(topic, b"2", b"3")
    consumer = desk.consumer(topic)
    assert [r.offset for r in read_to(consumer, 0, 5)] == [0]
    desk.abort(topic, b"5")
    assert read_to(consumer, 0, 7) == []


def test_position_is_the_assigned_one_before_anything_was_read(desk: Desk) -> None:
    topic = desk.topic()
    desk.commit(topic, b"0", b"1")
    assert desk.consumer(topic, {0: Position(1)}).position(0) == 1


def test_position_never_passes_a_record_that_was_not_handed_out(desk: Desk) -> None:
    topic = desk.topic()
    for n in range(10):
        desk.commit(topic, b"%d" % n)
    consumer = desk.consumer(topic)
    handed_out = 0
    while handed_out < 10:
        handed_out += len(consumer.poll(1, POLL_MS))
        assert consumer.position(0) <= 2 * handed_out, "record n lies at offset 2n"


def test_a_new_assignment_replaces_the_old_one(desk: Desk) -> None:
    topic = desk.topic(partitions=2)
    producer = desk.producer()
    producer.begin()
    for partition in (0, 1):
        for value in (b"a", b"b", b"c"):
            send(producer, topic, value, partition=partition)
    producer.commit(TIMEOUT_MS)
    consumer = desk.consumer(topic, {0: Position(0), 1: Position(0)})
    read(consumer, 6)
    consumer.assign({1: Position(1, 0)})
    assert [(r.partition, r.value) for r in read_to(consumer, 1, 4)] == [(1, b"b"), (1, b"c")]


def test_reading_goes_on_where_a_record_and_its_epoch_say(desk: Desk) -> None:
    topic = desk.topic()
    desk.commit(topic, b"0", b"1")
    record = read(desk.consumer(topic), 1)[0]
    assert record.leader_epoch == 0
    again = desk.consumer(topic, {0: Position(record.offset + 1, record.leader_epoch)})
    assert [r.value for r in read(again, 1)] == [b"1"]


@pytest.mark.parametrize(
    "position", [Position(99), Position(1, 7)], ids=["beyond the end", "of another epoch"]
)
def test_a_position_that_the_log_does_not_hold_raises(desk: Desk, position: Position) -> None:
    topic = desk.topic()
    desk.commit(topic, b"0", b"1")
    consumer = desk.consumer(topic, {0: position})
    with pytest.raises(BufferPositionError):
        poll_until_it_raises(consumer)
    with pytest.raises(BufferPositionError):
        consumer.poll(1, POLL_MS)


def test_a_position_below_the_start_of_the_log_raises(desk: Desk) -> None:
    topic = desk.topic()
    desk.commit(topic, b"0", b"1", b"2")
    eventually(lambda: desk.stable_offset(topic) == 4, "the commit marker")
    desk.site.delete_before(topic, 0, 2)
    assert desk.cluster.start_offsets(topic, TIMEOUT_MS) == {0: 2}
    assert [r.value for r in read(desk.consumer(topic, {0: Position(2)}), 1)] == [b"2"]
    with pytest.raises(BufferPositionError):
        poll_until_it_raises(desk.consumer(topic, {0: Position(1)}))


@pytest.mark.parametrize("known", [True, False], ids=["partition", "topic"])
def test_reading_what_does_not_exist_raises(desk: Desk, known: bool) -> None:
    topic = desk.topic() if known else f"absent-{uuid4().hex}"
    with pytest.raises(ConsumerError):
        poll_until_it_raises(desk.consumer(topic, {3: Position(0)}))


# --- administration


def test_topics_are_created_once(desk: Desk) -> None:
    name = f"t-{uuid4().hex}"

    def create() -> bool:
        return desk.cluster.create_topic(
            name,
            partitions=3,
            replication_factor=1,
            config={"retention.ms": "12345"},
            timeout_ms=TIMEOUT_MS,
        )

    assert create()
    [state] = desk.cluster.describe([name], TIMEOUT_MS).values()
    assert state.name == name and state.topic_id
    assert [(p.leader is not None, p.replicas, p.in_sync) for p in state.partitions] == [
        (True, 1, 1)
    ] * 3
    assert state.config["retention.ms"] == "12345"
    assert state.config["message.timestamp.type"] == "CreateTime", "defaults are told too"
    assert not create()


def test_describe_leaves_out_what_does_not_exist_and_creates_nothing(desk: Desk) -> None:
    topic, absent = desk.topic(), f"absent-{uuid4().hex}"
    for _ in range(2):
        assert desk.cluster.describe([topic, absent], TIMEOUT_MS).keys() == {topic}
    assert desk.cluster.describe([], TIMEOUT_MS) == {}


def test_every_topic_has_an_id_of_its_own(desk: Desk) -> None:
    states = desk.cluster.describe([desk.topic(), desk.topic()], TIMEOUT_MS)
    assert len({state.topic_id for state in states.values()}) == 2


def test_a_topic_that_kafka_will_not_make_is_refused(desk: Desk) -> None:
    with pytest.raises(TopicMismatchError, match="INVALID_REPLICATION_FACTOR"):
        desk.cluster.create_topic(
            f"t-{uuid4().hex}",
            partitions=1,
            replication_factor=5,
            config={},
            timeout_ms=TIMEOUT_MS,
        )


def test_offsets_of_a_new_topic_are_zero(desk: Desk) -> None:
    topic = desk.topic(partitions=2)
    assert desk.cluster.start_offsets(topic, TIMEOUT_MS) == {0: 0, 1: 0}
    for committed in (True, False):
        assert desk.cluster.end_offsets(topic, TIMEOUT_MS, committed=committed) == {0: 0, 1: 0}


def test_offsets_of_an_absent_topic_are_an_error(desk: Desk) -> None:
    with pytest.raises(TopicMismatchError, match="does not exist"):
        desk.cluster.end_offsets(f"absent-{uuid4().hex}", TIMEOUT_MS, committed=True)


def test_brokers_are_counted(desk: Desk) -> None:
    assert desk.cluster.broker_count(TIMEOUT_MS) == 1


def test_unreachable_brokers_are_an_error_of_administration_and_producer_only(desk: Desk) -> None:
    bus = desk.site.unreachable_bus()
    cluster, producer, consumer = (
        bus.cluster(),
        bus.transactional_producer(desk.id),
        bus.consumer("any"),
    )
    consumer.assign({0: Position(0)})
    clock = SystemClock()
    before_ms = clock.monotonic_ms()
    with pytest.raises(KafkaUnreachableError):
        cluster.broker_count(300)
    with pytest.raises(KafkaUnreachableError):
        cluster.describe(["any"], 300)
    with pytest.raises(ProducerError):
        producer.init_transactions(300)
    assert consumer.poll(10, 300) == []
    assert clock.monotonic_ms() - before_ms < 3_000, "four calls of 300 ms"
    for client in (cluster, producer, consumer):
        client.close()
