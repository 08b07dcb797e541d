"""The check of the checker: with one guarantee broken on purpose, judges must be red for it.

All checks run on one cluster, one after the other, and share an audit; which guarantee is broken
is switched between them. What leaves the frontier broken comes last.

Invariant: a run that came to no verdict is no check.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from chaos.backend import Backend
from chaos.catalogue import scenarios
from chaos.processes.cluster import ProcessCluster
from chaos.processes.sabotaged_node import Sabotage, write_sabotage
from chaos.scenario import Load, Needs, Scenario
from chaos.scenario_run import run_scenario
from chaos.stage_run import Run, results
from chaos.verdict import BOTH, Result, Witnessed

LOAD: Final = Load(requests=600, spread_ms=6_000)
SETTLE_MS: Final = 8_000
"""What is dropped has no outcome, and two masters no rest, however long one waits."""


class Check(NamedTuple):
    """A sabotage, the scenario in which it shows, and what must be said of it, by each judge."""

    sabotage: Sabotage
    scenario: str
    model: str
    audit: str

    @property
    def name(self) -> str:
        """Of its run."""
        return f"{self.scenario}-{self.sabotage.name.lower()}"


CHECKS: Final = (
    Check(Sabotage.DROP, "calm", "no outcome", "lost"),
    Check(Sabotage.DOUBLE, "calm", "delivered and delivered", "duplicate"),
    Check(Sabotage.ALTER, "calm", "another value", "altered"),
    Check(Sabotage.REORDER, "calm", "order: ", "order"),
    Check(Sabotage.EARLY, "calm", "early", "early"),
    Check(Sabotage.LIE, "calm", "model: ", "verdict-false"),
    Check(Sabotage.UNREAD, "terminate-master", "cross-check: ", "frontier-back"),
    Check(Sabotage.UNFENCED, "freeze-master", "model: ", "frontier-"),
)


def scenario_of(check: Check, seed: int) -> Scenario:
    """The small scenario in which it must be found."""
    calm = Scenario("calm", "Nothing is struck.", (), recovery_ms=0)
    known = {**scenarios(seed), calm.name: calm}
    struck = known[check.scenario]
    return replace(
        struck,
        name=check.name,
        strikes=struck.strikes[:1],
        load=LOAD,
        failovers_min=0,
        settle_ms=SETTLE_MS,
    )


def checked(
    seed: int, out: Path, tell: Callable[[str], None], *, with_audit: bool = True
) -> dict[Check, Result]:
    """Return the result of each check; `missed` tells whether it was found. `out` as in Run."""
    folder = Path(tempfile.mkdtemp(prefix="delayd-chaos-checks-"))
    file = folder / "sabotage"
    check_of = {check.name: check for check in CHECKS}

    def make(directory: Path, needs: Needs, seed: int) -> Backend:
        write_sabotage(file, None)
        return ProcessCluster(directory, needs, seed, sabotage_file=file)

    def run_sabotaged(backend: Backend, scenario: Scenario, *rest: Any) -> Witnessed:
        write_sabotage(file, check_of[scenario.name].sabotage)
        try:
            return run_scenario(backend, scenario, *rest)
        finally:
            write_sabotage(file, None)

    run = Run(seed, out, make, tell, with_audit=with_audit, run_scenario=run_sabotaged)
    try:
        found = results(run, [scenario_of(check, seed) for check in CHECKS])
        return {check_of[result.scenario]: result for result in found}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def missed(check: Check, result: Result) -> list[str]:
    """Return the judges that did not find it; empty if the checkers are well."""
    if any(problem.startswith("no verdict") for problem in result.problems):
        return [f"no verdict: {result.problems}"]
    found = []
    if not any(check.model in each for each in result.problems if not each.startswith("audit")):
        found.append(f"the witness said nothing of {check.model!r}")
    has_audit = result.judges == BOTH
    said = [each for each in result.problems if each.startswith("audit")]
    if has_audit and not any(check.audit in each for each in said):
        found.append(f"the audit said nothing of {check.audit!r}")
    return found
