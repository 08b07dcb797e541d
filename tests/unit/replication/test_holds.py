"""Holds: what orders make of them, how their messages wait, and how they end.

Source: docs/design/pauses.md.
"""

from dataclasses import replace
from random import Random

import pytest

from replication.drain import END_MS, RETRY_MS, RETRY_MS_MAX, STOP_MS_MAX, Endings
from replication.frontier import Frontier, first_frontier
from replication.holds import (
    HOLDS_MAX,
    PARK_MS_MAX,
    PARK_MS_MIN,
    RATE_DEFAULT,
    Hold,
    Order,
    home_of,
    obey,
)
from replication.rank import Rank, lane_of
from replication.smoothing import DEFER_MS, Deferral, Smoothing

NOW_MS = 1_700_000_000_000
LANES = 4
TOPIC = "orders"
HOLD = Hold(NOW_MS, NOW_MS + 60_000, 100, 7)
PAUSE = Order(TOPIC, NOW_MS, NOW_MS + 60_000, 0)
RESUME = Order(TOPIC, NOW_MS, 0, 0)


def at(cursor_ms: int) -> Frontier:
    return replace(first_frontier(0, 1, LANES), cursors=(Rank(cursor_ms, 0, 0),) * LANES)


def test_an_order_makes_a_hold_and_another_one_changes_it() -> None:
    """Rules: pause-holds"""
    made = obey({}, PAUSE, 7, NOW_MS)
    assert made == {TOPIC: Hold(NOW_MS, PAUSE.until_ms, RATE_DEFAULT, 7)}
    renewed = obey(made, PAUSE._replace(until_ms=NOW_MS + 90_000, rate=9), 8, NOW_MS + 5)
    assert renewed == {TOPIC: Hold(NOW_MS, NOW_MS + 90_000, 9, 8)}
    resumed = obey(renewed, RESUME, 9, NOW_MS + 10)
    assert resumed == {TOPIC: Hold(NOW_MS, NOW_MS + 10, 9, 9)}
    assert not resumed[TOPIC].is_closed(NOW_MS + 10) and renewed[TOPIC].is_closed(NOW_MS + 10)
    again = obey(resumed, PAUSE, 10, NOW_MS + 20)
    assert again == {TOPIC: Hold(NOW_MS + 20, PAUSE.until_ms, 9, 10)}, "it begins anew"


def test_what_changes_nothing() -> None:
    assert obey({}, RESUME, 7, NOW_MS) == {}
    assert obey({}, PAUSE, 7, PAUSE.until_ms) == {}
    full = {f"t{n}": HOLD for n in range(HOLDS_MAX)}
    assert obey(full, PAUSE, 8, NOW_MS) == full
    assert obey(full, PAUSE._replace(topic="t3"), 8, NOW_MS)["t3"].offset == 8
    later = obey({TOPIC: HOLD}, RESUME, 8, HOLD.until_ms + 5)
    assert later[TOPIC].until_ms == HOLD.until_ms


@pytest.mark.parametrize(
    ("lasted_ms", "wait_ms"),
    [(0, PARK_MS_MIN), (8 * PARK_MS_MIN, PARK_MS_MIN), (800_000, 100_000), (10**8, PARK_MS_MAX)],
)
def test_a_message_is_looked_at_after_an_eighth_of_the_pause(lasted_ms: int, wait_ms: int) -> None:
    """Rules: pause-resumed"""
    hold = Hold(NOW_MS, NOW_MS + 10**10, 1, 0)
    assert hold.look_ms(NOW_MS + lasted_ms) == NOW_MS + lasted_ms + wait_ms
    assert HOLD.look_ms(NOW_MS + 59_000) == HOLD.until_ms, "and at its end"


def test_the_home_of_a_topic_is_one_partition() -> None:
    assert {home_of(f"t{n}", 8) for n in range(100)} == set(range(8))
    assert home_of(TOPIC, 1) == 0


