"""What `/status` says of targets that fail: since when, how many, and no end of names."""

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
