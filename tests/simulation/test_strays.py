"""Whole clusters in whose frontier topic somebody else writes."""

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.chaos import KINDS, KINDS_WITHOUT_FENCE, STRAY
from simulated.run import simulate

from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 1
SEEDS_OF_STRAYS = (0, 2, 5)
"""Their habits are strays, not rivals."""
KINDS_OF = {EXACTLY_ONCE: KINDS, AT_LEAST_ONCE: KINDS_WITHOUT_FENCE}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "strays: ", FRESH_SEEDS)


@pytest.mark.parametrize("guarantee", KINDS_OF)
def test_a_cluster_keeps_every_promise_though_others_write_to_its_frontier_topic(
    seed: int, guarantee: str
) -> None:
    """docs/design/frontier.md, Strays; `--seed N` replays one.

    Rules: stray-skipped
    """
    well(simulate(seed, (*KINDS_OF[guarantee], STRAY), guarantee))


@pytest.mark.long
def test_nothing_but_strays_disturbs_nobody() -> None:
    """Rules: stray-skipped"""
    runs = [well(simulate(seed, (STRAY,) * 6)) for seed in SEEDS_OF_STRAYS]
    assert all(run.failovers == 1 and set(run.faults) == {STRAY} for run in runs)
    assert all("frontier_strays_skipped" in "\n".join(run.trace) for run in runs)
