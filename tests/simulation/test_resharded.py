"""Whole clusters that get more shards, or fewer, while everything else fails.

Source: docs/design/shards.md, "More or fewer".
"""

from itertools import pairwise
from pathlib import Path

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.run import simulate
from simulated.world import World
from structlog.testing import capture_logs

FRESH_SEEDS = 1
FIXED_SEEDS = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "reshards: ", FRESH_SEEDS, range(FIXED_SEEDS))


def test_a_cluster_keeps_every_promise_when_its_shards_change(seed: int) -> None:
    """`--seed N` replays one.

    Rules: resharded
    """
    well(simulate(seed, shards=(1, 2, 4)[seed % 3], reshards=True))


@pytest.mark.long
def test_shards_do_change_and_runs_are_cut(tmp_path: Path) -> None:
    """A simulation in which nothing changes proves little. Rules: resharded, shards-rest"""
    more = fewer = rested = left = 0
    for seed in range(20, 30):
        world = World(seed, tmp_path / str(seed), shards=2, reshards=True)
        try:
            with capture_logs() as logged:
                world.run()
            judge = world.checker()
            judge.check()
        finally:
            world.close()
        numbers = [step.shards for step in judge.steps]
        more += sum(one < other for one, other in pairwise(numbers))
        fewer += sum(one > other for one, other in pairwise(numbers))
        rested += sum("rest_ms" in step.fields for step in judge.steps)
        left += sum(line["event"] == "shards_left_closed" for line in logged)
    assert more > 5 and fewer > 3 and rested > 20 and left > 0, (more, fewer, rested, left)
