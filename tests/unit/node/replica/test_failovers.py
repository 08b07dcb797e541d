"""The last changes of master, as a node saw them."""

from pathlib import Path
from typing import Any

from one_node import FOREVER_MS, nodes_in

from delayd.cluster.frontier_log import SeenFrontier
from delayd.node.delivery.counters import MARK_MS, RECENT_MS, StepCounters
from delayd.node.delivery.grant import Grant
from delayd.node.replica.failovers import FAILOVERS_MAX, Failovers


class Told:
    """Frontier records, as far as failovers look at them."""

    def __init__(self, owner: str, term: int) -> None:
        self.owner = owner
        self.frontier = self
        self.term = term
        self.shard = 0


def seen(owner: str, term: int, append_ms: int) -> SeenFrontier:
    record: Any = Told(owner, term)
    return SeenFrontier(record, append_ms, append_ms)


def test_a_change_of_master_is_noted_with_both_steps_around_it() -> None:
    failovers = Failovers()
    for each in (
        *(seen("topics-create", 0, 1), seen("a/1", 1, 5), seen("a/1", 1, 9)),
        *(seen("a/1", 2, 12), seen("b/2", 3, 80), seen("b/2", 3, 90)),
    ):
        failovers.note(each)
    [found] = failovers.newest
    assert (found.term, found.former, found.owner) == (3, "a/1", "b/2")
    assert (found.last_ms, found.begun_ms, found.gap_ms) == (12, 80, None)


def test_the_gap_is_what_messages_waited_and_not_what_was_idle() -> None:
    failovers = Failovers()
    for each in (seen("a/1", 1, 1_000), seen("b/2", 2, 9_000)):
        failovers.note(each)
    failovers.delivered_first(0, 7, 500, 9_100)
    assert failovers.newest[0].gap_ms is None, "of another term"
    failovers.delivered_first(0, 2, 5, 60_000)
    assert failovers.newest[0].gap_ms == 5
    failovers.delivered_first(0, 2, 3_600_000, 9_100)
    assert failovers.newest[0].gap_ms == 8_100, "they were late before"


def test_only_the_newest_are_kept() -> None:
    failovers = Failovers()
    for term in range(FAILOVERS_MAX + 10):
        failovers.note(seen(f"n{term}/1", term, term))
    assert [each.term for each in failovers.newest] == list(range(10, FAILOVERS_MAX + 10))


def test_a_master_tells_how_late_the_first_messages_were_that_it_delivered(tmp_path: Path) -> None:
    with nodes_in(tmp_path) as make:
        node = make("orders")
        told = node.replica.retention.failovers

        def gaps() -> list[int | None]:
            return [each.gap_ms for each in told.newest]

        node.send("orders", node.clock.now_ms)
        node.ingest()
        node.step()
        assert gaps() == [], "nobody led before it"
        node.stop_leading()
        node.grant = Grant("m/2", FOREVER_MS)
        due_ms = node.clock.now_ms + 200
        for wait_ms in (200, 900):
            node.send("orders", due_ms + wait_ms)
        node.ingest()
        node.clock.now_ms = due_ms + 1_000
        node.step()
        assert [(each.former, each.owner) for each in told.newest] == [("n/1", "m/2")]
        assert gaps() == [800]
        node.send("orders", node.clock.now_ms)
        node.clock.now_ms += 5_000
        node.ingest()
        node.step()
        assert gaps() == [800], "what is late afterwards is no part of it"


def test_status_shows_lateness_of_the_last_minutes_only() -> None:
    counters = StepCounters()
    start_ms = 10**12
    counters.delivered({"orders": [start_ms] * 10}, start_ms + 4_000)
    for minute in range(1, 20):
        at_ms = start_ms + minute * MARK_MS
        counters.delivered({"orders": [at_ms], "none": []}, at_ms + 7)
    recent = counters.recent_lateness
    found = recent.since(at_ms)
    assert set(found) == {"orders"} and found["orders"][1] == sum(found["orders"])
    assert RECENT_MS // MARK_MS <= sum(found["orders"]) <= 1 + (RECENT_MS + MARK_MS) // MARK_MS
    assert recent.since(at_ms + 7 + RECENT_MS) == {}, "nothing was delivered lately"
    later_ms = at_ms + 3_600_000
    counters.delivered({"orders": [later_ms - 90_000]}, later_ms)
    [counts] = recent.since(later_ms).values()
    assert sum(counts) == 1 and counts[13] == 1, "what was before an idle hour is not of now"
