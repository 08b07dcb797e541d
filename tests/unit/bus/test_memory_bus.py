"""What the twin adds to the ports: faults to order, and the broker's darker corners.

That it behaves like Kafka otherwise is what tests/conformance/test_bus*.py check.
"""

import threading

import pytest
from manual_clock import ManualClock

from delayd.bus import Position, Record, TransactionalProducer
from delayd.bus.memory import MemoryBus, MemoryKafka, Refused
from delayd.errors import BufferPositionError, ConsumerError, FencedError, ProducerError
from delayd.runtime.clock import SystemClock

LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def kafka(clock: ManualClock) -> MemoryKafka:
    kafka = MemoryKafka(clock)
    kafka.create_topic("t", 2, LOG_APPEND_TIME)
    return kafka


@pytest.fixture
def bus(kafka: MemoryKafka) -> MemoryBus:
    return MemoryBus(kafka)


def producer(bus: MemoryBus, transactional_id: str = "id") -> TransactionalProducer:
    made = bus.transactional_producer(transactional_id)
    made.init_transactions(1_000)
    return made


def open_transaction(bus: MemoryBus, *values: bytes, by: str = "id") -> TransactionalProducer:
    made = producer(bus, by)
    made.begin()
    for value in values:
        made.send("t", key=None, value=value, headers=[], partition=0)
    return made


def committed(bus: MemoryBus, offset: int = 0) -> list[Record]:
    consumer = bus.consumer("t")
    consumer.assign({0: Position(offset)})
    return consumer.poll(1_000, 0)


def values(bus: MemoryBus) -> list[bytes | None]:
    return [record.value for record in committed(bus)]


def lag(kafka: MemoryKafka) -> int:
    log = kafka.log("t", 0)
    return log.end_offset - log.stable_offset


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


# --- commits in doubt


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_in_doubt_is_decided_by_what_the_broker_did(
    kafka: MemoryKafka, bus: MemoryBus, applied: bool
) -> None:
    kafka.fail_next_commit("id", applied=applied)
    made = open_transaction(bus, b"x")
    with pytest.raises(ProducerError, match="_TIMED_OUT") as raised:
        made.commit(1_000)
    assert not isinstance(raised.value, FencedError)
    assert values(bus) == ([b"x"] if applied else [])
    assert (lag(kafka) == 0) is applied
    open_transaction(bus, b"y").commit(1_000)
    assert values(bus) == ([b"x", b"y"] if applied else [b"y"])


