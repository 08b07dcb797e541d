"""Targets: what would fail never enters a transaction, and no target is another one's problem."""

import pytest
from manual_clock import START_MS, ManualClock

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.cluster import MemoryCluster
from delayd.bus.murmur2 import partition_of
from delayd.errors import KafkaUnreachableError
from delayd.node.targets.checks import (
    BROKERS_FRESH_MS,
    FRESH_MS,
    KNOWN_MAX,
    RECHECK_MS,
    REFRESHED_MAX,
    SURVEY_TOPICS_MAX,
    Targets,
)

TIMEOUT_MS = 1_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def kafka(clock: ManualClock) -> MemoryKafka:
    kafka = MemoryKafka(clock)
    kafka.create_topic("orders", 3, {"max.message.bytes": "2000"})
    kafka.create_topic("states", 1, {"cleanup.policy": "compact,delete"})
    return kafka


@pytest.fixture
def bus(kafka: MemoryKafka) -> MemoryBus:
    return MemoryBus(kafka)


@pytest.fixture
def targets(bus: MemoryBus, clock: ManualClock) -> Targets:
    return Targets(bus.cluster(), clock, TIMEOUT_MS)


def problem(
    targets: Targets, topic: str, partition: int | None = None, key: bytes | None = b"k"
) -> str | None:
    targets.look_up([topic])
    return targets.problem_of(topic, partition, key, 10)


def refusal(
    targets: Targets, topic: str, partition: int | None = None, key: bytes | None = b"k"
) -> str:
    found = problem(targets, topic, partition, key)
    assert found is not None, f"{topic} has no problem"
    return found


def refused_count(targets: Targets, names: list[str]) -> int:
    return sum(targets.problem_of(name, None, b"k", 10) is not None for name in names)


def described(targets: Targets, kafka: MemoryKafka, count: int) -> list[str]:
    """Names of topics that were just made and looked up."""
    names = [f"t{number:03}" for number in range(count)]
    for name in names:
        kafka.create_topic(name)
    targets.look_up(names)
    return names


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


def test_topics_are_never_created_by_looking_at_them(targets: Targets, kafka: MemoryKafka) -> None:
    """docs/design/frontier.md, Targets: topics are never created automatically.

    Rules: never-created
    """
    targets.look_up(["nowhere"])
    assert "nowhere" not in kafka.topics


