"""Whole clusters whose wheels come to differ: nodes find it, and repair theirs from the log."""

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.run import simulate

FRESH_SEEDS = 1


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "differences: ", FRESH_SEEDS)


def test_a_cluster_keeps_every_promise_though_wheels_come_to_differ(seed: int) -> None:
    """docs/design/repairing.md; `--seed N` replays one.

    Rules: repaired-from-log, evidence-kept
    """
    well(simulate(seed, differences=True))


@pytest.mark.long
@pytest.mark.parametrize(("chosen", "changed"), [(3, 1), (17, 2)])
def test_wheels_that_were_changed_are_repaired(chosen: int, changed: int) -> None:
    """docs/design/repairing.md, "Who repairs": a killed message lives on one of three; and on two
    of three, so that the majority accuses the third, who is right.

    Rules: one-repairs, repair-ends
    """
    run = well(simulate(chosen, kinds=(), differences=True))
    assert run.faults["wheel changed"] == changed
    assert sum(" wheel_repaired " in line for line in run.trace) >= changed
