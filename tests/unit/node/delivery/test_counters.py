"""What a node counts: histograms in bulk, and the steps of a master, whatever becomes of them."""

import random

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode

from delayd.node.delivery.counters import (
    LATENESS_BOUNDS_MS,
    OTHER,
    STEP_BOUNDS_MS,
    TOPICS_MAX,
    Histogram,
    StepCounters,
)
from delayd.request import Reason, Verdict


def deliver_all(node: OneNode, steps: int = 5) -> None:
    """Ingest and step until nothing is left to do at this time."""
    for _ in range(steps):
        node.ingest()
        node.step()
        node.clock.now_ms += 1


# --- Histograms


def test_a_value_on_a_bound_is_counted_under_it_and_one_above_is_not() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21, 1_000):
        histogram.add(value)
    assert (histogram.counts, histogram.sum_ms) == ([2, 2, 2], 1_062)


@pytest.mark.parametrize("seed", range(20))
def test_counting_in_bulk_is_counting_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    one_by_one, bulk = Histogram(LATENESS_BOUNDS_MS), Histogram(LATENESS_BOUNDS_MS)
    for _ in range(20):
        until_ms = START_MS + chance.randrange(10_000)
        spread_ms = chance.choice((1, 30, 2_000, 10**7))
        times_ms = [until_ms - chance.randrange(spread_ms) for _ in range(chance.randrange(50))]
        for time_ms in times_ms:
            one_by_one.add(until_ms - time_ms)
        bulk.add_since(times_ms, until_ms)
    assert (bulk.counts, bulk.sum_ms) == (one_by_one.counts, one_by_one.sum_ms)
    assert sum(bulk.counts) > 100


def test_topics_beyond_the_bound_share_one_histogram_and_none_is_lost() -> None:
    counters = StepCounters()
    for number in range(TOPICS_MAX + 50):
        for _ in range(2):
            counters.delivered({f"topic-{number}": [START_MS] * 3}, START_MS + 7)
    lateness = counters.lateness
    assert len(lateness) == TOPICS_MAX + 1
    assert sum(lateness["topic-0"].counts) == sum(lateness[f"topic-{TOPICS_MAX - 1}"].counts) == 6
    assert sum(lateness[OTHER].counts) == 50 * 6
    counters.delivered({"topic-0": [START_MS], OTHER: [START_MS]}, START_MS)
    assert sum(counters.lateness["topic-0"].counts) == 7
    assert sum(counters.lateness[OTHER].counts) == 50 * 6 + 1


# --- Steps


def test_each_delivered_message_is_in_the_histogram_of_its_target_as_late_as_it_was(
    make: Maker,
) -> None:
    node = make("orders", "letters")
    for number in range(30):
        node.send("orders", START_MS + 100 + number)
    node.send("letters", START_MS + 100)
    deliver_all(node)
    node.clock.now_ms = START_MS + 400
    deliver_all(node)
    assert len(node.read("orders")) == 30
    lateness = node.counters.lateness
    assert set(lateness) == {"orders", "letters"}
    assert sum(lateness["orders"].counts) == 30
    assert lateness["orders"].sum_ms == sum(300 - number for number in range(30))
    at = dict(zip(LATENESS_BOUNDS_MS, lateness["letters"].counts, strict=False))
    assert at[500] == 1, "it was 300 ms late"


def test_what_arrives_overdue_is_late_since_its_acceptance(make: Maker) -> None:
    node = make("orders")
    node.send("orders", START_MS - 3_600_000)
    deliver_all(node)
    [histogram] = node.counters.lateness.values()
    assert histogram.counts[0] == 1


def test_a_message_that_was_put_back_is_counted_and_in_no_histogram(make: Maker) -> None:
    """docs/design/audit.md, "Lateness": their delay is their target's."""
    node = make()
    node.send("nowhere")
    deliver_all(node)
    node.kafka.create_topic("nowhere", 1, {"message.timestamp.type": "LogAppendTime"})
    node.clock.now_ms += 20_000
    deliver_all(node)
    figures = node.counters
    assert len(node.read("nowhere")) == 1
    assert (figures.messages["retried"], figures.messages["delivered"]) == (1, 1)
    assert figures.lateness == {}


def test_verdicts_killed_messages_and_dead_letters_are_counted_when_they_are_committed(
    make: Maker,
) -> None:
    node = make("orders")
    node.send("orders", START_MS + 10_000, id="a")
    node.send("orders", id="a", op="cancel")
    node.send("orders", id="b", op="cancel")
    node.send("orders", more=[("delayd-tipo", b"x")])
    deliver_all(node)
    node.clock.now_ms += 20_000
    deliver_all(node)
    figures = node.counters
    assert figures.verdicts == {Verdict.CANCELLED.slug: 1, Verdict.NOT_FOUND.slug: 1}
    assert figures.letters == {Reason.UNKNOWN_HEADER.slug: 1}
    assert figures.messages["killed"] == 1
    assert "delivered" not in figures.messages or figures.messages["delivered"] == 0


def test_a_message_that_is_given_up_is_dead_by_reason(make: Maker) -> None:
    node = make(retry_delays_ms=(10,))
    node.send("nowhere", id="a")
    for _ in range(5):
        deliver_all(node)
        node.clock.now_ms += 1_000
    figures = node.counters
    assert (figures.messages["retried"], figures.messages["dead"]) == (1, 1)
    assert figures.letters == {Reason.DEAD.slug: 1} and figures.verdicts == {Verdict.DEAD.slug: 1}


def test_a_step_that_fails_counts_as_failed_and_nothing_of_it_as_done(make: Maker) -> None:
    node = make("orders")
    node.send("orders")
    node.ingest()
    node.lead()
    counters = node.counters
    failed, committed, messages = counters.failed, counters.committed_count, +counters.messages
    node.kafka.refuse("orders", "_MSG_TIMED_OUT")
    node.step()
    assert sum(node.failures.values()) == 1
    assert (counters.failed, counters.committed_count) == (failed + 1, committed)
    assert +counters.messages == messages and counters.lateness == {}
    assert node.counters.verdicts == node.counters.letters == {}


def test_each_committed_step_is_counted_with_its_time(make: Maker) -> None:
    node = make("orders")
    for _ in range(4):
        node.send("orders")
        node.ingest()
        node.step()
        node.clock.now_ms += 10
    figures = node.counters
    newest = node.replica.newest
    assert newest is not None
    assert figures.committed_count == newest.record.frontier.step > 4
    assert sum(figures.took.counts) == figures.committed_count
    assert figures.took.bounds_ms == STEP_BOUNDS_MS
    assert figures.drift_ms == 0
