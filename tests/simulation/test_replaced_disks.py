"""Whole clusters whose disks are lost, and replaced by empty ones: nodes that rebuild."""

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.run import simulate

from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "replaced disks: ", FRESH_SEEDS)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_cluster_keeps_every_promise_though_disks_are_lost(seed: int, guarantee: str) -> None:
    """docs/design/simulation.md; `--seed N` replays one."""
    well(simulate(seed, guarantee=guarantee, replaced_disks=True))


@pytest.mark.long
def test_a_node_on_a_new_disk_stores_nothing_that_was_done_before() -> None:
    """docs/design/storage.md, Rebuilding.

    Rules: covered-not-stored
    """
    runs = [well(simulate(seed, kinds=(), replaced_disks=True)) for seed in range(3)]
    assert all(run.faults["disk replaced"] for run in runs)
