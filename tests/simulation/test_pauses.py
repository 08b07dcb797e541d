"""Whole clusters whose targets are paused and resumed at random, while everything else fails.

Source: docs/design/pauses.md.
"""

from collections import Counter
from pathlib import Path

import pytest
from seeded_tests import judged, parametrize_seeds, well
from simulated.pausing import FORGED, PAUSE, RESUME
from simulated.run import simulate

from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 1
FIXED_SEEDS = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "pauses: ", FRESH_SEEDS, range(FIXED_SEEDS))


def test_a_cluster_keeps_every_promise_though_its_targets_are_paused(seed: int) -> None:
    """`--seed N` replays one.

    Rules: pause-holds, pause-order, pause-in-frontier
    """
    well(simulate(seed, pauses=True))


@pytest.mark.long
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_pauses_are_renewed_resumed_forged_and_handed_on(guarantee: str) -> None:
    """A simulation in which nothing fails proves nothing."""
    runs = [well(simulate(seed, guarantee=guarantee, pauses=True)) for seed in range(2, 8)]
    for what in (PAUSE, RESUME, FORGED):
        assert sum(run.faults[what] for run in runs) > 10
    if guarantee == EXACTLY_ONCE:  # Else the order is not judged.
        assert sum(run.smoothed for run in runs) > 30


@pytest.mark.long
def test_what_the_seeds_are_for_is_met(tmp_path: Path) -> None:
    seen = Counter[str]()
    for seed in range(8, 20):
        _, judge = judged(seed, tmp_path / str(seed), pauses=True)
        seen += judge.pauses.seen
    for what in ("paused", "renewed", "resumed", "ended", "handed on"):
        assert seen[what] > 1, seen
