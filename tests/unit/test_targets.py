"""Targets: what would fail never enters a transaction."""

import pytest

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.errors import KafkaUnreachableError
from delayd.targets import FRESH_MS, Targets


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms


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
    return Targets(bus.cluster(), clock, timeout_ms=1_000)


@pytest.mark.parametrize(
    ("topic", "partition", "has_key", "size_bytes", "problem"),
    [
        ("orders", None, False, 100, None),
        ("orders", 2, False, 100, None),
        ("orders", 3, False, 100, "topic orders has 3 partitions, the message asks for"),
        ("orders", None, False, 1_488, None),
        ("orders", None, False, 1_489, "takes 2000 at most (max.message.bytes)"),
        ("states", None, True, 100, None),
        ("states", None, False, 100, "compacted, so that each record needs a key"),
        ("nowhere", None, True, 100, "topic nowhere does not exist; create it"),
    ],
)
def test_what_a_target_would_refuse_is_known_before_the_step(
    targets: Targets,
    topic: str,
    partition: int | None,
    has_key: bool,
    size_bytes: int,
    problem: str | None,
) -> None:
    """docs/design/frontier.md, Targets: a target is checked before it enters a step."""
    targets.look_up([topic])
    found = targets.problem(topic, partition, has_key, size_bytes)
    if problem is None:
        assert found is None
    else:
        assert found is not None and problem in found


def test_topics_are_never_created_by_looking_at_them(targets: Targets, kafka: MemoryKafka) -> None:
    """docs/design/frontier.md, Targets: topics are never created automatically."""
    targets.look_up(["nowhere"])
    assert "nowhere" not in kafka.topics


def test_an_answer_is_believed_for_a_while_and_then_asked_again(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets: from cached metadata."""
    targets.look_up(["orders"])
    kafka.delete_topic("orders")
    clock.now_ms += FRESH_MS
    targets.look_up(["orders"])
    assert targets.problem("orders", None, True, 10) is None
    clock.now_ms += 1
    targets.look_up(["orders"])
    assert targets.problem("orders", None, True, 10) is not None


def test_a_topic_that_was_absent_is_asked_for_again_at_once(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets: who creates it as told must not be told so again."""
    targets.look_up(["later"])
    assert targets.problem("later", None, True, 10) is not None
    kafka.create_topic("later", 1)
    targets.look_up(["later"])
    assert targets.problem("later", None, True, 10) is None


def test_only_a_topic_that_takes_little_is_sent_to_in_chunks(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets: a broker judges batches, not records."""
    kafka.create_topic("small", 1, config={"max.message.bytes": "20000"})
    kafka.create_topic("usual", 1)
    targets.look_up(["usual", "small"])
    assert targets.chunk_bytes_max("usual") is None
    chunk = targets.chunk_bytes_max("small")
    assert chunk is not None and 0 < chunk < 20_000


def test_after_a_failed_step_nothing_is_believed(targets: Targets, kafka: MemoryKafka) -> None:
    """docs/design/frontier.md, Targets: what a failure may have changed is read again."""
    targets.look_up(["orders"])
    kafka.delete_topic("orders")
    targets.forget()
    targets.look_up(["orders"])
    assert targets.problem("orders", None, True, 10) is not None


def test_a_target_without_a_leader_stops_the_step_not_the_message(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets: it is there and will be back, so nothing is dead."""
    kafka.log("orders", 1).leader = None
    with pytest.raises(KafkaUnreachableError, match="orders has no leader"):
        targets.look_up(["orders", "states"])
    kafka.log("orders", 1).leader = 1
    targets.look_up(["orders", "states"])
    assert targets.problem("orders", None, True, 10) is None


def test_brokers_that_do_not_answer_make_no_message_dead(targets: Targets, bus: MemoryBus) -> None:
    """docs/design/frontier.md, Targets."""
    bus.link.up = False
    with pytest.raises(KafkaUnreachableError):
        targets.look_up(["orders"])
