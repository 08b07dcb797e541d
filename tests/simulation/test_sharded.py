"""Whole clusters with several shards, while everything else fails.

Source: docs/design/shards.md.
"""

from collections import Counter
from pathlib import Path

import pytest
from kernel import SECOND_US, Process
from seeded_tests import parametrize_seeds, well
from simulated.etcd import SimulatedCoordination
from simulated.run import simulate
from simulated.world import World
from structlog.testing import capture_logs

from delayd.node.election.leader_reads import EVERY_MS

FRESH_SEEDS = 1
FIXED_SEEDS = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "shards: ", FRESH_SEEDS, range(FIXED_SEEDS))


def test_a_cluster_keeps_every_promise_with_shards(seed: int) -> None:
    """`--seed N` replays one.

    Rules: shard-owns, joint-covers
    """
    well(simulate(seed, shards=2 + seed % 2))


@pytest.mark.long
def test_different_nodes_lead_different_shards_and_each_is_taken_over(tmp_path: Path) -> None:
    """A simulation in which one node leads all proves little."""
    apart, late, smoothed = 0, 0, 0
    terms = set()
    for seed in range(20, 28):
        world = World(seed, tmp_path / str(seed), shards=3)
        try:
            with capture_logs():
                world.run()
            judge = world.checker()
            judge.check()
        finally:
            world.close()
        owners = [{step.fields["owner"] for step in steps} for steps in judge.of_shards]
        apart += any(owner not in others for owner in owners[0] for others in owners[1:])
        late += len(judge.late)
        smoothed += judge.smoothed
        terms |= {min(steps[-1].fields["term"] for steps in judge.of_shards)}
    assert apart > 3 and late > 10 and smoothed > 0 and max(terms) > 3, (apart, late, terms)


def test_shards_come_to_lie_on_all_nodes_and_stay_there(tmp_path: Path) -> None:
    """Nothing fails: forty seconds after all are ready, each leads what it should.

    Rules: shard-placed
    """
    world = World(3, tmp_path, kinds=(), shards=6)
    try:
        with capture_logs() as logged:
            world.pass_until(lambda: sum(len(each.granted) for each in world.machines) == 6)
            world.let_pass(45 * SECOND_US)
            led = sorted(len(machine.granted) for machine in world.machines)
            assert led == [2, 2, 2]
            moves = [line for line in logged if line["event"] == "shard_handed_over"]
            assert 1 <= len(moves) <= 4
            world.let_pass(12 * SECOND_US)
        again = [line for line in logged if line["event"] == "shard_handed_over"]
        assert again == moves, "nothing has changed"
        process = world.machines[0].process
        assert isinstance(process, Process)
        world.kernel.kill(process)
        world.let_pass(5 * SECOND_US)
        assert sum(len(machine.granted) for machine in world.machines) == 6
    finally:
        world.close()


def test_a_node_reads_the_leader_keys_of_all_shards_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/election.md, "Campaign"."""
    calls = Counter[str]()

    def counted(name: str) -> None:
        original = getattr(SimulatedCoordination, name)

        def call(etcd: SimulatedCoordination, *arguments: int) -> object:
            calls[name] += 1
            return original(etcd, *arguments)

        monkeypatch.setattr(SimulatedCoordination, name, call)

    world = World(3, tmp_path, kinds=(), shards=6)
    try:
        with capture_logs():
            world.pass_until(lambda: sum(len(each.granted) for each in world.machines) == 6)
            counted("leader")
            counted("leaders")
            world.let_pass(5 * SECOND_US)
    finally:
        world.close()
    most = len(world.machines) * 5 * 1000 // EVERY_MS
    assert calls["leader"] == 0
    assert most / 10 < calls["leaders"] <= most + len(world.machines)
