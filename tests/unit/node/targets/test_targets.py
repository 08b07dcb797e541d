"""Targets: what would fail never enters a transaction."""

import pytest
from manual_clock import ManualClock
from target_problems import TIMEOUT_MS, problem, refusal

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.murmur2 import partition_of
from delayd.node.targets.checks import (
    BROKERS_FRESH_MS,
    FRESH_MS,
    Targets,
)


def key_of(partition: int, count: int) -> bytes:
    return next(k for n in range(1000) if partition_of(k := b"%d" % n, count) == partition)


@pytest.mark.parametrize(
    ("topic", "partition", "key", "size_bytes", "says"),
    [
        ("orders", None, None, 100, None),
        ("orders", 2, None, 100, None),
        ("orders", 3, None, 100, "topic orders has 3 partitions, the message asks for partition 3"),
        ("orders", None, None, 1_488, None),
        ("orders", None, None, 1_489, "takes 2000 at most (max.message.bytes)"),
        ("states", None, b"", 100, None),
        ("states", None, None, 100, "compacted, so that each record needs a key"),
        ("nowhere", None, b"k", 100, "topic nowhere does not exist; create it"),
    ],
)
def test_what_a_target_would_refuse_is_known_before_the_step(
    targets: Targets,
    topic: str,
    partition: int | None,
    key: bytes | None,
    size_bytes: int,
    says: str | None,
) -> None:
    """docs/design/frontier.md, Targets: a target is checked before it enters a step.

    Rules: target-checked
    """
    targets.look_up([topic])
    found = targets.problem_of(topic, partition, key, size_bytes)
    assert found is None if says is None else says in (found or "")


def test_a_topic_that_may_not_be_written_is_a_problem(targets: Targets, kafka: MemoryKafka) -> None:
    """docs/design/frontier.md, Targets: allowed."""
    kafka.allow_writes("orders", allowed=False)
    found = refusal(targets, "orders")
    assert "orders may not be written" in found and "right Write" in found


