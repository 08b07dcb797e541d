"""Whole clusters of real nodes, from seeds: whatever fails, each message is delivered once."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from id_checker import IdChecker
from seeded_tests import bent, parametrize_seeds, played, well
from simulated.chaos import KINDS
from simulated.run import simulate
from simulated.weather import RIVALRY
from simulated.world import World
from structlog.testing import capture_logs

from delayd.wheel.id_memory import id_name, redrive_name
from delayd.wheel.kills import Kill
from delayd.wheel.storage import Wheel
from replication.ids import NOTHING
from replication.rank import Rank
from replication.settings import SMOOTHING_RULES

FIXED_SEEDS, FIXED_SEEDS_FULL = 30, 50
"""`make test` runs the first of them, `make coverage` (`--full`) all."""
FRESH_SEEDS = 6
SEEDS_WITH_ALL = (0, 1, 5, 7, 11, 13, 15, 17, 18, 25, 26)
"""With those below they do everything that seeds are for, each thing in two of them; one test runs
them all. A master's own disk fails in few seeds: most nodes follow, and a full disk is borne."""

RIVALRY_SEEDS = range(25, 33)

WHAT_NODES_MEET = [
    "mastership_begun",
    "mastership_fenced",
    "mastership_superseded",
    "mastership_refused",
    "step_failed",
    "leadership_unconfirmed state=alone",
    "leadership_reclaimed",
    "leadership_resigned reason=lease-lost",
    "mastership_ended reason=clock-drift",
    "leadership_resigned reason=disk-failed",
    "leadership_resigned reason=shutdown",
    "etcd_call_failed",
    "node_failed",
    "node_stopped",
    "request_rejected",
    "commit applied",
    "commit not applied",
    "commit applied late",
    "at before commit",
    "at after commit",
    "at before sync",
]
"""What a reader of the trace finds somewhere in those runs."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    end = FIXED_SEEDS_FULL if metafunc.config.getoption("--full") else FIXED_SEEDS
    parametrize_seeds(
        metafunc, "clusters of ", FRESH_SEEDS, [n for n in range(end) if n not in SEEDS_WITH_ALL]
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Was played to its end without faults. Tests leave it as it was."""
    return played(5, tmp_path_factory.mktemp("world"))


def test_a_cluster_keeps_every_promise(seed: int) -> None:
    """docs/design/simulation.md; `--seed N` replays one."""
    well(simulate(seed))


@pytest.mark.long
def test_a_cluster_of_older_rules_keeps_them() -> None:
    """docs/design/simulation.md, Older rules."""
    run = well(simulate(1, rules_version=SMOOTHING_RULES))
    assert run.delivered > 40 and "broker clock leap" not in run.faults


def test_without_faults_there_is_one_master_and_no_failover() -> None:
    run = well(simulate(1, kinds=()))
    assert (run.failovers, run.faults.total()) == (1, 0) and run.delivered > 40


