"""One run of a stage: build a cluster, run its scenarios, audit them all at once, take it down.

Building and auditing a cluster takes longer than most scenarios, so they share it, one after the
other. Scenarios that need the same number of brokers share a stage, which has all that any of them
needs. A scenario after which the cluster does not become quiescent ends the run: the scenarios so
far are audited, and the others are left for a fresh stage.

Invariant: the cluster is taken down, whatever happens, and each scenario of the stage has a result
or is left. A scenario that could not be judged has a result that says why.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import or_
from pathlib import Path
from typing import Final

from chaos.attribution import Report, attribute
from chaos.backend import Backend
from chaos.history import now_ms
from chaos.scenario import Needs, Scenario
from chaos.scenario_run import run_scenario
from chaos.verdict import BOTH, WITNESS, Result, Shared, Witnessed, no_verdict, result_of

HISTORY: Final = "history.jsonl"
LOGS: Final = "logs"
SCENARIOS_MAX: Final = 15
"""Scenarios on one stage, of a minute each. What is far from due must stay so (workload.FAR_MS), a
small disk (processes/harm.py) takes 10 MB of each, and one that breaks its stage takes few with
it."""

Stage = Sequence[Scenario]
"""Scenarios in the order in which they run."""

RunScenario = Callable[[Backend, Scenario, int, Path, Callable[[str], None]], Witnessed]


@dataclass(frozen=True, slots=True)
class Run:
    """How stages are run. `out` gets what a run leaves for people: histories, logs of failures."""

    seed: int
    out: Path
    make: Callable[[Path, Needs, int], Backend]
    tell: Callable[[str], None] = lambda _sentence: None
    with_audit: bool = True
    """Without: quicker, and the witness alone says so. Replicas are not compared then."""
    by_brokers: bool = True
    """Whether clusters with more brokers cost more, and are only for scenarios that need them."""
    run_scenario: RunScenario = run_scenario
    judge: Callable[[Backend, Sequence[Witnessed], Report | None], list[Shared]] = attribute

    def folder_of(self, scenario: Scenario) -> Path:
        """Its own in `out`."""
        return self.out / f"{scenario.name}-{self.seed}"


def staged(
    scenarios: Iterable[Scenario], scenarios_max: int = SCENARIOS_MAX, *, by_brokers: bool = True
) -> list[Stage]:
    """Return as few stages as can be, of about the same length; scenarios with similar needs run
    together, those that begin with older rules, have a bridge or shards, or move brokers by
    themselves. Not `by_brokers`: every cluster has as many as any of them needs."""

    def size(scenario: Scenario) -> tuple[int, ...]:
        needs = scenario.needs
        brokers = needs.brokers if by_brokers else 0
        alone = (needs.has_older_rules, needs.has_bridge, needs.has_moving_brokers)
        return (*alone, needs.shards, brokers)

    def wishes(scenario: Scenario) -> tuple[tuple[int, ...], bool, bool, bool]:
        needs = scenario.needs
        return (size(scenario), needs.is_wired, needs.is_clocked, needs.has_small_disks)

    return [
        part
        for _, alike in groupby(sorted(scenarios, key=wishes), size)
        for part in _parts(list(alike), scenarios_max)
    ]


def _parts(group: Stage, scenarios_max: int) -> list[Stage]:
    count = -(-len(group) // scenarios_max)
    cuts = [len(group) * number // count for number in range(count + 1)]
    return [group[cuts[number] : cuts[number + 1]] for number in range(count)]


def needs_of(stage: Stage) -> Needs:
    """Return what is enough for all of its scenarios."""
    return reduce(or_, (scenario.needs for scenario in stage))


def results(run: Run, scenarios: Iterable[Scenario]) -> Iterator[Result]:
    """Of all scenarios, a stage at a time."""
    stages = staged(scenarios, by_brokers=run.by_brokers)
    while stages:
        stage = stages.pop(0)
        found, left = _tried(run, stage)
        yield from found
        if left:
            run.tell(f"{len(left)} scenarios go on with a fresh cluster")
            stages.insert(0, left)


def _tried(run: Run, stage: Stage) -> tuple[list[Result], Stage]:
    """Return the results of the scenarios that ran, and those that did not. An error that ends a
    run before its verdict is the verdict of all that ran, or of all if none has."""
    course = _Course(run, stage)
    found: list[Result] = []
    try:
        found = course.go()
    except Exception as error:
        concerned = stage[: course.begun] or stage
        why = f"{type(error).__name__}: {error}"
        found = [no_verdict(each, run.seed, course.begun_ms, why) for each in concerned]
    finally:
        course.leave(found)
    return found, stage[len(found) :]


class _Course:
    def __init__(self, run: Run, stage: Stage) -> None:
        self._run = run
        self._stage = stage
        self._directory = Path(tempfile.mkdtemp(prefix="delayd-chaos-"))
        self.begun_ms = now_ms()
        self.begun = 0
        self.witnessed: list[Witnessed] = []

    def go(self) -> list[Result]:
        run, backend = self._run, None
        begun_s = time.monotonic()
        try:
            backend = run.make(self._directory / "cluster", needs_of(self._stage), run.seed)
            run.tell(f"a cluster is up after {time.monotonic() - begun_s:.0f} s")
            self._run_all(backend)
            report, troubles = self._audit(backend)
            shared = run.judge(backend, self.witnessed, report)
            troubles += [f"left running: {each}" for each in backend.down()]
        finally:
            if backend is not None:
                backend.down()
        return [
            result_of(
                *(scenario, run.seed, backend.name, witnessed),
                replace(each, troubles=(*each.troubles, *troubles)),
                judges=WITNESS if report is None else BOTH,
            )
            for scenario, witnessed, each in zip(self._stage, self.witnessed, shared, strict=False)
        ]

    def leave(self, found: Sequence[Result]) -> None:
        """Logs of a cluster on which something failed are kept in the folder of the first that
        did, histories in those of all that did."""
        concerned = zip(self._stage, found, strict=False)
        failed = [each.name for each, result in concerned if not result.ok]
        for scenario in self._stage:
            folder = self._run.folder_of(scenario)
            if scenario.name not in failed:
                (folder / HISTORY).unlink(missing_ok=True)
                with suppress(OSError):
                    folder.rmdir()
            elif scenario.name == failed[0]:
                shutil.rmtree(folder / LOGS, ignore_errors=True)
                with suppress(OSError):
                    shutil.copytree(self._directory / "cluster" / LOGS, folder / LOGS)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run_all(self, backend: Backend) -> None:
        run = self._run
        for number, scenario in enumerate(self._stage, 1):
            run.tell(f"{number} of {len(self._stage)}: {scenario.name}")
            self.begun = number
            folder = run.folder_of(scenario)
            folder.mkdir(parents=True, exist_ok=True)
            found = run.run_scenario(backend, scenario, run.seed, folder / HISTORY, run.tell)
            self.witnessed.append(found)
            run.tell(f"{scenario.name} ran for {found.wall_s:.0f} s")
            if not found.is_quiescent:
                break

    def _audit(self, backend: Backend) -> tuple[Report | None, list[str]]:
        """The report, or why there is none."""
        if not self._run.with_audit:
            return None, []
        begun_s = time.monotonic()
        self._run.tell("auditing")
        try:
            report = backend.audit()
        except Exception as error:
            return None, [f"no audit: {type(error).__name__}: {error}"]
        self._run.tell(f"audited in {time.monotonic() - begun_s:.0f} s")
        return report, []
