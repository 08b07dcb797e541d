"""What `/status` says of targets that fail: since when, how many, and no end of names."""

import pytest
from manual_clock import ManualClock

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.node.targets.checks import PROBE_MS, Targets
from delayd.node.targets.failures import QUIET_MS, TOPICS_MAX, TargetFailures


def turned_away(failing: TargetFailures, topic: str, at_ms: int, problem: str = "gone") -> None:
    failing.turned_away(topic, problem, 1, wall_ms=5_000_000 + at_ms, monotonic_ms=at_ms)


def test_a_target_fails_since_the_first_message_that_was_turned_away() -> None:
    """docs/operations.md, "Failing targets"."""
    failing = TargetFailures()
    turned_away(failing, "orders", 1)
    turned_away(failing, "orders", 2, "denied")
    turned_away(failing, "others", 3)
    assert failing.report() == [
        {"topic": "orders", "problem": "denied", "since_ms": 5_000_001, "messages": 2},
        {"topic": "others", "problem": "gone", "since_ms": 5_000_003, "messages": 1},
    ]


def test_one_that_is_well_is_shown_until_it_has_been_quiet() -> None:
    """docs/operations.md, "Failing targets"."""
    failing = TargetFailures()
    turned_away(failing, "orders", 1)
    failing.forget_healed(QUIET_MS + 1, lambda topic: False)
    assert failing.topics() == ["orders"]
    failing.forget_healed(QUIET_MS + 2, lambda topic: False)
    assert failing.report() == []


def test_one_that_fails_stays_however_quiet_it_is() -> None:
    """docs/operations.md, "Failing targets": its next retry may be hours away."""
    failing = TargetFailures()
    turned_away(failing, "orders", 1)
    failing.forget_healed(10**9, lambda topic: topic == "orders")
    assert failing.topics() == ["orders"]


def test_only_those_that_failed_last_are_kept() -> None:
    """docs/operations.md, "Failing targets": a new bad name every second fills no memory."""
    failing = TargetFailures()
    turned_away(failing, "busy", 0)
    for number in range(TOPICS_MAX):
        turned_away(failing, f"t{number}", number)
        turned_away(failing, "busy", number)
    topics = failing.topics()
    assert len(topics) == TOPICS_MAX and topics[-1] == "busy" and "t0" not in topics
    assert failing.report()[0] == {
        "topic": "busy",
        "problem": "gone",
        "since_ms": 5_000_000,
        "messages": TOPICS_MAX + 1,
    }


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def kafka(clock: ManualClock) -> MemoryKafka:
    return MemoryKafka(clock)


@pytest.fixture
def targets(kafka: MemoryKafka, clock: ManualClock) -> Targets:
    kafka.create_topic("orders")
    return Targets(MemoryBus(kafka).cluster(), clock, 1_000)


def test_a_failing_target_is_reported_until_it_is_well_and_quiet(
    kafka: MemoryKafka, targets: Targets, clock: ManualClock
) -> None:
    """docs/operations.md, "Failing targets"."""
    targets.look_up(["later"])
    found = targets.problem_of("later", None, None, 10)
    assert found is not None
    since_ms = clock.wall_ms()
    targets.turned_away("later", found, 1)
    targets.turned_away("later", found, 1)
    clock.now_ms += 3_600_000
    targets.look_up([])
    failing = {"topic": "later", "problem": found, "since_ms": since_ms, "messages": 2}
    assert targets.failing() == [failing], "the next retry may be hours away"
    kafka.create_topic("later")
    clock.now_ms += PROBE_MS
    targets.look_up([])
    assert targets.failing() == [failing], "that it is well was only asked for now"
    clock.now_ms += PROBE_MS
    targets.look_up([])
    assert targets.failing() == []


def test_a_target_that_turned_a_message_away_is_reported_though_it_is_well(
    targets: Targets, clock: ManualClock
) -> None:
    """docs/operations.md, "Failing targets": a record may be too large for a healthy topic."""
    targets.look_up(["orders"])
    targets.turned_away("orders", "too large", 1)
    clock.now_ms += PROBE_MS
    targets.look_up(["orders"])
    assert [failing["topic"] for failing in targets.failing()] == ["orders"]
    clock.now_ms += QUIET_MS
    targets.look_up(["orders"])
    assert targets.failing() == []
