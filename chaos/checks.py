"""The check of the checker: runs with one guarantee broken on purpose, which must be red for it.

Invariant: a run that came to no verdict is no check.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from chaos.catalogue import scenarios
from chaos.scenario import Load, Scenario
from chaos.verdict import BOTH, Result

LOAD: Final = Load(requests=3_000, spread_ms=12_000)


class Check(NamedTuple):
    """A sabotage by name, the scenario in which it shows, and what must be said of it: one of
    these, by each of the judges."""

    sabotage: str
    scenario: str
    model: str
    audit: str


CHECKS: Final = (
    Check("drop", "calm", "no outcome", "lost"),
    Check("double", "calm", "delivered and delivered", "duplicate"),
    Check("alter", "calm", "another value", "altered"),
    Check("reorder", "calm", "order: ", "order"),
    Check("early", "calm", "early", "early"),
    Check("lie", "calm", "model: ", "verdict-false"),
    Check("unfenced", "freeze-master", "model: ", "frontier-"),
)


def scenario_of(check: Check, seed: int) -> Scenario:
    """The small scenario in which it must be found."""
    calm = Scenario("calm", "Nothing is struck.", (), recovery_ms=0)
    known = {**scenarios(seed), calm.name: calm}
    name = f"{check.scenario}-{check.sabotage}"
    return replace(known[check.scenario], name=name, load=LOAD, failovers_min=0)


def missed(check: Check, result: Result) -> list[str]:
    """By whom of those who judged it was not found; empty if the checkers are well."""
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
