"""A stage: one cluster on which several scenarios play, one after the other. Pure.

To build a cluster and to audit it takes longer than most scenarios, so they share: clusters with as
many brokers have a stage in common, which has all that any of its scenarios needs. One that breaks
the stage leaves the others to a fresh one (run.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Final

from chaos.scenario import Needs, Scenario

PLAYED_MAX: Final = 15
"""Scenarios on one stage, of a minute each. What is far from due must stay so (workload.FAR_MS), a
small disk (processes/disks.py) takes 10 MB of each, and who breaks a stage takes few with him."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Scenarios in the order in which they play."""

    scenarios: tuple[Scenario, ...]

    @property
    def needs(self) -> Needs:
        """Of all of them together."""
        return reduce(or_, (scenario.needs for scenario in self.scenarios))


def staged(
    scenarios: Iterable[Scenario], played_max: int = PLAYED_MAX, *, by_brokers: bool = True
) -> list[Stage]:
    """As few stages as can be, of about the same length; whose needs are alike play together.
    Not `by_brokers`: every cluster has as many as any of them needs."""
    alike = sorted(scenarios, key=_wishes)
    if not by_brokers:
        return [Stage(tuple(part)) for part in _parts(alike, played_max)] if alike else []
    sizes = sorted({scenario.needs.brokers for scenario in alike})
    stages = []
    for brokers in sizes:
        group = [scenario for scenario in alike if scenario.needs.brokers == brokers]
        stages += [Stage(tuple(part)) for part in _parts(group, played_max)]
    return stages


def _wishes(scenario: Scenario) -> tuple[bool, bool, bool]:
    needs = scenario.needs
    return (needs.is_wired, needs.is_clocked, needs.has_small_disks)


def _parts(group: Sequence[Scenario], played_max: int) -> list[Sequence[Scenario]]:
    count = -(-len(group) // played_max)
    cuts = [len(group) * number // count for number in range(count + 1)]
    return [group[cuts[number] : cuts[number + 1]] for number in range(count)]
