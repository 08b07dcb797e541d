"""Axes of the audit's figures: nothing is drawn outside, and ticks are what people count in."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.audit.showing.building.scales import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    count_ticks,
    interval_of,
    late_ticks,
    linear,
    logarithmic,
    time_ticks,
)

MIDNIGHT = 1_795_219_200_000
"""2026-11-21, UTC."""

times = st.integers(-(10**12), 10**14)


@given(st.floats(-1e18, 1e18), st.integers(0, 10**12), st.integers(0, 10**12))
def test_no_place_is_outside_of_the_axis(value: float, low: int, span: int) -> None:
    for scale in (linear(low, low + span, 50, 340), logarithmic(1 + low, 1 + low + span, 50, 340)):
        assert 50 <= scale(value) <= 340 + 1e-9


@given(st.lists(st.floats(1, 1e9), min_size=2))
def test_a_larger_value_is_never_at_a_smaller_place(values: list[float]) -> None:
    for scale in (linear(1, 1e9, 0, 100), logarithmic(1, 1e9, 0, 100)):
        places = [scale(value) for value in sorted(values)]
        assert all(after >= before - 1e-9 for before, after in pairwise(places))


@given(st.integers(0, 10**15), st.integers(2, 8))
def test_counts_have_few_round_ticks_that_reach_over_the_highest(high: int, most: int) -> None:
    ticks = count_ticks(high, most)
    assert ticks[0].value == 0 and ticks[-1].value >= high * (1 - 1e-12)
    assert 2 <= len(ticks) <= most + 1
    steps = {round(after.value - before.value, 6) for before, after in pairwise(ticks)}
    assert len(steps) == 1
    assert len({tick.label for tick in ticks}) == len(ticks), "each label says another value"


@given(times, st.integers(0, 10**13), st.integers(2, 9))
def test_times_have_few_ticks_inside_of_the_axis(low: int, span: int, most: int) -> None:
    values = [tick.value for tick in time_ticks(low, low + span, most)]
    assert len(values) <= most and values == sorted(set(values))
    assert all(low <= value <= low + span for value in values)


@pytest.mark.parametrize(
    ("low", "span", "labels"),
    [
        (MIDNIGHT + 10 * HOUR, 30 * MINUTE, ["10:00", "10:05", "10:10", "10:15", "10:20"]),
        (MIDNIGHT + 10 * HOUR, 20 * SECOND, ["10:00:00", "10:00:05", "10:00:10", "10:00:15"]),
        (MIDNIGHT - 90 * MINUTE, 3 * HOUR, ["22:30", "23:00", "23:30", "Nov 21", "00:30"]),
        (MIDNIGHT - DAY, 4 * DAY, ["Nov 20", "Nov 21", "Nov 22", "Nov 23"]),
        (MIDNIGHT + 5, 4, ["00:00:00.005", "00:00:00.006"]),
    ],
)
def test_times_are_as_precise_as_their_distance_asks_for(
    low: int, span: int, labels: list[str]
) -> None:
    assert [tick.label for tick in time_ticks(low, low + span, 7)][: len(labels)] == labels


def test_a_time_that_no_calendar_has_is_a_number() -> None:
    assert [tick.label for tick in time_ticks(10**18, 10**18, 3)][:1] in ([], [f"{10**18} ms"])


def test_lateness_has_a_tick_at_each_unit_up_to_the_worst() -> None:
    assert [tick.label for tick in late_ticks(2950)] == ["1 ms", "10 ms", "100 ms", "1 s", "10 s"]
    assert [tick.label for tick in late_ticks(0)] == ["1 ms", "10 ms"]
    assert late_ticks(10**15)[-1].label == "100000 d"


def test_the_interval_of_a_series_is_what_all_its_distances_are_made_of() -> None:
    assert interval_of([0, 2000, 8000, 10_000], 240) == 2000
    assert interval_of([0, 500, 1250], 240) == 250
    assert interval_of([7], 240) == SECOND


def test_few_deliveries_far_apart_were_not_hours_long() -> None:
    assert interval_of([MIDNIGHT, MIDNIGHT + 4 * HOUR], 240) == 2 * MINUTE