class Played:
    """Messages of one topic as steps meet them, each in the order of its rank."""

    def __init__(self, hold: Hold) -> None:
        self.smoothing = Smoothing({}, {}, 10**10, {TOPIC: hold})
        self.waiting: list[tuple[int, int, int | None, int]] = []
        self.out: list[tuple[int, int]] = []
        self.writes = 0

    def add(self, due_ms: int, name: int) -> None:
        self.waiting.append((due_ms, name, None, 0))

    def step(self, now_ms: int, cursor_ms: int) -> None:
        self.smoothing.begin_step(at(now_ms + 1), now_ms)
        due = sorted(each for each in self.waiting if each[0] <= now_ms)
        for each in due:
            self.waiting.remove(each)
            rank_ms, name, turn_ms, _ = each
            deferral = None
            if self.smoothing.limits(TOPIC):
                deferral = self.smoothing.decide(
                    TOPIC, rank_ms, 0, turn_ms, cursor_ms=cursor_ms, now_ms=now_ms
                )
            if deferral is None:
                self.out.append((now_ms, name))
            else:
                self.writes += 1
                assert deferral.due_ms >= now_ms + DEFER_MS
                self.waiting.append((deferral.due_ms, name, deferral.turn_ms, 0))
        self.smoothing.queues(at(now_ms + 1), now_ms)
        self.smoothing.holds(now_ms)


def test_while_it_is_closed_nothing_goes_out_and_then_all_in_order_at_the_rate() -> None:
    """Rules: pause-order, pause-rate, pause-holds"""
    random = Random(3)
    played = Played(HOLD)
    names = 0
    for now_ms in range(NOW_MS, NOW_MS + 75_000, 50):
        if now_ms < NOW_MS + 50_000 and random.random() < 0.4:
            played.add(now_ms, names)
            names += 1
        played.step(now_ms, now_ms - 49)
    assert [name for _, name in played.out] == list(range(names)) and names > 300
    times_ms = [now_ms for now_ms, _ in played.out]
    assert min(times_ms) == HOLD.until_ms
    for first, from_ms in enumerate(times_ms):
        last = len(times_ms) - 1
        assert last - first <= 100 * (times_ms[last] - from_ms + 1_250) / 1_000
    assert played.writes < 14 * names, "each look writes a message once"
    assert played.smoothing.holds(NOW_MS + 75_000) == {}


def test_a_late_arrival_keeps_its_turn_while_the_hold_is_closed() -> None:
    smoothing = Smoothing({}, {}, 10**10, {TOPIC: HOLD})
    given = smoothing.decide(TOPIC, NOW_MS, 0, None, cursor_ms=0, now_ms=NOW_MS)
    assert given is not None and given.turn_ms is not None
    now_ms = given.due_ms + 100
    late = smoothing.decide(TOPIC, given.due_ms, 0, given.turn_ms, cursor_ms=now_ms, now_ms=now_ms)
    assert late == Deferral(now_ms + DEFER_MS, given.turn_ms)


def test_a_topic_with_a_rate_of_its_own_goes_at_the_lower_one() -> None:
    """Rules: pause-rate"""
    for rate, own in ((5, 1_000), (1_000, 5)):
        hold = HOLD._replace(rate=rate, until_ms=NOW_MS)
        smoothing = Smoothing({TOPIC: own}, {}, 10**10, {TOPIC: hold})
        outcomes = [
            smoothing.decide(TOPIC, NOW_MS, 0, None, cursor_ms=0, now_ms=NOW_MS) for _ in range(9)
        ]
        assert sum(outcome is None for outcome in outcomes) == 2


# The end.


def test_a_lane_stops_until_the_last_turn_has_come_and_then_the_hold_ends() -> None:
    """Rules: pause-ends"""
    endings, lane = Endings(), lane_of(TOPIC, LANES)
    tails = {TOPIC: NOW_MS + END_MS + 1}
    assert endings.stopped(tails, LANES, NOW_MS) == {}
    assert endings.stopped(tails, LANES, NOW_MS + 1) == {lane: NOW_MS + END_MS + 2}
    assert endings.ended(tails, at(NOW_MS + 2), LANES, NOW_MS + 1) == frozenset()
    tail_ms = tails[TOPIC]
    assert endings.stopped(tails, LANES, tail_ms) == {lane: tail_ms + 1}
    assert endings.stopped(tails, LANES, tail_ms + 1) == {}
    assert endings.ended(tails, at(tail_ms + 2), LANES, tail_ms + 1) == {TOPIC}


