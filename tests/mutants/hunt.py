"""The hunt for one mutant: copied, applied, simulated seed by seed, then tested.

Each mutant gets a tree and interpreters of its own, so that nothing of another one is left.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mutants.mutant import SEEDS_MAX, Mutant, apply, copy_tree

ROOT = Path(__file__).parents[2]
SIMULATION_LIMIT_S = 1_200
TESTS_LIMIT_S = 300
"""Who needs longer has not caught anything: a busy machine must not look like a mutant."""

TESTS_FAILED = 1
"""pytest's exit code when tests ran and some failed. Any other but 0 says nothing of the mutant."""


class HuntFailedError(Exception):
    """The hunt itself went wrong: what it would say of a mutant means nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a tree."""

    green: int
    """How many seeds noticed nothing, before the one that did, if any."""
    red_seed: str | None
    """What was wrong with the next seed; None if none was red, or none was asked."""
    red_test: str | None
    """The test that failed; None if none did, or none was asked."""
    seconds: float

    @property
    def is_caught(self) -> bool:
        """Has anything noticed?"""
        return self.red_seed is not None or self.red_test is not None


def hunt(mutant: Mutant) -> Outcome:
    """Break the rule in a copy of this checkout; the first that notices. HuntFailedError."""
    with TemporaryDirectory(prefix=f"mutant-{mutant.name}-") as folder:
        tree = Path(folder)
        copy_tree(ROOT, tree)
        apply(mutant, tree)
        return judge(tree, SEEDS_MAX if mutant.is_simulated else 0, mutant.tests)


def judge_unbroken(mutants: Sequence[Mutant]) -> Outcome:
    """The same of the tree as it is, with all tests that these mutants name: none may be red."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    seeds = SEEDS_MAX if any(mutant.is_simulated for mutant in mutants) else 0
    with TemporaryDirectory(prefix="mutant-none-") as folder:
        tree = Path(folder)
        copy_tree(ROOT, tree)
        return judge(tree, seeds, tests)


def judge(tree: Path, seeds_max: int, tests: Sequence[str]) -> Outcome:
    """Simulate a tree, by so many seeds; test it too if these were green."""
    begun = time.monotonic()
    green, red_seed = _simulate(tree, seeds_max) if seeds_max else (0, None)
    red_test = _test(tree, tests) if tests and red_seed is None else None
    return Outcome(green, red_seed, red_test, time.monotonic() - begun)


def _simulate(tree: Path, count: int) -> tuple[int, str | None]:
    command = [sys.executable, "-m", "mutants.seeds", str(tree), str(count)]
    code, out, error = _run(command, tree, SIMULATION_LIMIT_S)
    results = [json.loads(line) for line in out.splitlines()]
    for green, result in enumerate(results):
        if result["red"] is not None:
            return green, result["red"]
    if code not in (0, None):
        raise HuntFailedError(f"the simulation did not run:\n{error[-2_000:]}")
    return len(results), None


def _test(tree: Path, tests: Sequence[str]) -> str | None:
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    code, out, error = _run([*pytest, *tests], tree, TESTS_LIMIT_S)
    if code in (0, None):
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+::\w+)", out, re.MULTILINE)
    if code != TESTS_FAILED or found is None:
        raise HuntFailedError(f"the tests did not run:\n{out[-2_000:]}{error[-2_000:]}")
    return found[1]


def _run(command: Sequence[str], tree: Path, limit_s: float) -> tuple[int | None, str, str]:
    """Exit code (None after the limit) and what was printed, by a process over that tree alone."""
    parts = (tree, tree / "tests", tree / "tests" / "simulation")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, parts)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            out, error = process.communicate(timeout=limit_s)
            return process.returncode, out, error
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
            return None, out, error
        except BaseException:
            process.kill()
            raise
