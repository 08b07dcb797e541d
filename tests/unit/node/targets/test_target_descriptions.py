"""How targets are looked up: what is believed for how long, and how much is asked for at once. No
target is another one's problem."""

import pytest
from manual_clock import START_MS, ManualClock
from target_problems import TIMEOUT_MS, problem, refusal

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.cluster import MemoryCluster
from delayd.errors import KafkaUnreachableError
from delayd.node.targets.checks import (
    ABSENT_MAX,
    FRESH_MS,
    KNOWN_MAX,
    RECHECK_MS,
    REFRESHED_MAX,
    SURVEY_TOPICS_MAX,
    Targets,
)


def refused_count(targets: Targets, names: list[str]) -> int:
    return sum(targets.problem_of(name, None, b"k", 10) is not None for name in names)


def described(targets: Targets, kafka: MemoryKafka, count: int) -> list[str]:
    """Names of topics that were just made and looked up."""
    names = [f"t{number:03}" for number in range(count)]
    for name in names:
        kafka.create_topic(name)
    targets.look_up(names)
    return names


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
    names = described(targets, kafka, SURVEY_TOPICS_MAX * 2 + 1)
    assert kafka.surveys_count == 3
    assert refused_count(targets, names) == 0


def test_a_step_asks_for_a_bounded_number_of_names_that_do_not_exist(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets: a flood of them is nobody else's lateness."""
    names = [f"flood-{number}" for number in range(5 * ABSENT_MAX)]
    for first in range(0, len(names), 100):
        targets.look_up([*names[first : first + 100], "orders"])
        assert targets.problem_of("orders", None, b"k", 10) is None
    assert kafka.surveys_count == ABSENT_MAX // 100
    unasked = [name for name in names if targets.is_unasked(name)]
    assert unasked == names[ABSENT_MAX:]
    for step in range(2, 6):
        targets.begin_step()
        targets.look_up(names)
        assert sum(map(targets.is_unasked, names)) == len(names) - step * ABSENT_MAX
    assert refused_count(targets, names) == len(names)


def test_names_that_do_not_exist_displace_none_that_do(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets."""
    targets.look_up(["orders"])
    for first in range(0, 2 * KNOWN_MAX, ABSENT_MAX):
        targets.begin_step()
        targets.look_up([f"flood-{number}" for number in range(first, first + ABSENT_MAX)])
    assert len(targets._absent) == KNOWN_MAX
    count = kafka.surveys_count
    targets.look_up(["orders"])
    assert kafka.surveys_count == count


def test_a_step_renews_a_bounded_number_of_descriptions_and_the_next_one_the_others(
    targets: Targets, kafka: MemoryKafka, clock: ManualClock
) -> None:
    """docs/design/frontier.md, Targets: a thousand targets do not stop a step for a second."""
    names = described(targets, kafka, REFRESHED_MAX + 10)
    for name in names:
        kafka.delete_topic(name)
    clock.now_ms += FRESH_MS
    for gone_count in (REFRESHED_MAX, len(names)):
        targets.begin_step()
        targets.look_up(names[:50])
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
        targets.begin_step()
        targets.look_up(names)
    assert refused_count(targets, names) == 10


def test_names_do_not_accumulate(targets: Targets, kafka: MemoryKafka, clock: ManualClock) -> None:
    """docs/design/frontier.md, Targets: a new bad name every second."""
    problem(targets, "orders")
    kafka.delete_topic("orders")
    for number in range(0, 2 * KNOWN_MAX, ABSENT_MAX):
        names = {f"bad{number + more}" for more in range(ABSENT_MAX)} | {"orders"}
        targets.begin_step()
        targets.look_up(names)
        assert len(targets._known) <= KNOWN_MAX and len(targets._absent) <= KNOWN_MAX
    assert problem(targets, "orders") is None, "what is wanted in each step was never read again"
    count = kafka.surveys_count
    targets.look_up(names)
    assert kafka.surveys_count == count, "what was wanted last is remembered"


def test_a_step_may_want_more_names_than_are_remembered(
    targets: Targets, kafka: MemoryKafka
) -> None:
    """docs/design/frontier.md, Targets."""
    names = described(targets, kafka, KNOWN_MAX + 10)
    assert refused_count(targets, names) == 0
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
    names = described(targets, kafka, SURVEY_TOPICS_MAX * 5)
    assert clock.now_ms == START_MS + TIMEOUT_MS
    found = [targets.problem_of(name, None, b"k", 10) or "" for name in names]
    assert found.count("") == SURVEY_TOPICS_MAX * 2
    assert sum("in time" in each for each in found) == SURVEY_TOPICS_MAX * 3


def test_brokers_that_do_not_answer_at_all_are_nobodys_problem(
    targets: Targets, bus: MemoryBus
) -> None:
    """docs/design/frontier.md, Targets: no message is turned away for it."""
    bus.link.up = False
    with pytest.raises(KafkaUnreachableError):
        targets.look_up(["orders"])
