"""What `/status` says of targets that fail: since when, how many, and no end of names."""

import pytest
from manual_clock import ManualClock

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.node.targets.checks import PROBE_MS, Targets
from delayd.node.targets.failures import QUIET_MS, TOPICS_MAX, FailingTarget, TurnedAway


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


def turned_away(targets: Targets, topic: str, problem: str = "gone") -> None:
    at_ms = targets.failures._clock.wall_ms()
    targets.failures.turned_away(topic, at_ms, TurnedAway(problem, messages=1, attempts=1))


def test_a_target_fails_since_the_first_message_that_was_turned_away(
    targets: Targets, clock: ManualClock
) -> None:
    """docs/operations.md, "Failing targets"."""
    since_ms = clock.wall_ms()
    for topic, problem in (("orders", "gone"), ("orders", "denied"), ("others", "gone")):
        turned_away(targets, topic, problem)
        clock.now_ms += 1
    assert targets.failures.report() == [
        FailingTarget("orders", "denied", since_ms, messages=2, attempts=2),
        FailingTarget("others", "gone", since_ms + 2, messages=1, attempts=1),
    ]


def test_a_retry_is_an_attempt_and_no_further_message(targets: Targets, clock: ManualClock) -> None:
    """docs/operations.md, "Failing targets"."""
    since_ms = clock.wall_ms()
    assert targets.failures.since_ms("orders") is None
    for messages in (3, 0, 0):
        step = TurnedAway("gone", messages=messages, attempts=3)
        targets.failures.turned_away("orders", clock.wall_ms(), step)
        clock.now_ms += 10_000
    assert targets.failures.since_ms("orders") == since_ms
    [failing] = targets.failures.report()
    assert (failing.since_ms, failing.messages, failing.attempts) == (since_ms, 3, 9)


def test_only_those_that_failed_last_are_kept(targets: Targets, clock: ManualClock) -> None:
    """docs/operations.md, "Failing targets": a new bad name every second fills no memory."""
    turned_away(targets, "busy")
    clock.now_ms += 1
    for number in range(TOPICS_MAX):
        turned_away(targets, f"t{number}")
        turned_away(targets, "busy")
    topics = targets.failures.topics()
    assert len(topics) == TOPICS_MAX and topics[-1] == "busy" and "t0" not in topics
    busy = targets.failures.report()[0]
    assert (busy.topic, busy.messages) == ("busy", TOPICS_MAX + 1)


def test_a_failing_target_is_reported_until_it_is_well_and_quiet(
    kafka: MemoryKafka, targets: Targets, clock: ManualClock
) -> None:
    """docs/operations.md, "Failing targets"."""
    targets.look_up(["later"])
    found = targets.problem_of("later", None, None, 10)
    assert found is not None
    since_ms = clock.wall_ms()
    turned_away(targets, "later", found)
    turned_away(targets, "later", found)
    clock.now_ms += 3_600_000
    targets.look_up([])
    failing = FailingTarget("later", found, since_ms, messages=2, attempts=2)
    assert targets.failures.report() == [failing], "the next retry may be hours away"
    kafka.create_topic("later")
    clock.now_ms += PROBE_MS
    targets.look_up([])
    assert targets.failures.report() == [failing], "that it is well was only asked for now"
    clock.now_ms += PROBE_MS
    targets.look_up([])
    assert targets.failures.report() == []


def test_a_target_that_turned_a_message_away_is_reported_though_it_is_well(
    targets: Targets, clock: ManualClock
) -> None:
    """docs/operations.md, "Failing targets": a record may be too large for a healthy topic."""
    targets.look_up(["orders"])
    turned_away(targets, "orders", "too large")
    clock.now_ms += PROBE_MS
    targets.look_up(["orders"])
    assert [failing.topic for failing in targets.failures.report()] == ["orders"]
    clock.now_ms += QUIET_MS - PROBE_MS
    targets.look_up(["orders"])
    assert targets.failures.topics() == ["orders"], "it has not been quiet for long enough"
    clock.now_ms += PROBE_MS
    targets.look_up(["orders"])
    assert targets.failures.report() == []
