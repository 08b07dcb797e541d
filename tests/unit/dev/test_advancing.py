"""Where the clock of a virtual cluster stops, and when the cluster is at rest there."""

from typing import Any

import pytest

from delayd.dev.advancing import HELD, NOTHING, SOME, end_of_second, goal_of, text_of, work_left
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
