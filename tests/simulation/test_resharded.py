"""Whole clusters that get more shards, or fewer, while everything else fails.

Source: docs/design/shards.md, "More or fewer".
"""

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from kernel import SECOND_US
from seeded_tests import parametrize_seeds, well
from simulated.run import simulate
from simulated.world import World
from structlog.testing import capture_logs

from delayd.bus.memory import MemoryBus
from delayd.cluster.resharding import Resharding, _closed
from delayd.cluster.topics import last_frontier

TIMEOUT_MS = 5_000
FRESH_SEEDS = 1
FIXED_SEEDS = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "reshards: ", FRESH_SEEDS, range(FIXED_SEEDS))


def test_a_cluster_keeps_every_promise_when_its_shards_change(seed: int) -> None:
    """`--seed N` replays one.

    Rules: resharded
    """
    well(simulate(seed, shards=(1, 2, 4)[seed % 3], reshards=True))


@pytest.mark.parametrize("closed", [1, 2])
def test_nodes_end_what_nobody_goes_on_with(closed: int, tmp_path: Path) -> None:
    """Whoever closes shards is gone: half a minute later others have masters. Rules: resharded"""
    world = World(3, tmp_path, kinds=(), shards=2, reshards=True)
    try:
        with capture_logs() as logged:
            world.pass_until(lambda: sum(len(each.granted) for each in world.machines) == 2)
            bus = MemoryBus(world.kafka)
            seen = last_frontier(bus, "delayd-frontier", TIMEOUT_MS)
            assert seen is not None
            run = Resharding(bus, seen.record.settings, world.broker_clock, TIMEOUT_MS, 0)
            for shard in range(closed):
                run._follow(shard, 2, partial(_closed, shards=4))
            world.let_pass(40 * SECOND_US)
        seen = last_frontier(bus, "delayd-frontier", TIMEOUT_MS)
        assert seen is not None and len(seen.parts) == 4
        assert sum(len(each.granted) for each in world.machines) == 4
        ended = [line for line in logged if line["event"] == "shards_left_closed"]
        assert ended and ended[0]["to_be"] == 4
    finally:
        world.close()


@pytest.mark.long
def test_shards_do_change_and_masters_rest(tmp_path: Path) -> None:
    """A simulation in which nothing changes proves little. Rules: resharded, shards-rest"""
    more = fewer = rested = 0
    for seed in range(20, 28):
        world = World(seed, tmp_path / str(seed), shards=2, reshards=True)
        try:
            with capture_logs():
                world.run()
            judge = world.checker()
            judge.check()
        finally:
            world.close()
        numbers = [step.shards for step in judge.steps]
        more += sum(one < other for one, other in pairwise(numbers))
        fewer += sum(one > other for one, other in pairwise(numbers))
        rested += sum("rest_ms" in step.fields for step in judge.steps)
    assert more > 5 and fewer > 3 and rested > 20, (more, fewer, rested)
