"""Whole clusters whose rules are switched while they run: half-way, twice, by two at once."""

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.run import simulate
from simulated.switching import SWITCH

from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 1
FIXED_SEEDS = 1
"""`make test` goes on after them."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "rules switches: ", FRESH_SEEDS, range(FIXED_SEEDS))


def test_a_cluster_keeps_every_promise_though_its_rules_are_switched(seed: int) -> None:
    """docs/design/simulation.md, Rules switches; `--seed N` replays one.

    Rules: rules-by-place, switch-repeated, barrier-proof, frontier-names-barriers
    """
    well(simulate(seed, switches=True))


@pytest.mark.long
@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_people_are_killed_half_way_and_others_prove_nothing(guarantee: str) -> None:
    """A simulation in which nothing fails proves nothing."""
    runs = [well(simulate(seed, guarantee=guarantee, switches=True)) for seed in range(3)]
    assert sum(run.faults[SWITCH] for run in runs) > 5
    assert sum(run.faults["forged barrier"] for run in runs) > 5
    trace = "\n".join(line for run in runs for line in run.trace)
    assert "rules_switched" in trace and "request_rejected" in trace
