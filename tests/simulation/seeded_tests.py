"""What the tests of seeds share: the seeds that they run, and worlds that were played."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from checked_out import commit, revision
from long_tests import long_ones
from simulated.run import Run
from simulated.world import World
from simulation_checker import Checker
from structlog.testing import capture_logs

from replication.settings import EXACTLY_ONCE


def parametrize_seeds(
    metafunc: pytest.Metafunc, purpose: str, fresh: int, fixed: Sequence[int] = ()
) -> None:
    """Run a test with these seeds, of which `make check-fast` plays none, and some fresh ones;
    their names carry them. `--seed N`: only with that one."""
    if "seed" not in metafunc.fixturenames:
        return
    seed = metafunc.config.getoption("--seed")
    # By the commit: each one meets others, and whoever runs its tests again meets the same.
    chance = Random(purpose + revision())
    seeds = [
        *long_ones(*fixed),
        *(chance.randrange(10**9) for _ in range(fresh)),
    ]
    metafunc.parametrize("seed", seeds if seed is None else [seed])


def well(run: Run) -> Run:
    """Return the run, if nothing is wrong with it."""
    if run.problem:
        print(*run.trace, sep="\n")
        pytest.fail(f"seed {run.seed} at commit {commit()}:\n{run.problem}")
    return run


def played(seed: int, directory: Path, guarantee: str = EXACTLY_ONCE) -> World:
    """Return a world that was played to its end without faults."""
    with capture_logs():
        world = World(seed, directory, kinds=(), guarantee=guarantee)
        world.run()
    return world


def judged(seed: int, directory: Path, **choices: Any) -> tuple[World, Checker]:
    """Play a world to its end, and judge it; return it, closed, and its judge. `choices`: of
    World."""
    world = World(seed, directory, **choices)
    try:
        with capture_logs():
            world.run()
        judge = world.judge()
        judge.check()
    finally:
        world.close()
    assert isinstance(judge, Checker)
    return world, judge


@contextmanager
def bent(*places: list[Any]) -> Iterator[None]:
    """Leave lists of a world as they were, whatever is done to them in between."""
    before = [list(place) for place in places]
    try:
        yield
    finally:
        for place, content in zip(places, before, strict=True):
            place[:] = content
