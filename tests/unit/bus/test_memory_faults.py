"""What the twin adds to the ports: faults to order, and the broker's darker corners."""

import pytest
from manual_clock import ManualClock
from memory_topic import lag, open_transaction, producer, values

from delayd.bus import Position
from delayd.bus.memory import MemoryBus, MemoryKafka, Refused
from delayd.errors import FencedError, ProducerError

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


@pytest.mark.parametrize("is_broker_gone", [False, True])
def test_a_failed_flush_leaves_its_records_to_the_successor(
    kafka: MemoryKafka, bus: MemoryBus, is_broker_gone: bool
) -> None:
    kafka.fail_next_flush("id", is_broker_gone=is_broker_gone)
    made = open_transaction(bus, b"x")
    with pytest.raises(ProducerError, match="gone" if is_broker_gone else "_TIMED_OUT") as raised:
        made.flush(1_000)
    assert raised.value.is_broker_gone is is_broker_gone
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
    assert reader.position(0) == 3
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