def test_a_step_that_is_too_full_is_an_ordinary_one_and_the_end_is_tried_again() -> None:
    """Rules: pause-ends"""
    endings, lane = Endings(), lane_of(TOPIC, LANES)
    tails = {TOPIC: NOW_MS}
    assert endings.stopped(tails, LANES, NOW_MS) == {lane: NOW_MS + 1}
    assert endings.ended(tails, at(NOW_MS), LANES, NOW_MS + 1) == frozenset()
    tails = {TOPIC: NOW_MS + 900}
    assert endings.stopped(tails, LANES, NOW_MS + 2) == {}
    assert endings.stopped(tails, LANES, NOW_MS + RETRY_MS + 1) == {}
    tails = {TOPIC: NOW_MS + RETRY_MS + 500}
    assert endings.stopped(tails, LANES, NOW_MS + RETRY_MS + 1) == {lane: tails[TOPIC] + 1}


def test_after_each_further_attempt_the_end_waits_for_twice_as_long() -> None:
    """Rules: pause-ends"""
    endings, lane, now_ms = Endings(), lane_of(TOPIC, LANES), NOW_MS
    waits_ms = []
    for _ in range(9):
        began_ms = now_ms
        while not endings.stopped({TOPIC: now_ms + 500}, LANES, now_ms):
            now_ms += 500
        waits_ms.append(now_ms - began_ms)
        assert endings.lanes_due({TOPIC: now_ms + 500}, LANES, now_ms) == frozenset()
        assert endings.lanes_due({TOPIC: now_ms + 500}, LANES, now_ms + 501) == {lane}
        now_ms += 501
        assert endings.ended({TOPIC: now_ms - 1}, at(NOW_MS), LANES, now_ms) == frozenset()
    wanted = [0, *(min(RETRY_MS << n, RETRY_MS_MAX) for n in range(8))]
    assert waits_ms == wanted and wanted[-1] == RETRY_MS_MAX
    endings.stopped({}, LANES, now_ms)
    assert endings.stopped({TOPIC: now_ms}, LANES, now_ms), "another hold begins anew"


def test_a_lane_does_not_stop_for_long() -> None:
    endings = Endings()
    for now_ms in range(NOW_MS, NOW_MS + STOP_MS_MAX + 1, 100):
        assert endings.stopped({TOPIC: now_ms + 900}, LANES, now_ms) != {}
    now_ms = NOW_MS + STOP_MS_MAX + 100
    assert endings.stopped({TOPIC: now_ms + 900}, LANES, now_ms) == {}


def test_a_hold_that_nobody_waited_for_is_gone_when_it_is_over() -> None:
    smoothing = Smoothing({}, {}, 10**10, {TOPIC: HOLD})
    smoothing.queues(at(NOW_MS), NOW_MS)
    assert smoothing.holds(HOLD.until_ms - 1) == {TOPIC: HOLD}
    assert smoothing.holds(HOLD.until_ms) == {}
    assert not smoothing.limits(TOPIC)


def test_a_step_that_passes_a_pause_in_the_end_of_another_ends_nothing() -> None:
    """The order is obeyed before the step decides anything."""
    smoothing = Smoothing({}, {}, 10**10, {TOPIC: HOLD._replace(until_ms=NOW_MS)})
    given = [
        smoothing.decide(TOPIC, NOW_MS, 0, None, cursor_ms=0, now_ms=NOW_MS) for _ in range(40)
    ]
    tail_ms = max(each.due_ms for each in given if each is not None)
    assert smoothing.stopped_lanes(LANES, tail_ms) != {}
    now_ms = tail_ms + 1
    smoothing.obey(PAUSE, 8, now_ms)
    assert smoothing.begin_step(at(now_ms + 1), now_ms) == frozenset()
    assert smoothing.decide(TOPIC, now_ms, 0, None, cursor_ms=0, now_ms=now_ms) is not None
