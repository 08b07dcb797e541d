"""Whole clusters whose nodes listen to their master: who dies is deposed, at times who lives."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernel import SECOND_US
from seeded_tests import parametrize_seeds, well
from simulated.machine import Machine
from simulated.run import simulate
from simulated.world import World
from structlog.testing import capture_logs

from replication.pulse import WINDOW_MS
from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 1
SEED = 8
DEPOSED_A_MINUTE_MAX = 14


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "pulses: ", FRESH_SEEDS)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_cluster_keeps_every_promise_though_masters_are_deposed_rightly_and_wrongly(
    seed: int, guarantee: str
) -> None:
    """docs/design/simulation.md; `--seed N` replays one.

    Rules: pulse-dead, pulse-missed, depose-lease
    """
    run = well(simulate(seed, guarantee=guarantee, pulses=True))
    assert "pulse_failed" not in "\n".join(run.trace)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Has a master, whom the others hear; nothing happens but what the test does."""
    with capture_logs():
        made = World(SEED, tmp_path, kinds=(), pulses=True)
        assert made.pulses is not None
        made.pulses.lies = 0
        made._start()
        made.let_pass(6 * SECOND_US)
        yield made
        made.close()


def master(world: World) -> Machine:
    [found] = [machine for machine in world.machines if machine.has_live_grant]
    return found


def kill(world: World, machine: Machine) -> None:
    assert machine.process is not None
    world.kernel.kill(machine.process)


def lose_power(world: World, machine: Machine) -> None:
    machine.is_dark = machine.is_held = True
    kill(world, machine)


def freeze(world: World, machine: Machine) -> None:
    assert machine.process is not None
    world.kernel.pause(machine.process, 20 * SECOND_US)


def cut_from_kafka(_: World, machine: Machine) -> None:
    machine.link.up = False


def terminate(_: World, machine: Machine) -> None:
    assert machine.loop is not None
    machine.loop.deliver(signal.SIGTERM)


@pytest.mark.parametrize(
    ("end", "within_us"),
    [
        (kill, SECOND_US // 2),
        (terminate, SECOND_US // 2),
        (freeze, 2 * SECOND_US),
        (lose_power, 2 * SECOND_US),
        (cut_from_kafka, 5 * SECOND_US),
    ],
)
def test_another_node_leads_before_a_lease_could_end(
    world: World, end: Callable[[World, Machine], None], within_us: int
) -> None:
    """In virtual time. A lease of 3 s was renewed a second ago at most.

    Rules: pulse-dead, pulse-missed, pulse-cut-off
    """
    former = master(world)
    end(world, former)
    world.let_pass(within_us)
    assert [m.name for m in world.machines if m.has_live_grant and m is not former]


def test_a_frozen_master_keeps_its_lease_while_most_nodes_hear_nothing_of_it_for_another_reason(
    world: World,
) -> None:
    """One of two followers is down: nobody but its lease decides.

    Rules: pulse-missed
    """
    former = master(world)
    down = next(machine for machine in world.machines if machine is not former)
    down.is_held = True
    kill(world, down)
    freeze(world, former)
    world.let_pass(3 * SECOND_US // 2)
    assert world.weather.faults["deposed"] == 0


def test_nobody_is_deposed_while_kafka_answers_no_node(world: World) -> None:
    """Rules: pulse-cut-off"""
    for machine in world.machines:
        cut_from_kafka(world, machine)
    world.let_pass(6 * SECOND_US)
    assert world.weather.faults["deposed"] == 0


@pytest.mark.long
def test_masters_that_are_always_taken_for_dead_are_deposed_a_dozen_times_a_minute_at_most(
    world: World,
) -> None:
    """Rules: pulse-restraint"""
    assert world.pulses is not None
    world.pulses.lies, world.pulses.lie_us = 1, SECOND_US // 4
    counts = []
    for _ in range(4):
        before = world.weather.faults["deposed"]
        world.let_pass(WINDOW_MS * 1_000)
        counts.append(world.weather.faults["deposed"] - before)
    assert 4 < max(counts) <= DEPOSED_A_MINUTE_MAX
    world.pulses.lies = 0
    world.settle()
    world.judge().check()