@pytest.mark.long
def test_what_a_killed_simulation_left_in_memory_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulated.run.MEMORY_DISK", tmp_path)
    code = (
        "import os; from pathlib import Path; from simulated import run\n"
        f"run.MEMORY_DISK = Path({str(tmp_path)!r})\n"
        "run.World = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        "run.simulate(1)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    well(simulate(1, kinds=()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_seeds_do_what_they_are_for() -> None:
    """A simulation in which nothing fails proves nothing."""
    runs = [well(simulate(seed)) for seed in SEEDS_WITH_ALL]
    runs += [well(simulate(seed, RIVALRY)) for seed in RIVALRY_SEEDS]
    faults: Counter[str] = sum((run.faults for run in runs), Counter())
    assert [k for k in KINDS if not any(name.startswith(k) for name in faults)] == []
    assert faults["broker clock leap"] > 5
    trace = "\n".join(line for run in runs for line in run.trace)
    assert [what for what in WHAT_NODES_MEET if what not in trace] == []
    assert sum(run.failovers for run in runs) > 100
    assert sum(run.delivered for run in runs) > 900
    assert sum(run.late for run in runs) > 10
    assert sum(run.redriven for run in runs) > 50
    assert sum(run.refused_redrives for run in runs) > 20


@pytest.mark.parametrize("broken", ["doubled", "lost", "altered", "early", "counted", "aborted"])
def test_the_judge_sees_what_is_broken(broken: str, world: World) -> None:
    """A check that cannot fail is a defect: the committed records are bent after a good run."""
    topic = "delayd-frontier" if broken == "counted" else "orders"
    log = next(log for log in world.kafka.topics[topic].partitions if log.read(0, 10**9)[0])
    place, record = next(
        (index, entry.record)
        for index, entry in enumerate(log.entries)
        if entry.record is not None and b'"delivered":0' not in (entry.record.value or b"")
    )
    other = {
        "doubled": record,
        "lost": None,
        "altered": record._replace(value=b"other"),
        "early": record._replace(append_ms=0),
        "counted": record._replace(value=(record.value or b"").replace(b'"late":', b'"late":9')),
        "aborted": record._replace(headers=[*record.headers, ("delayd-source", b"0/9999999")]),
    }[broken]
    world.checker().check()
    with bent(log.entries):
        if broken == "doubled":
            log.entries.append(log.entries[place])
        else:
            log.entries[place] = log.entries[place]._replace(record=other)
        with pytest.raises((AssertionError, KeyError)):
            world.checker().check()


@pytest.mark.parametrize("broken", ["id", "killed", "killer", "redrive"])
def test_the_judge_sees_what_a_node_does_not_know_of_ids(
    broken: str, world: World, tmp_path: Path
) -> None:
    judge = world.checker()
    judge.check()
    rules = judge.rules
    shutil.copytree(world.directory / "0", tmp_path / "0")
    wheel = Wheel.open(tmp_path / "0", partitions=world.habits.partitions)
    checker = IdChecker(judge)
    checker.check("node-0", wheel)
    if broken == "killer":
        source, marker = next(iter(rules.killed_by.items()))
        rank = Rank(*rules.by_source[source].rank)
        wheel.ids.note_kill(rank, Kill(marker.offset + 1))
    elif broken == "redrive":
        source = next(iter(rules.redriven))
        partition = int(source.partition("/")[0])
        wheel.ids.remember(partition, redrive_name(source), NOTHING, 0)
    else:
        places = rules.live if broken == "id" else rules.last_killed
        partition, id = next(p for p, messages in places.items() if checker.that_count(messages))
        state = wheel.ids.state(partition, id_name(id))
        lacking = state._replace(live=()) if broken == "id" else state._replace(killed=())
        wheel.ids.remember(partition, id_name(id), lacking, 0)
    with pytest.raises(AssertionError, match="node-0"):
        checker.check("node-0", wheel)
    wheel.close()


def test_the_witness_sees_who_believes_to_be_master_without_its_lease(tmp_path: Path) -> None:
    """Nobody excuses the end of leases here."""
    with capture_logs():
        world = World(5, tmp_path, kinds=())
        world.pass_until(lambda: any(machine.has_live_grant for machine in world.machines))
        world.witness.look()
        assert [machine.bug for machine in world.machines] == [None] * len(world.machines)
        world.etcd.end_leases()
        world.witness.look()
    assert "believes to be master" in str([machine.bug for machine in world.machines])
    world.close()


def test_the_witness_sees_a_stuck_master_that_keeps_its_lease(tmp_path: Path) -> None:
    with capture_logs():
        world = World(5, tmp_path, kinds=())
        world.pass_until(lambda: any(machine.has_live_grant for machine in world.machines))
        for machine in world.machines:
            world.witness.check_let_go(machine)
    assert "has kept its lease" in str([machine.bug for machine in world.machines])
    world.close()


@pytest.mark.long
@pytest.mark.parametrize("more", [None, "differences"])
def test_a_run_replays_byte_for_byte(more: str | None) -> None:
    """Nothing but the seed decides: not the process, its hashes, its files or the time of day."""
    runner = Path(__file__).with_name("run_seeds.py")
    digests = set()
    asked = [] if more is None else [f"--{more}"]
    for hashes in ("1", "2"):
        said = subprocess.run(
            [sys.executable, str(runner), "--first", "4", "--seeds", "2", "--jobs", "1", *asked],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        lines = [line.split() for line in said.splitlines() if line.startswith("seed")]
        digests.add(tuple((line[1], line[5]) for line in lines))
    played = [simulate(seed, differences=more == "differences") for seed in (4, 5)]
    here = tuple((str(run.seed), run.digest) for run in played)
    assert digests == {here}
    assert here[0][1] != here[1][1]
