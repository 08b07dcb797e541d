"""Whole clusters whose etcd is away for long, comes back empty, or is heard one way only."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.machine import Machine
from simulated.run import simulate
from simulated.world import World
from structlog.testing import capture_logs

from delayd.bus import Headers
from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 2
SECOND_US = 1_000_000
AWAY_MS = 60_000
LATE_MS_MAX = 1_000
SEED = 8
EMPTIED_MAX = 16
"""Times, at another moment between two keepalives each."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "etcd away: ", FRESH_SEEDS)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_cluster_keeps_every_promise_though_etcd_is_away_or_emptied(
    seed: int, guarantee: str
) -> None:
    """docs/design/simulation.md; `--seed N` replays one.

    Rules: outlives-lease, own-term-only
    """
    well(simulate(seed, guarantee=guarantee, etcd_away=True))


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Has a master; nobody sends anything but the test."""
    with capture_logs():
        guarantee = getattr(request, "param", EXACTLY_ONCE)
        made = World(SEED, tmp_path, kinds=(), guarantee=guarantee)
        assert made.rates == {}, "what is smoothed is late by itself"
        made._start()
        made.let_pass(6 * SECOND_US)
        yield made
        made.close()


def send(world: World, dues_ms: Iterable[int]) -> set[bytes]:
    """Send a message for each of these times from now; return their values."""
    now_ms, sent = world.kafka.clock.wall_ms(), set()
    for due_ms in dues_ms:
        world.users.sent += 1
        value, partition = b"%d" % world.users.sent, world.users.sent % world.habits.partitions
        headers: Headers = [
            *(("delayd-topic", b"orders"), ("delayd-due", b"%d" % (now_ms + due_ms))),
            ("expects", b"delivered"),
        ]
        world.kafka.append("delayd-buffer", partition, None, value, headers)
        sent.add(value)
    return sent


def arrived(world: World) -> dict[bytes | None, int]:
    """What was delivered, and how late it was."""
    return {
        record.value: record.append_ms - int(dict(record.headers)["delayd-due"] or 0)
        for record in world.records("orders")
    }


def master_of(world: World) -> Machine:
    [found] = [machine for machine in world.machines if machine.has_live_grant]
    return found


def term_of(world: World) -> int:
    return int(world.newest_step().fields["term"])


def state_of(machine: Machine) -> str:
    assert machine.view is not None
    return machine.view.control.state.value


def settled(world: World) -> None:
    """End well: everything came once."""
    world.settle()
    world.judge().check()


@pytest.mark.parametrize("looks_in_ms", [0, 50, 450])
def test_a_master_goes_on_while_etcd_is_away_and_keeps_its_term(
    world: World, looks_in_ms: int
) -> None:
    """docs/design/election.md, While etcd is away. An etcd that was frozen has, for a moment, keys
    whose lease has run out.

    Rules: outlives-lease, reclaims
    """
    master, term = master_of(world), term_of(world)
    world.etcd.pause()
    has = send(world, range(0, AWAY_MS, 500))
    world.let_pass((AWAY_MS + LATE_MS_MAX) * 1_000)
    assert arrived(world).keys() == has and max(arrived(world).values()) < LATE_MS_MAX
    assert state_of(master) == "alone" and master.view is not None
    assert "no successor" in str(master.view.status()["etcd_problem"])
    world.etcd.resume(looks_in_ms)
    world.let_pass(5 * SECOND_US)
    assert (master_of(world), term_of(world)) == (master, term), "its lease had run out meanwhile"
    assert state_of(master) == "master" and master.view.status()["etcd_problem"] is None
    settled(world)


def test_a_master_goes_on_though_etcd_comes_back_empty(world: World) -> None:
    """docs/design/election.md, While etcd is away: the key is made anew by who leads.

    Rules: reclaims, term
    """
    master, term = master_of(world), term_of(world)
    has = send(world, range(0, 20_000, 250))
    empty(world, 10 * SECOND_US)
    world.let_pass(11 * SECOND_US)
    assert arrived(world).keys() == has and max(arrived(world).values()) < LATE_MS_MAX
    assert (master_of(world), term_of(world)) == (master, term)
    cursor = master.coordination
    assert cursor is not None and cursor.cursor(0) is not None, "it is mirrored again"
    settled(world)


def test_no_term_steps_back_when_an_empty_etcd_elects_another_node(world: World) -> None:
    """Emptied between two keepalives, until followers learn of it first.

    Rules: term, fence
    """
    term = term_of(world)
    has = send(world, range(0, 20_000, 250))
    for _ in range(EMPTIED_MAX):
        if term_of(world) == term:
            empty(world, 0)
        world.let_pass(1_300_000)
    assert arrived(world).keys() == has and term_of(world) == term + 1
    settled(world)


def empty(world: World, away_us: int) -> None:
    """Let etcd be away, and come back without its data."""
    world.etcd.pause()
    world.let_pass(away_us)
    world.etcd.wipe()
    world.witness.excuse()
    world.etcd.resume()


def test_a_node_that_etcd_has_replaced_meanwhile_is_fenced(world: World) -> None:
    """docs/design/election.md, While etcd is away: a master that is cut off from etcd alone.

    Rules: fence, own-term-only
    """
    master, term = master_of(world), term_of(world)
    has = send(world, range(0, 30_000, 100))
    master.cut_from_etcd(True)
    world.let_pass(15 * SECOND_US)
    assert term_of(world) == term + 1 and master_of(world) is not master
    master.cut_from_etcd(False)
    world.let_pass(16 * SECOND_US)
    assert arrived(world).keys() == has and term_of(world) == term + 1, "nobody fences back"
    settled(world)


def test_a_master_that_etcd_hears_and_that_hears_nothing_goes_on(world: World) -> None:
    """docs/design/election.md, While etcd is away: its keepalives are carried out."""
    master, term = master_of(world), term_of(world)
    has = send(world, range(0, 20_000, 100))
    master.deafen_to_etcd(True)
    world.let_pass(22 * SECOND_US)
    assert arrived(world).keys() == has and max(arrived(world).values()) < LATE_MS_MAX
    assert term_of(world) == term and state_of(master) == "alone"
    master.deafen_to_etcd(False)
    world.let_pass(2 * SECOND_US)
    assert (master_of(world), term_of(world)) == (master, term)
    settled(world)


def test_nobody_replaces_a_master_that_dies_while_etcd_is_away(world: World) -> None:
    """docs/operations.md, etcd is away: nothing is lost, and it is late."""
    master, term = master_of(world), term_of(world)
    world.etcd.pause()
    world.let_pass(5 * SECOND_US)
    assert master.process is not None
    world.kernel.kill(master.process)
    has = send(world, range(0, 10_000, 500))
    world.let_pass(10 * SECOND_US)
    assert arrived(world).keys() & has == set() and term_of(world) == term
    world.etcd.resume()
    world.let_pass(10 * SECOND_US)
    assert arrived(world).keys() == has and term_of(world) > term
    settled(world)


def test_a_master_takes_up_its_own_term_again_when_kafka_was_away_too(world: World) -> None:
    """docs/design/election.md, While etcd is away.

    Rules: own-term-only
    """
    master, term = master_of(world), term_of(world)
    world.etcd.pause()
    has = send(world, range(0, 40_000, 500))
    world.let_pass(5 * SECOND_US)
    master.link.up = False
    world.let_pass(20 * SECOND_US)
    master.link.up = True
    world.let_pass(20 * SECOND_US)
    assert arrived(world).keys() == has and term_of(world) > term
    assert state_of(master) == "alone"
    world.etcd.resume()
    settled(world)


@pytest.mark.parametrize("world", [AT_LEAST_ONCE], indirect=True)
def test_without_a_fence_a_master_stops_with_its_lease(world: World) -> None:
    """docs/guarantees.md, At least once: nobody could fence it.

    Rules: deadline
    """
    has = send(world, range(0, 20_000, 500))
    world.etcd.pause()
    world.let_pass(10 * SECOND_US)
    assert not any(machine.has_live_grant for machine in world.machines)
    assert len(arrived(world)) < len(has) // 2
    world.etcd.resume()
    world.let_pass(15 * SECOND_US)
    assert arrived(world).keys() == has
    settled(world)