def test_a_topic_that_may_not_be_described_is_its_own_problem(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets: one refusal does not stand for all, and costs no request
    of its own."""
    kafka.hidden |= {"secret", "orders"}
    targets.look_up(["secret", "orders", "states"])
    assert kafka.surveys_count == 1
    for topic in ("secret", "orders"):
        found = targets.problem_of(topic, None, b"k", 10)
        assert found is not None and "may not be described (TOPIC_AUTHORIZATION_FAILED)" in found
    assert targets.problem_of("states", None, b"k", 10) is None


def test_a_partition_without_a_leader_is_the_problem_of_its_own_messages(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets: a partition has a leader."""
    kafka.log("orders", 1).leader = None
    for partition, key in ((1, None), (1, key_of(0, 3)), (None, key_of(1, 3))):
        found = refusal(targets, "orders", partition, key)
        assert "partition 1 of topic orders has no leader" in found
    for partition, key in ((0, None), (2, key_of(1, 3)), (None, key_of(2, 3)), (None, None)):
        assert problem(targets, "orders", partition, key) is None


def test_a_message_that_may_go_anywhere_goes_to_a_healthy_partition(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets: without key and partition. The producer chooses while all
    is well, for its own way spreads load best."""
    targets.look_up(["orders"])
    assert targets.partition_for("orders", None, None) is None
    targets.forget()
    kafka.log("orders", 1).leader = None
    targets.look_up(["orders"])
    chosen = [targets.partition_for("orders", None, None) for _ in range(10)]
    assert set(chosen) == {0, 2}
    assert targets.partition_for("orders", 2, None) == 2
    assert targets.partition_for("orders", None, b"k") is None


def test_a_message_that_may_go_anywhere_has_a_problem_when_there_is_no_healthy_partition(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets."""
    for partition in range(3):
        kafka.log("orders", partition).leader = None
    assert "has no leader" in refusal(targets, "orders", None, None)


def test_fewer_replicas_in_sync_than_the_topic_asks_for_is_a_problem(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets: the brokers would refuse it."""
    kafka.create_topic("strict", 2, {"min.insync.replicas": "2"})
    kafka.log("strict", 1).in_sync = 2
    found = refusal(targets, "strict", 0)
    assert "1 replicas in sync, fewer than min.insync.replicas = 2" in found
    assert problem(targets, "strict", 1) is None


def replicated(clock: ManualClock, *, unreplicated: bool) -> tuple[MemoryKafka, Targets]:
    kafka = MemoryKafka(clock, brokers=3)
    kafka.create_topic("two", 2, replication_factor=2)
    kafka.log("two", 1).in_sync = 1
    kafka.create_topic("one", 1)
    return kafka, Targets(MemoryBus(kafka).cluster(), clock, TIMEOUT_MS, unreplicated=unreplicated)


def test_a_lone_replica_is_a_problem_on_more_than_one_broker(clock: ManualClock) -> None:
    """docs/design/frontier.md, Targets: at least two in-sync replicas.

    Rules: target-checked
    """
    _, targets = replicated(clock, unreplicated=False)
    for topic, partition in (("two", 1), ("one", 0)):
        found = refusal(targets, topic, partition)
        assert "one replica in sync" in found and "unreplicated_targets" in found
    assert problem(targets, "two", 0) is None


def test_a_lone_replica_is_fine_where_that_was_allowed(clock: ManualClock) -> None:
    """docs/design/frontier.md, Targets: unless `unreplicated_targets = true`."""
    kafka, targets = replicated(clock, unreplicated=True)
    kafka.create_topic("fragile", 1, {"min.insync.replicas": "2"}, replication_factor=2)
    assert problem(targets, "two", 1) is problem(targets, "one", 0) is None
    assert problem(targets, "fragile") is None, "it has no replica to spare"


def test_a_partition_without_a_replica_to_spare_is_a_problem(clock: ManualClock) -> None:
    """docs/operations.md, "A transaction that cannot end": it would hold up all targets."""
    kafka, targets = replicated(clock, unreplicated=False)
    kafka.create_topic("fragile", 1, {"min.insync.replicas": "2"}, replication_factor=2)
    kafka.create_topic("sound", 1, {"min.insync.replicas": "2"}, replication_factor=3)
    found = refusal(targets, "fragile")
    assert "no replica to spare (min.insync.replicas = 2)" in found
    assert problem(targets, "sound") is None
    kafka.log("sound", 0).in_sync = 2
    clock.now_ms += FRESH_MS
    assert problem(targets, "sound") is None, "one broker is away: that is what it is for"


def test_a_lone_replica_is_fine_on_one_broker_until_there_are_more(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets: on a cluster of more than one broker."""
    assert problem(targets, "orders") is None
    kafka.brokers = 2
    clock.now_ms += FRESH_MS
    assert problem(targets, "orders") is None, "the number of brokers is believed for longer"
    clock.now_ms += BROKERS_FRESH_MS
    assert problem(targets, "orders") is not None


def test_a_cluster_that_lost_brokers_is_not_a_smaller_one(clock: ManualClock) -> None:
    """docs/design/frontier.md, Targets: that is when a lone replica is most in danger."""
    kafka, targets = replicated(clock, unreplicated=False)
    assert problem(targets, "one") is not None
    kafka.brokers = 1
    clock.now_ms += 10 * BROKERS_FRESH_MS
    assert problem(targets, "one") is not None


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_topic_that_may_refuse_the_end_of_a_transaction_is_a_problem(
    targets: Targets, kafka: MemoryKafka, side: str
) -> None:
    """docs/operations.md, "A transaction that cannot end": markers have a time too."""
    name = f"message.timestamp.{side}.max.ms"
    kafka.create_topic("strict", 1, {name: "59999"})
    kafka.create_topic("lenient", 1, {name: "60000"})
    kafka.create_topic("own", 1, {name: "0", "message.timestamp.type": "LogAppendTime"})
    assert f"{name} below 60000" in refusal(targets, "strict")
    assert problem(targets, "lenient") is problem(targets, "own") is None


def test_only_a_topic_that_takes_little_is_sent_to_in_chunks(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets: a broker judges batches, not records.

    Rules: target-chunks
    """
    kafka.create_topic("small", 1, config={"max.message.bytes": "20000"})
    kafka.create_topic("usual", 1)
    targets.look_up(["usual", "small"])
    assert targets.chunk_bytes_max("usual") is None
    chunk = targets.chunk_bytes_max("small")
    assert chunk is not None and 0 < chunk < 20_000
