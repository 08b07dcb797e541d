"""One suite for every bus, the twin in memory and both drivers: records, partitions, positions.

Transactions are in `test_bus_transactions.py`, administration in `test_bus_cluster.py`, what only
real brokers can be asked in `test_bus_drivers.py`, and the guards around the traps of one driver in
`test_bus_kafka_python.py`.
"""

import threading
from uuid import uuid4

import pytest
import test_bus_desk
from test_bus_desk import (
    POLL_MS,
    TIMEOUT_MS,
    Desk,
    eventually,
    poll_until_it_raises,
    read,
    read_to,
    send,
)

from delayd.bus import Ack, Headers, Position, Record
from delayd.bus.murmur2 import murmur2, partition_of
from delayd.errors import BufferPositionError, ConsumerError
from delayd.runtime.clock import SystemClock

site = test_bus_desk.site
desk = test_bus_desk.desk


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
    topic, producer = desk.topic(), desk.begun()
    send(producer, topic, b"\x00\xffvalue", key=b"\xff\x00key", headers=headers)
    producer.commit(TIMEOUT_MS)
    [record] = read(desk.consumer(topic), 1)
    assert (record.key, record.value, record.headers) == (b"\xff\x00key", b"\x00\xffvalue", headers)


@pytest.mark.parametrize("key", [None, b""])
@pytest.mark.parametrize("value", [None, b""])
def test_null_and_empty_are_different(desk: Desk, key: bytes | None, value: bytes | None) -> None:
    topic, producer = desk.topic(), desk.begun()
    send(producer, topic, value, key=key)
    producer.commit(TIMEOUT_MS)
    [record] = read(desk.consumer(topic), 1)
    assert (record.key, record.value, record.headers) == (key, value, [])


def test_a_record_of_a_megabyte_arrives(desk: Desk) -> None:
    value = bytes(range(256)) * 4_000
    topic, producer = desk.topic(max_message_bytes="2000000"), desk.begun()
    send(producer, topic, value, key=b"k")
    producer.commit(TIMEOUT_MS)
    [record] = read(desk.consumer(topic), 1)
    assert record.value == value


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
    topic, producer = desk.topic(partitions=5), desk.begun()
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


def test_position_follows_each_record_within_a_batch(desk: Desk) -> None:
    topic = desk.topic()
    desk.commit(topic, *(b"%d" % n for n in range(5)))
    consumer = desk.consumer(topic)
    for n in range(4):
        [record] = read(consumer, 1)
        assert (record.offset, consumer.position(0)) == (n, n + 1)


def test_a_new_assignment_replaces_the_old_one(desk: Desk) -> None:
    topic = desk.topic(partitions=2)
    producer = desk.begun()
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
        consumer.poll(1, 0)


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
