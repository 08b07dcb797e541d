"""Whole clusters in which leaders of target partitions hang."""

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.run import simulate

from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "hung leaders: ", FRESH_SEEDS)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_cluster_keeps_every_promise_though_leaders_of_targets_hang(
    seed: int, guarantee: str
) -> None:
    """docs/design/simulation.md; `--seed N` replays one.

    Rules: silent-spared
    """
    well(simulate(seed, guarantee=guarantee, hangs=True))
