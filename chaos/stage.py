"""A stage: one cluster on which several scenarios run, one after the other. Pure.

Building and auditing a cluster takes longer than most scenarios, so they share it. Scenarios that
need the same number of brokers share a stage, which has all that any of them needs. When one breaks
the stage, the others get a fresh one (stage_run.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import or_
from typing import Final

from chaos.scenario import Needs, Scenario

SCENARIOS_MAX: Final = 15
"""Scenarios on one stage, of a minute each. What is far from due must stay so (workload.FAR_MS), a
small disk (processes/disks.py) takes 10 MB of each, and one that breaks its stage takes few with
it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Scenarios in the order in which they run."""

    scenarios: tuple[Scenario, ...]

    @property
    def needs(self) -> Needs:
        """Of all of them together."""
        return reduce(or_, (scenario.needs for scenario in self.scenarios))


def staged(
    scenarios: Iterable[Scenario], scenarios_max: int = SCENARIOS_MAX, *, by_brokers: bool = True
) -> list[Stage]:
    """Return as few stages as can be, of about the same length; scenarios with similar needs run
    together. Not `by_brokers`: every cluster has as many as any of them needs."""

    def size(scenario: Scenario) -> int:
        return scenario.needs.brokers if by_brokers else 0

    def wishes(scenario: Scenario) -> tuple[int, bool, bool, bool]:
        needs = scenario.needs
        return (size(scenario), needs.is_wired, needs.is_clocked, needs.has_small_disks)

    return [
        Stage(tuple(part))
        for _, alike in groupby(sorted(scenarios, key=wishes), size)
        for part in _parts(list(alike), scenarios_max)
    ]


def _parts(group: Sequence[Scenario], scenarios_max: int) -> list[Sequence[Scenario]]:
    count = -(-len(group) // scenarios_max)
    cuts = [len(group) * number // count for number in range(count + 1)]
    return [group[cuts[number] : cuts[number + 1]] for number in range(count)]
