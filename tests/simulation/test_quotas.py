"""Whole clusters whose targets are limited at random, while everything else fails.

Source: docs/design/quotas.md.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from seeded_tests import judged, parametrize_seeds, well
from simulated.limiting import FORGED, LIMIT, UNLIMIT
from simulated.run import simulate

FRESH_SEEDS = 1
FIXED_SEEDS = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "quotas: ", FRESH_SEEDS, range(FIXED_SEEDS))


def test_a_cluster_keeps_every_promise_though_its_targets_are_limited(seed: int) -> None:
    """`--seed N` replays one.

    Rules: quota-full, quota-opened, quota-refused, quota-in-frontier
    """
    well(simulate(seed, quotas=True))


def test_masters_of_several_shards_keep_one_limit(seed: int) -> None:
    """All count alike, whatever people make of the number of shards.

    Rules: quota-shards, resharded
    """
    well(simulate(seed, quotas=True, shards=(2, 4)[seed % 2], reshards=seed % 3 > 0))


@pytest.mark.long
def test_what_the_seeds_are_for_is_met(tmp_path: Path) -> None:
    """A simulation in which nothing is refused proves nothing."""
    seen, faults = Counter[str](), Counter[str]()
    # Without faults a term lasts for long enough to count all that a rate counts.
    calm: list[tuple[int, dict[str, Any]]] = [(seed, {"kinds": ()}) for seed in (1, 2)]
    for number, (seed, kinds) in enumerate((*calm, *((seed, {}) for seed in range(2, 8)))):
        world, judge = judged(seed, tmp_path / str(number), quotas=True, **kinds)
        seen += judge.quotas.seen
        faults += world.weather.faults
    wanted = ("set", "cleared", "filled", "too fast", "opened", "refused", "counted", "handed on")
    for what in (*wanted, "rated", "gates by rate"):
        assert seen[what] > 3, seen
    for what in (LIMIT, UNLIMIT, FORGED):
        assert faults[what] > 5, faults


@pytest.mark.long
def test_what_the_seeds_with_shards_are_for_is_met(tmp_path: Path) -> None:
    """Limits go along with shards, and masters count alike what is far away."""
    seen = Counter[str]()
    for number, (seed, shards) in enumerate(((40, 2), (41, 2), (110, 4), (211, 4))):
        there = tmp_path / str(number)
        _, judge = judged(seed, there, quotas=True, shards=shards, reshards=True)
        seen += judge.quotas.seen
    for what in ("filled", "too fast", "opened", "refused", "counted", "resharded", "alike"):
        assert seen[what] > 3, seen
    assert seen["alike and some"] > 3, seen
