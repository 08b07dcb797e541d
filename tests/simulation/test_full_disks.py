"""Whole clusters whose disks are short of room: nodes take in less, and deliver what they have."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.chaos import FREE_MIN_BYTES
from simulated.disk import FREE_BYTES
from simulated.run import simulate
from simulated.world import World
from structlog.testing import capture_logs

from delayd.bus import Headers
from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

FRESH_SEEDS = 1
SECOND_US = 1_000_000
LEVELS = {
    "short": FREE_MIN_BYTES - 1,
    "full": FREE_MIN_BYTES // 5,
    "no room for a checkpoint": FREE_MIN_BYTES // 10,
    "nothing can be written": 0,
}
LATE_MS_MAX = 2_000
SEED = 8


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_seeds(metafunc, "full disks: ", FRESH_SEEDS)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_cluster_keeps_every_promise_though_disks_are_short_of_room(
    seed: int, guarantee: str
) -> None:
    """docs/design/simulation.md; `--seed N` replays one.

    Rules: short-takes-in-less, full-disk-taken-back
    """
    well(simulate(seed, guarantee=guarantee, full_disks=True))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Has a master; nobody sends anything but the test."""
    with capture_logs():
        made = World(SEED, tmp_path, kinds=())
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


def fill(world: World, free_bytes: int) -> None:
    for machine in world.machines:
        machine.platter.free_bytes = free_bytes


def arrived(world: World) -> dict[bytes | None, int]:
    """What was delivered, and how late it was."""
    return {
        record.value: record.append_ms - int(dict(record.headers)["delayd-due"] or 0)
        for record in world.records("orders")
    }


@pytest.mark.long
@pytest.mark.parametrize("free_bytes", LEVELS.values(), ids=LEVELS)
def test_nodes_whose_disks_are_all_full_deliver_what_they_have(
    world: World, free_bytes: int
) -> None:
    """docs/guarantees.md: a full disk delays messages that were not taken in, and no others.

    Rules: short-takes-in-less
    """
    has = send(world, range(2_000, 30_000, 400))
    world.let_pass(SECOND_US)
    lives = [machine.lives for machine in world.machines]
    fill(world, free_bytes)
    world.let_pass(SECOND_US)
    waits = send(world, range(0, 20_000, 500))
    world.let_pass(30 * SECOND_US)
    assert [machine.lives for machine in world.machines] == lives, "no node has ended for it"
    assert arrived(world).keys() == has, "what was taken in, and nothing else"
    assert max(arrived(world).values()) < LATE_MS_MAX
    world.settle()
    assert arrived(world).keys() == has | waits, "there is room again"
    world.judge().check()


@pytest.mark.long
@pytest.mark.parametrize("free_bytes", [LEVELS["short"], LEVELS["full"]])
def test_another_node_takes_over_while_all_are_short_of_room(world: World, free_bytes: int) -> None:
    """docs/design/storage.md, Short of room.

    Rules: short-takes-in-less
    """
    has = send(world, range(6_000, 30_000, 400))
    world.let_pass(SECOND_US)
    fill(world, free_bytes)
    world.let_pass(SECOND_US)
    waits = send(world, [0])
    [master] = [machine for machine in world.machines if machine.has_live_grant]
    assert master.process is not None
    world.kernel.kill(master.process)
    world.let_pass(30 * SECOND_US)
    assert arrived(world).keys() == has and max(arrived(world).values()) < LATE_MS_MAX
    world.settle()
    assert arrived(world).keys() == has | waits
    world.judge().check()


@pytest.mark.long
def test_a_master_without_room_hands_over_to_a_node_that_has_some(world: World) -> None:
    """docs/design/storage.md, Short of room.

    Rules: short-hands-over
    """
    [short] = [machine for machine in world.machines if machine.has_live_grant]
    short.platter.free_bytes = LEVELS["short"]
    world.let_pass(20 * SECOND_US)
    [master] = [machine for machine in world.machines if machine.has_live_grant]
    assert master is not short
    new = send(world, range(1_000, 20_000, 500))
    world.let_pass(25 * SECOND_US)
    assert arrived(world).keys() == new and max(arrived(world).values()) < LATE_MS_MAX
    assert master.has_live_grant, "once is enough"
    world.settle()
    world.judge().check()


def test_a_master_without_room_stays_where_nobody_has_any(world: World) -> None:
    """Rules: short-hands-over"""
    [master] = [machine for machine in world.machines if machine.has_live_grant]
    fill(world, LEVELS["short"])
    step = world.newest_step()
    world.let_pass(40 * SECOND_US)
    assert master.has_live_grant and world.newest_step().fields["term"] == step.fields["term"]


def test_nodes_start_and_deliver_on_disks_that_others_have_filled(world: World) -> None:
    """docs/design/storage.md, Short of room.

    Rules: reserve-released
    """
    has = send(world, range(12_000, 30_000, 400))
    world.let_pass(3 * SECOND_US)
    fill(world, 0)
    for machine in world.machines:
        assert machine.process is not None
        machine.platter.opens_without_room = False
        world.kernel.kill(machine.process)
    world.let_pass(32 * SECOND_US)
    assert arrived(world).keys() == has and max(arrived(world).values()) < LATE_MS_MAX
    assert all(machine.platter.free_bytes == FREE_MIN_BYTES // 2 for machine in world.machines)
    fill(world, FREE_BYTES)
    world.settle()
    world.judge().check()


def test_a_node_without_room_takes_in_what_another_has_taken_into_account(world: World) -> None:
    """docs/design/storage.md, Short of room: it must reach that before it can lead.

    Rules: short-takes-in-less
    """
    [master] = [machine for machine in world.machines if machine.has_live_grant]
    fill(world, LEVELS["short"])
    world.let_pass(SECOND_US)
    master.platter.free_bytes = FREE_BYTES
    has = send(world, range(6_000, 20_000, 400))
    world.let_pass(4 * SECOND_US)
    assert master.process is not None
    world.kernel.kill(master.process)
    master.cut_from_etcd(True)
    world.let_pass(20 * SECOND_US)
    assert not master.has_live_grant
    assert arrived(world).keys() == has and max(arrived(world).values()) < LATE_MS_MAX
    master.cut_from_etcd(False)
    world.settle()
    world.judge().check()
