"""Where the clock of a virtual cluster stops, and when the cluster is at rest there."""

from typing import Any

import pytest

from delayd.dev.advancing import (
    HELD,
    NOTHING,
    QUIET_MS,
    SOME,
    Progress,
    end_of_second,
    goal_of,
    text_of,
    work_left,
)
from delayd.dev.parts import LocalClusterError

NOW_MS = 10_000
IDLE = {"delivered": 0, "retried": 0}


def test_the_clock_stops_behind_the_second_but_not_behind_its_goal() -> None:
    assert end_of_second(10_000, 99_000) == end_of_second(10_999, 99_000) == 10_999
    assert end_of_second(10_500, 10_500) == 10_500


def test_a_goal_that_no_date_can_say_is_refused_before_the_clock_moves() -> None:
    century_ms = 36_525 * 86_400_000
    assert text_of(goal_of(NOW_MS, 80 * century_ms)).startswith("9970-")
    with pytest.raises(LocalClusterError, match="1970-01-01T00:00:10"):
        goal_of(NOW_MS, 81 * century_ms)


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({}, NOTHING),
        ({"offsets": (4, 7)}, SOME),
        ({"now_ms": NOW_MS - 1, "cursor_ms": NOW_MS - 1}, SOME),
        ({"cursor_ms": 3, "counts": {**IDLE, "retried": 1}}, SOME),
        ({"cursor_ms": 3}, HELD),
    ],
)
def test_what_a_step_has_left_shows_in_its_frontier(changed: dict[str, Any], left: str) -> None:
    step = {"offsets": (5, 7), "now_ms": NOW_MS, "cursor_ms": NOW_MS, "counts": IDLE}
    assert work_left({**step, **changed}, (5, 6), NOW_MS) == left


def status(age_ms: int, **changed: Any) -> dict[str, Any]:
    step = {"offsets": (5, 7), "now_ms": NOW_MS, "cursor_ms": NOW_MS, "counts": IDLE}
    frontier = {**step, "own_writes": (2, 3), **changed}
    said = {"node": "n1", "reached": (5, 7), "ingested": (5, 7), "frontier": frontier}
    return {**said, "checkpoint_age_ms": age_ms}


def test_a_node_is_at_rest_with_a_checkpoint_that_came_after_all_was_read() -> None:
    progress = Progress({0: 5, 1: 7}, NOW_MS)
    behind = progress.lack({**status(0), "reached": (5, 6)}, 900, 950)
    assert behind is not None and "has not read" in behind
    # All is read by 1,050 at the latest. What is 150 ms old at 1,100 may be older than that.
    for asked_ms, answered_ms, age_ms in ((1_000, 1_050, 0), (1_100, 1_300, 150)):
        lack = progress.lack(status(age_ms), asked_ms, answered_ms)
        assert lack == "n1 has made no checkpoint"
    assert progress.lack(status(40), 1_100, 1_300) is None


def test_lanes_that_stand_still_are_at_rest_after_a_while() -> None:
    progress, held = Progress({0: 5, 1: 7}, NOW_MS), {"cursor_ms": 3}
    progress.lack(status(0, **held), 0, 10)
    for at_ms, changed in ((100, held), (QUIET_MS, {"offsets": (4, 7)}), (QUIET_MS + 50, held)):
        lack = progress.lack(status(0, **changed), at_ms, at_ms + 1)
        assert lack is not None and "the master has not done all" in lack
    assert progress.lack(status(0, **held), 2 * QUIET_MS + 100, 2 * QUIET_MS + 101) is None
