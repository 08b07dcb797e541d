"""The twin of the broker: plain records, time, and what happens to logs.

That it behaves like Kafka otherwise is what tests/conformance/test_bus*.py check.
"""

import threading

import pytest
from manual_clock import ManualClock
from memory_topic import committed, lag, open_transaction, producer, values

from delayd.bus import Position, Record
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.errors import BufferPositionError, ConsumerError
from delayd.runtime.clock import SystemClock

# --- plain records, time


def test_a_plain_record_is_seen_at_once_with_the_brokers_time(
    kafka: MemoryKafka, bus: MemoryBus, clock: ManualClock
) -> None:
    clock.now_ms = 77
    ack = kafka.append("t", 0, b"k", b"v", [("h", None)])
    assert ack == (0, 0, 77)
    assert committed(bus) == [Record(0, 0, 0, 77, b"k", b"v", [("h", None)])]


def test_create_time_is_the_node_s_clock_and_append_time_the_brokers(kafka: MemoryKafka) -> None:
    kafka.create_topic("by-producer", 1)
    made = producer(MemoryBus(kafka, clock=ManualClock(5)))
    acks: list[int] = []
    made.begin()
    for topic in ("by-producer", "t"):
        made.send(
            topic,
            key=None,
            value=None,
            headers=[],
            partition=0,
            on_ack=lambda ack: acks.append(ack.append_ms),
        )
    made.commit(0)
    assert acks == [5, 1_000_000]


def test_records_handed_out_share_nothing_with_the_log(kafka: MemoryKafka, bus: MemoryBus) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1")]
    kafka.append("t", 0, None, b"v", headers)
    headers.append(("later", b"x"))
    committed(bus)[0].headers.append(("reader", b"x"))
    assert committed(bus)[0].headers == [("a", b"1")]


def test_two_runs_are_the_same(clock: ManualClock) -> None:
    def run() -> list[tuple[int, int, bytes | None]]:
        kafka = MemoryKafka(clock)
        kafka.create_topic("t", 3)
        for n in range(20):
            kafka.append("t", None, None if n % 2 else b"%d" % n, b"%d" % n)
        consumer = MemoryBus(kafka).consumer("t")
        consumer.assign({n: Position(0) for n in range(3)})
        seen = []
        while batch := consumer.poll(4, 0):
            seen += [(r.partition, r.offset, r.value) for r in batch]
        return seen

    assert run() == run() and len(run()) == 20


def test_every_partition_gets_its_turn(kafka: MemoryKafka, bus: MemoryBus) -> None:
    for n in range(40):
        kafka.append("t", n % 2, None, None)
    consumer = bus.consumer("t")
    consumer.assign({0: Position(0), 1: Position(0)})
    assert {r.partition for _ in range(2) for r in consumer.poll(5, 0)} == {0, 1}


def test_poll_does_not_wait_unless_built_for_real_time(bus: MemoryBus) -> None:
    clock = SystemClock()
    before_ms = clock.monotonic_ms()
    consumer = bus.consumer("t")
    consumer.assign({0: Position(0)})
    assert consumer.poll(10, 60_000) == []
    assert clock.monotonic_ms() - before_ms < 10_000


def test_a_waiting_poll_is_woken_by_a_record() -> None:
    kafka = MemoryKafka(SystemClock(), real_time=True)
    kafka.create_topic("t", 1)
    consumer = MemoryBus(kafka).consumer("t")
    consumer.assign({0: Position(0)})
    writer = threading.Timer(0.05, lambda: kafka.append("t", 0, None, b"v"))
    writer.start()
    assert [r.value for r in consumer.poll(10, 60_000)] == [b"v"]
    writer.join()


def test_threads_write_and_read_without_losing_a_record() -> None:
    kafka = MemoryKafka(SystemClock(), real_time=True)
    kafka.create_topic("t", 1)

    def write(name: str) -> None:
        made = producer(MemoryBus(kafka), name)
        for n in range(50):
            made.begin()
            made.send("t", key=None, value=f"{name}-{n}".encode(), headers=[])
            made.commit(0)

    threads = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    consumer = MemoryBus(kafka).consumer("t")
    consumer.assign({0: Position(0)})
    seen: list[Record] = []
    while len(seen) < 200:
        batch = consumer.poll(7, 10_000)
        seen += batch
        assert batch or any(t.is_alive() for t in threads) or kafka.log("t", 0).end_offset == 400
    for thread in threads:
        thread.join()
    assert len({r.value for r in seen}) == 200
    assert [r.offset for r in seen] == sorted(r.offset for r in seen)


# --- what happens to logs


def test_an_election_keeps_positions_valid(kafka: MemoryKafka, bus: MemoryBus) -> None:
    kafka.append("t", 0, None, b"0")
    kafka.log("t", 0).elect()
    kafka.append("t", 0, None, b"1")
    consumer = bus.consumer("t")
    consumer.assign({0: Position(1, 0)})
    assert [(r.value, r.leader_epoch) for r in consumer.poll(10, 0)] == [(b"1", 1)]


def test_a_truncated_log_is_noticed_by_epoch_even_when_it_grew_again(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """Rules: snapshot-and-log"""
    for n in range(3):
        kafka.append("t", 0, None, b"%d" % n)
    kafka.log("t", 0).truncate(1)
    for n in range(5):
        kafka.append("t", 0, None, b"other %d" % n)
    consumer = bus.consumer("t")
    consumer.assign({0: Position(3, 0)})
    with pytest.raises(BufferPositionError):
        consumer.poll(10, 0)
    consumer.assign({0: Position(1, 0)})
    assert len(consumer.poll(10, 0)) == 5


def test_truncation_takes_an_open_transaction_s_hold_away(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    kafka.append("t", 0, None, b"0")
    open_transaction(bus, b"x")
    kafka.log("t", 0).truncate(1)
    assert lag(kafka) == 0


def test_retention_overtaking_a_reader_stops_it(kafka: MemoryKafka, bus: MemoryBus) -> None:
    for n in range(3):
        kafka.append("t", 0, None, b"%d" % n)
    consumer = bus.consumer("t")
    consumer.assign({0: Position(0)})
    assert len(consumer.poll(1, 0)) == 1
    kafka.log("t", 0).delete_before(2)
    with pytest.raises(BufferPositionError):
        consumer.poll(1, 0)


def test_a_deleted_topic_stops_its_reader_and_comes_back_with_another_id(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    before = bus.cluster().describe(["t"], 0)["t"].topic_id
    consumer = bus.consumer("t")
    consumer.assign({0: Position(0)})
    kafka.delete_topic("t")
    with pytest.raises(ConsumerError):
        consumer.poll(1, 0)
    kafka.create_topic("t", 2)
    assert bus.cluster().describe(["t"], 0)["t"].topic_id != before


def test_deleting_a_topic_does_not_stop_the_coordinator(kafka: MemoryKafka, bus: MemoryBus) -> None:
    made = open_transaction(bus, b"x")
    kafka.delete_topic("t")
    made.commit(1_000)
    producer(bus).close()


def test_compaction_leaves_the_last_record_of_a_key_and_all_offsets(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    for n in range(4):
        kafka.append("t", 0, b"k" if n % 2 else b"other", b"%d" % n)
    open_transaction(bus, b"aborted").close()
    producer(bus)  # its successor aborts what was open
    kafka.append("t", 0, b"k", b"late")
    log = kafka.log("t", 0)
    end = log.end_offset
    log.compact(end - 1)
    assert [record.offset for record in committed(bus)] == [2, 3, end - 1]
    assert log.end_offset == end
    log.compact(end)
    assert values(bus) == [b"2", b"late"]