def test_a_healthy_topic_is_believed_for_five_seconds(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets: from cached metadata.

    Rules: target-cached
    """
    assert problem(targets, "orders") is None
    kafka.delete_topic("orders")
    clock.now_ms += FRESH_MS - 1
    assert problem(targets, "orders") is None
    clock.now_ms += 1
    assert problem(targets, "orders") is not None


@pytest.mark.parametrize("topic", ["nowhere", "hidden", "denied", "leaderless"])
def test_a_failing_topic_is_asked_for_once_a_second_however_many_steps_want_it(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock, topic: str
) -> None:
    """docs/design/frontier.md, Targets: probed by metadata, not by sending.

    Rules: target-cached
    """
    for name in ("denied", "leaderless"):
        kafka.create_topic(name)
    kafka.allow_writes("denied", allowed=False)
    kafka.log("leaderless", 0).leader = None
    kafka.hidden.add("hidden")
    for _ in range(RECHECK_MS):
        assert problem(targets, topic) is not None
        clock.now_ms += 1
    assert kafka.surveys_count == 1
    problem(targets, topic)
    assert kafka.surveys_count == 2


def test_a_topic_that_is_made_is_found_within_a_second(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets: who creates it as told is not told so for long."""
    assert problem(targets, "later") is not None
    kafka.create_topic("later")
    clock.now_ms += RECHECK_MS
    assert problem(targets, "later") is None


def test_many_topics_are_asked_for_in_few_requests(targets: Targets, kafka: MemoryKafka) -> None:
    """docs/design/frontier.md, Targets: a step may want any number of them."""
    names = [f"t{number}" for number in range(SURVEY_TOPICS_MAX * 2 + 1)]
    targets.look_up(names)
    assert kafka.surveys_count == 3
    assert refused_count(targets, names) == len(names)


def test_a_step_renews_a_bounded_number_of_descriptions_and_the_next_one_the_others(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets: a thousand targets do not stop a step for a second."""
    names = described(targets, kafka, REFRESHED_MAX + 10)
    for name in names:
        kafka.delete_topic(name)
    clock.now_ms += FRESH_MS
    for gone_count in (REFRESHED_MAX, len(names)):
        targets.look_up(names)
        assert refused_count(targets, names) == gone_count


def test_of_many_descriptions_the_oldest_are_renewed_first(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets: none is believed for ever."""
    names = described(targets, kafka, REFRESHED_MAX + 10)
    for name in names[-10:]:
        kafka.delete_topic(name)
    for _ in range(2):
        clock.now_ms += FRESH_MS
        targets.look_up(names)
    assert refused_count(targets, names) == 10


def test_names_do_not_accumulate(targets: Targets, kafka: MemoryKafka, clock: ManualClock) -> None:
    """docs/design/frontier.md, Targets: a new bad name every second."""
    problem(targets, "orders")
    kafka.delete_topic("orders")
    for number in range(0, 2 * KNOWN_MAX, 1000):
        names = {f"bad{number + more}" for more in range(1000)} | {"orders"}
        targets.look_up(names)
        assert len(targets._known) <= KNOWN_MAX
    assert problem(targets, "orders") is None, "what is wanted in each step was never read again"
    count = kafka.surveys_count
    targets.look_up(names)
    assert kafka.surveys_count == count, "what was wanted last is remembered"


def test_a_step_may_want_more_names_than_are_remembered(targets: Targets) -> None:
    """docs/design/frontier.md, Targets."""
    names = [f"t{number}" for number in range(KNOWN_MAX + 10)]
    targets.look_up(names)
    assert refused_count(targets, names) == len(names)
    targets.look_up(["orders"])
    assert len(targets._known) <= KNOWN_MAX


def test_after_a_failed_step_nothing_is_believed(targets: Targets, kafka: MemoryKafka) -> None:
    """docs/design/frontier.md, Targets: what a failure may have changed is read again."""
    assert problem(targets, "orders") is problem(targets, "states") is None
    kafka.delete_topic("orders")
    kafka.delete_topic("states")
    targets.forget(["orders", "never-seen"])
    assert problem(targets, "orders") is not None
    assert problem(targets, "states") is None
    targets.forget()
    assert problem(targets, "states") is not None


def test_no_answer_about_one_topic_is_not_the_problem_of_the_others(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets: no lane is held up by another's target."""
    kafka.create_topic("slow")
    kafka.silent.add("slow")
    targets.look_up(["slow", "orders"])
    assert targets.problem_of("orders", None, b"k", 10) is None
    assert "did not describe topic slow in time" in refusal(targets, "slow")
    kafka.silent.clear()
    clock.now_ms += RECHECK_MS
    assert problem(targets, "slow") is None


def test_what_was_known_is_believed_while_there_is_no_newer_answer(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets."""
    targets.look_up(["orders", "states"])
    kafka.silent.add("orders")
    clock.now_ms += FRESH_MS
    targets.look_up(["orders", "states"])
    assert targets.problem_of("orders", None, b"k", 10) is None
    count = kafka.surveys_count
    assert problem(targets, "orders") is None
    assert kafka.surveys_count == count, "not at every step"


class SlowCluster(MemoryCluster):
    """Each answer takes half of a look-up's time."""

    clock: ManualClock

    def survey(self, topics, timeout_ms):  # type: ignore[no-untyped-def]
        self.clock.now_ms += TIMEOUT_MS // 2
        return super().survey(topics, timeout_ms)


def test_a_look_up_ends_in_time_and_leaves_the_rest_for_later(
    kafka: MemoryKafka, bus: MemoryBus, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets: a step does not wait for metadata without end."""
    cluster = SlowCluster(kafka, bus.link)
    cluster.clock = clock
    targets = Targets(cluster, clock, TIMEOUT_MS)
    names = [f"t{number:04}" for number in range(SURVEY_TOPICS_MAX * 5)]
    targets.look_up(names)
    assert clock.now_ms == START_MS + TIMEOUT_MS
    found = [targets.problem_of(name, None, b"k", 10) or "" for name in names]
    assert sum("does not exist" in each for each in found) == SURVEY_TOPICS_MAX * 2
    assert sum("in time" in each for each in found) == SURVEY_TOPICS_MAX * 3


def test_brokers_that_do_not_answer_at_all_are_nobodys_problem(
    targets: Targets, bus: MemoryBus
) -> None:
    """docs/design/frontier.md, Targets: no message is turned away for it."""
    bus.link.up = False
    with pytest.raises(KafkaUnreachableError):
        targets.look_up(["orders"])


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