def test_a_failed_flush_leaves_its_records_to_the_successor(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    kafka.fail_next_flush("id")
    made = open_transaction(bus, b"x")
    with pytest.raises(ProducerError, match="_TIMED_OUT"):
        made.flush(1_000)
    assert lag(kafka) == 1
    producer(bus).close()
    assert (lag(kafka), values(bus)) == (0, [])


def test_a_failed_flush_counts_once_and_for_its_id_only(kafka: MemoryKafka, bus: MemoryBus) -> None:
    kafka.fail_next_flush("other")
    open_transaction(bus, b"x").commit(1_000)
    with pytest.raises(ProducerError):
        open_transaction(bus, b"y", by="other").flush(1_000)
    open_transaction(bus, b"z", by="other").commit(1_000)
    assert values(bus) == [b"x", b"z"]


def test_a_refused_topic_fails_the_transaction_with_its_reason(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    kafka.refuse("t", "TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(ProducerError, match="TOPIC_AUTHORIZATION_FAILED"):
        open_transaction(bus, b"x").commit(1_000)
    kafka.refuse("t", None)
    open_transaction(bus, b"y").commit(1_000)
    assert values(bus) == [b"y"]


@pytest.mark.parametrize(
    ("config", "value", "error"),
    [
        ({"max.message.bytes": "200"}, bytes(300), "MSG_SIZE_TOO_LARGE"),
        ({"cleanup.policy": "compact"}, b"keyless", "INVALID_RECORD"),
        ({"min.insync.replicas": "2"}, b"x", "NOT_ENOUGH_REPLICAS"),
    ],
)
def test_topics_refuse_what_kafka_refuses(
    kafka: MemoryKafka, bus: MemoryBus, config: dict[str, str], value: bytes, error: str
) -> None:
    kafka.create_topic("strict", 1, config)
    made = producer(bus)
    made.begin()
    made.send("strict", key=None, value=value, headers=[])
    with pytest.raises(ProducerError, match=error):
        made.flush(1_000)
    with pytest.raises(Refused, match=error):
        kafka.append("strict", 0, None, value)


def test_a_partition_without_a_leader_times_out(kafka: MemoryKafka, bus: MemoryBus) -> None:
    kafka.log("t", 0).leader = None
    with pytest.raises(ProducerError, match="_MSG_TIMED_OUT"):
        open_transaction(bus, b"x").flush(1_000)
    [state] = bus.cluster().describe(["t"], 0).values()
    assert [p.leader for p in state.partitions] == [None, 1]


# --- zombie leaders


def test_a_zombie_leader_serves_what_was_there_to_those_that_know_no_other(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """docs/design/frontier.md, Stale reads."""
    kafka.append("t", 0, None, b"old")
    reader, asked = bus.consumer("t"), bus.cluster()
    reader.assign({0: Position(0), 1: Position(0)})
    kept = open_transaction(bus, b"in vain", by="before")
    kept.close()
    producer(bus, "before").close()
    writer = producer(bus, "writer")
    kafka.isolate_leader("t", 0)
    writer.begin()
    writer.send("t", key=None, value=b"never acknowledged", headers=[], partition=0)
    with pytest.raises(ProducerError, match="_MSG_TIMED_OUT"):
        writer.flush(1_000)
    open_transaction(bus, b"new").commit(1_000)
    kafka.append("t", 1, None, b"elsewhere")
    assert [record.value for record in reader.poll(10, 0)] == [b"elsewhere", b"old"]
    assert reader.position(0) == reader.end(0) == 3
    for is_committed in (True, False):
        assert asked.end_offsets("t", 0, committed=is_committed)[0] == 3
    assert (values(bus), bus.cluster().end_offsets("t", 0, committed=True)[0]) == (
        [b"old", b"new"],
        5,
    )
    bus.link.meets_zombies = True
    assert values(bus) == [b"old"], "its metadata came from the zombie"
    kafka.end_zombies()
    assert [record.value for record in reader.poll(10, 0)] == [b"new"]


def test_what_is_open_when_a_leader_is_cut_off_stays_open_there(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    asked = bus.cluster()
    transaction = open_transaction(bus, b"x")
    kafka.isolate_leader("t", 1)
    kafka.isolate_leader("t", 0)
    transaction.commit(1_000)
    assert asked.end_offsets("t", 0, committed=True) == {0: 0, 1: 0}
    assert asked.end_offsets("t", 0, committed=False) == {0: 1, 1: 0}
    assert values(bus) == [b"x"]


# --- markers


def test_a_lost_commit_marker_hangs_the_stable_offset_for_all(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    kafka.lose_next_marker("t", 0)
    open_transaction(bus, b"x").commit(1_000)
    kafka.append("t", 0, None, b"behind")
    assert (lag(kafka), values(bus)) == (2, [])
    producer(bus).close()
    assert lag(kafka) == 2, "a successor has nothing left to abort there"


@pytest.mark.parametrize("next_commits", [True, False])
def test_the_next_marker_of_the_same_producer_decides_the_lost_one_s_records(
    kafka: MemoryKafka, bus: MemoryBus, next_commits: bool
) -> None:
    kafka.lose_next_marker("t", 0)
    open_transaction(bus, b"x").commit(1_000)
    following = open_transaction(bus, b"y")
    if next_commits:
        following.commit(1_000)
    else:
        producer(bus).close()
    assert values(bus) == ([b"x", b"y"] if next_commits else []), "KAFKA-20734"


def test_the_marker_of_one_producer_is_lost_and_not_that_of_another(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    mine = open_transaction(bus, b"x", by="mine")
    kafka.lose_next_marker("t", 0, "mine")
    open_transaction(bus, b"y", by="other").commit(1_000)
    assert kafka.log("t", 0).open.keys() == {kafka.coordinator.holders["mine"].producer_id}
    mine.commit(1_000)
    assert (lag(kafka), values(bus)) == (3, []), "the commit was acknowledged, its marker is lost"


def test_held_markers_hide_a_commit_until_they_are_released(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    kafka.hold_markers()
    made = open_transaction(bus, b"x")
    made.commit(1_000)
    assert (lag(kafka), values(bus)) == (1, [])
    kafka.release_markers()
    assert (lag(kafka), values(bus)) == (0, [b"x"])


def test_a_successor_gets_the_id_only_when_held_markers_are_written(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    kafka.hold_markers()
    open_transaction(bus, b"x").commit(1_000)
    producer(bus).close()
    assert (lag(kafka), values(bus)) == (0, [b"x"])


# --- expiry, cut networks


def test_an_expired_transaction_is_aborted_and_its_producer_fenced(
    kafka: MemoryKafka, bus: MemoryBus, clock: ManualClock
) -> None:
    made = open_transaction(bus, b"x")
    clock.now_ms += 9_999
    assert kafka.expire_transactions() == []
    clock.now_ms += 1
    assert kafka.expire_transactions() == ["id"]
    assert lag(kafka) == 0
    with pytest.raises(FencedError):
        made.commit(1_000)
    assert values(bus) == []


def test_a_cut_off_node_reads_nothing_and_commits_nothing(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    kafka.append("t", 0, None, b"plain")
    made = open_transaction(bus, b"x")
    consumer = bus.consumer("t")
    consumer.assign({0: Position(0)})
    bus.link.up = False
    assert (consumer.poll(10, 0), consumer.position(0)) == ([], 0)
    with pytest.raises(ProducerError, match="_TIMED_OUT"):
        made.commit(1_000)
    other = MemoryBus(kafka)
    open_transaction(other, b"successor").commit(1_000)
    assert values(other) == [b"plain", b"successor"]
    bus.link.up = True
    assert [r.value for r in consumer.poll(10, 0)] == [b"plain", b"successor"]


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
