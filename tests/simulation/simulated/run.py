"""One run, judged: what `make sim` prints and what the tests ask for."""

import hashlib
import json
import time
import traceback
from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog
from at_least_once_checker import AtLeastOnceChecker
from simulation_checker import Checker
from wheel_checker import WheelChecker

from delayd.node.delivery import delivery_loop, planner
from delayd.node.replica import ingest_loop
from delayd.runtime.temp_dirs import temporary_folder
from replication.settings import EXACTLY_ONCE, RULES_VERSION, SMOOTHING_RULES
from simulated.chaos import HEAVY_BATCH, KINDS, KINDS_WITHOUT_FENCE
from simulated.world import World

MEMORY_DISK = Path("/dev/shm")
"""Where files cost nothing, if the machine has it: crashes are simulated, not suffered."""
SLOW_POLL_MS = 500
PIECE_FRAMES = 3
"""So that most steps are read in several pieces."""


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one seed."""

    seed: int
    problem: str | None
    """What does not hold, with its traceback; None if all is well."""
    trace: list[str]
    """What happened, a line each: faults, processes, and what the nodes log."""
    digest: str
    """Of the trace and of everything in Kafka: equal if and only if the runs are."""
    faults: Counter[str]
    failovers: int
    sent: int
    delivered: int
    late: int
    """Messages that were Done by a step whose cursor had passed them before."""
    requeued: int
    """Records that were written anew: retries, and what was deferred for any reason."""
    smoothed: int
    """Messages that were deferred to their turn, and whose order was judged."""
    doubled: int
    """Arrivals beyond the first: none if the guarantee is exactly-once."""
    redriven: int
    refused_redrives: int
    simulated_s: float
    wall_s: float


def simulate(
    seed: int,
    kinds: tuple[str, ...] | None = None,
    guarantee: str = EXACTLY_ONCE,
    *,
    zombies: bool = False,
    hangs: bool = False,
    full_disks: bool = False,
    replaced_disks: bool = False,
    pulses: bool = False,
    etcd_away: bool = False,
    rules_version: int = RULES_VERSION,
    days: int = 0,
    switches: bool = False,
    differences: bool = False,
    moves: bool = False,
    pauses: bool = False,
    quotas: bool = False,
    debounces: bool = False,
    shards: int = 1,
    reshards: bool = False,
) -> Run:
    """Run a seed from beginning to end and judge it; under all faults unless `kinds` are named."""
    if kinds is None:
        kinds = KINDS if guarantee == EXACTLY_ONCE else KINDS_WITHOUT_FENCE
        if days:
            # Each is a run of its own where seconds are played.
            chance = Random(f"{seed}: beside")
            zombies = zombies or chance.random() < 0.25
            full_disks = full_disks or chance.random() < 0.25
            switches = switches or (rules_version == RULES_VERSION and chance.random() < 0.25)
            if chance.random() < 0.25:
                kinds = (*kinds, *[HEAVY_BATCH] * 3)  # of which a run draws about half
    started = time.perf_counter()
    where = MEMORY_DISK if MEMORY_DISK.is_dir() else None
    with temporary_folder("delayd-simulated-", where) as folder:
        world = World(
            seed,
            Path(folder),
            kinds,
            guarantee,
            zombies=zombies,
            hangs=hangs,
            full_disks=full_disks,
            replaced_disks=replaced_disks,
            pulses=pulses,
            etcd_away=etcd_away,
            days=days,
            rules_version=SMOOTHING_RULES if switches else rules_version,
            switches=switches,
            differences=differences,
            moves=moves,
            pauses=pauses,
            quotas=quotas,
            debounces=debounces,
            shards=shards,
            reshards=reshards,
        )
        problem, judge = None, None
        with _logs_in_trace(world), _small_pieces_and(slow_polls=days > 0):
            try:
                world.run()
                judge = judged(world)
            except Exception:
                problem = traceback.format_exc()
            finally:
                world.close()
    steps = [json.loads(record.value or b"") for record in world.records("delayd-frontier")]
    return Run(
        seed=seed,
        problem=problem,
        trace=world.trace,
        digest=_digest(world),
        faults=world.weather.faults,
        failovers=sum({step["shard"]: step["term"] for step in steps}.values()),
        sent=world.users.sent,
        delivered=sum(step["counts"]["delivered"] for step in steps),
        requeued=sum(step["counts"]["retried"] for step in steps),
        late=len(judge.late) if judge else 0,
        smoothed=judge.smoothed if isinstance(judge, Checker) else 0,
        doubled=judge.doubled.total() if isinstance(judge, AtLeastOnceChecker) else 0,
        redriven=len(judge.rules.redriven) if judge else 0,
        refused_redrives=sum(
            a.op == "redrive" and a.source in judge.rules.refusals for a in judge.answers
        )
        if judge
        else 0,
        simulated_s=(world.kernel.now_us + world.kernel.suspended_us) / 1_000_000,
        wall_s=time.perf_counter() - started,
    )


BY_CHANCE = {("replaced_wheel_kept", "bytes")}
"""Log lines and fields that no seed decides: LevelDB's own files are as large as they are."""


def judged(world: World) -> Checker | AtLeastOnceChecker:
    """Return the judge of a world that has ended, and its wheels; AssertionError if a promise was
    broken."""
    judge = world.judge()
    judge.check()
    wheels = {machine.data_dir: machine.known_from_ms for machine in world.machines}
    checker = WheelChecker(judge, wheels, world.habits.partitions)
    hold_ms = world.habits.export_hold_ms
    # A node remembers one frontier for each 16th of it.
    checker.check(hold_ms, world.forget_ms + hold_ms // 16)
    return judge


def _digest(world: World) -> str:
    seen = hashlib.sha256("\n".join(world.trace).encode())
    for name, topic in sorted(world.kafka.topics.items()):
        for log in topic.partitions:
            seen.update(f"{name}/{log.number}".encode())
            for record, transaction, _ in log.entries:
                seen.update(repr((record, transaction and transaction.aborted)).encode())
    return seen.hexdigest()[:16]


@contextmanager
def _small_pieces_and(*, slow_polls: bool) -> Iterator[None]:
    """Have steps read in several pieces. `slow_polls` lets idle loops of the nodes look less often,
    since what arrives wakes them: months have many idle seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "PIECE_FRAMES", PIECE_FRAMES)
        if slow_polls:
            patch.setattr(ingest_loop, "POLL_MS", SLOW_POLL_MS)
            patch.setattr(delivery_loop, "FOLLOW_POLL_MS", SLOW_POLL_MS)
        yield


@contextmanager
def _logs_in_trace(world: World) -> Iterator[None]:
    """Send the log lines of the nodes to the trace, and nowhere else."""

    def note(_: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        task = world.kernel.current
        what = event.pop("event")
        said = " ".join(f"{name}={event[name]}" for name in event if (what, name) not in BY_CHANCE)
        world.weather.note(f"{task.process.name if task else '?'} {level} {what} {said}")
        raise structlog.DropEvent

    processors = structlog.get_config()["processors"]
    before = processors.copy()
    # In place: loggers that were used before hold on to this very list.
    processors[:] = [note]
    try:
        yield
    finally:
        processors[:] = before
