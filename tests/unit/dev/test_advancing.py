"""Where the clock of a virtual cluster stops, and when the cluster is at rest there."""

from typing import Any

import pytest

from delayd.dev.advancing import HELD, NOTHING, SOME, end_of_second, work_left

NOW_MS = 10_000
IDLE = {"delivered": 0, "retried": 0}


def test_the_clock_stops_behind_the_second_but_not_behind_its_goal() -> None:
    assert end_of_second(10_000, 99_000) == end_of_second(10_999, 99_000) == 10_999
    assert end_of_second(10_500, 10_500) == 10_500


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
