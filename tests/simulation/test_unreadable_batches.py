"""Whole clusters into whose buffer somebody writes batches that nobody may read.

One node reads with care; the others read as librdkafka does, guarded.
"""

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.chaos import HEAVY_BATCH, KINDS, KINDS_WITHOUT_FENCE
from simulated.run import simulate

from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 1
SEEDS_OF_BATCHES = (0, 2, 5)
"""Their habits are such batches, not rivals."""
KINDS_OF = {EXACTLY_ONCE: KINDS, AT_LEAST_ONCE: KINDS_WITHOUT_FENCE}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "unreadable: ", FRESH_SEEDS)


@pytest.mark.parametrize("guarantee", KINDS_OF)
def test_a_cluster_keeps_every_promise_though_some_batches_cannot_be_read(
    seed: int, guarantee: str
) -> None:
    """docs/design/frontier.md, Unreadable batches; `--seed N` replays one.

    Rules: batch-unreadable
    """
    well(simulate(seed, (*KINDS_OF[guarantee], HEAVY_BATCH), guarantee))


@pytest.mark.long
def test_nothing_but_unreadable_batches_disturbs_nobody() -> None:
    """Each is one dead letter, whichever driver the master has.

    Rules: batch-unreadable
    """
    runs = [well(simulate(seed, (HEAVY_BATCH,) * 6)) for seed in SEEDS_OF_BATCHES]
    assert all(run.failovers == 1 and set(run.faults) == {HEAVY_BATCH} for run in runs)
    assert all("batch_examined" in "\n".join(run.trace) for run in runs)
