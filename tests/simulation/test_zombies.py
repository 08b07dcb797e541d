"""Whole clusters whose partition leaders become zombies: cut off from the controller, and read."""

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.run import simulate

from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 2
FOLLOWED_SEED = 128342989
STALE_RUNS = 4
"""So many runs have to meet a stale read of the frontier ..."""
SEEDS_MAX = 60
"""... within these seeds, of which some third does: which, changes with whatever is simulated."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "zombies: ", FRESH_SEEDS)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_cluster_keeps_every_promise_though_brokers_that_lead_no_more_are_read(
    seed: int, guarantee: str
) -> None:
    """docs/design/simulation.md; `--seed N` replays one."""
    well(simulate(seed, guarantee=guarantee, zombies=True))


@pytest.mark.long
def test_a_stale_read_of_the_frontier_doubles_nothing() -> None:
    """docs/design/frontier.md, Stale reads.

    Rules: stale-read
    """
    met = 0
    for seed in range(SEEDS_MAX):
        run = well(simulate(seed, zombies=True))
        met += "takeover_stale" in "\n".join(run.trace)
        if met == STALE_RUNS:
            break
    assert met == STALE_RUNS


def test_no_occurrence_is_followed_before_it_has_arrived() -> None:
    """Seed of a step that fails, and whose next try finds the target refusing: had the first try
    written what follows, the retry would be taken for a second continuation, and be dropped.

    Rules: repeat-ignored
    """
    well(simulate(FOLLOWED_SEED, guarantee=AT_LEAST_ONCE, zombies=True))
