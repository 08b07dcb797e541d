"""Whole clusters whose wheels come to differ: nodes find it, and repair theirs from the log."""

import shutil
from pathlib import Path

import pytest
from seeded_tests import parametrize_seeds, well
from simulated.run import simulate
from simulated.world import World

from delayd.wheel.aside import RepairNote, RepairState, note_repair, repair_note, set_aside

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


def test_a_new_wheel_that_is_of_no_use_gives_way_to_the_old_one(tmp_path: Path) -> None:
    """docs/design/repairing.md, "Order on the disk".

    Rules: evidence-kept
    """
    world = World(3, tmp_path, kinds=())
    machine = world.machines[0]
    world.pass_until(lambda: machine.view is not None and machine.view.unready() is None)
    assert machine.process is not None
    world.kernel.kill(machine.process)
    old = (machine.data_dir / "format.json").stat().st_ino
    wanted = RepairNote(RepairState.WANTED, 0, 0, (), (), ())
    note_repair(machine.data_dir, wanted)
    set_aside(machine.data_dir, wanted)
    shutil.copytree(machine.data_dir / "replaced", machine.data_dir, dirs_exist_ok=True)
    (machine.data_dir / "catalogue" / "CURRENT").write_text("nonsense\n")
    lives = machine.lives
    for _ in range(100):
        world.let_pass(100_000)
    assert machine.lives > lives and machine.view is not None
    note = repair_note(machine.data_dir)
    assert note is not None and note.state is RepairState.FAILED and note.problem
    assert (machine.data_dir / "format.json").stat().st_ino == old
    world.close()
