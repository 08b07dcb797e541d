"""docs/design/mutants.md: what caught each mutant, as a page that is written and read back.

Read back, because a run of some mutants leaves the rows of the others as they were.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.hunt import Outcome
from mutants.mutant import SEEDS_MAX, Mutant

SIMULATION = "simulation"
SURVIVED = "**nothing**"
HEAD = "| mutant | the rule that it breaks | caught by | seeds |"


@dataclass(frozen=True, slots=True)
class Row:
    """One mutant's line."""

    name: str
    rule: str
    """With the link to its section."""
    caught_by: str
    """SIMULATION, a test as `path::name`, or SURVIVED."""
    seeds: str
    """How many it took, the one that caught it included."""

    def __str__(self) -> str:
        caught_by = self.caught_by if self.caught_by == SURVIVED else f"`{self.caught_by}`"
        cells = (f"`{self.name}`", self.rule, caught_by, self.seeds)
        return f"| {' | '.join(cells)} |"

    @property
    def seeds_needed(self) -> int:
        """Until simulation caught it."""
        return int(self.seeds)


def rule_of(mutant: Mutant) -> str:
    """The rule and its section, as a page of docs/design says it."""
    heading = mutant.source.partition("#")[2].replace("-", " ")
    return f"{mutant.rule} ([{heading}]({mutant.source}))"


def row_of(mutant: Mutant, outcome: Outcome) -> Row:
    """The row of a mutant that was hunted."""
    caught_by = outcome.red_test or SURVIVED
    seeds = f"none of {outcome.green}" if mutant.is_simulated else "-"
    if outcome.red_seed is not None:
        caught_by, seeds = SIMULATION, str(outcome.green + 1)
    return Row(mutant.name, rule_of(mutant), caught_by, seeds)


def read_rows(path: Path) -> dict[str, Row]:
    """The rows of a page, by mutant; none if there is no page."""
    text = path.read_text() if path.is_file() else ""
    rows = {}
    for line in text.splitlines():
        if found := re.match(r"\| `([\w-]+)` \| (.+) \| (.+) \| (.+) \|$", line):
            name, rule, caught_by, seeds = found.groups()
            rows[name] = Row(name, rule, caught_by.strip("`"), seeds)
    return rows


def page_of(mutants: Sequence[Mutant], rows: Mapping[str, Row]) -> str:
    """The page: those of the mutants that have been hunted, in the catalogue's order."""
    known = [rows[mutant.name] for mutant in mutants if mutant.name in rows]
    caught = [row for row in known if row.caught_by != SURVIVED]
    seeds = [row.seeds_needed for row in caught if row.caught_by == SIMULATION]
    mean, most = sum(seeds) / max(1, len(seeds)), max(seeds, default=0)
    table = "\n".join(map(str, known))
    return f"""# Mutants

A mutant is delayd with one of its safety rules broken: a small change of one or two files, applied
to a copy of the tree. `make mutants` hunts them all and writes this page. A mutant that survives
shows a missing test.

**{len(caught)} of {len(known)} are caught**: {len(seeds)} by simulation, after {mean:.1f} seeds
on average and {most} at most; {len(caught) - len(seeds)} by a test of their own.

1. The same seeds and tests judge the unbroken tree: all of them must be green.
2. Each mutant gets a copy of the tree, and is [simulated](simulation.md) seed by seed until one is
   red, {SEEDS_MAX} at most.
3. Where the simulation does not reach the rule, or has not noticed in so many seeds, the mutant is
   not simulated (`-`): the [catalogue](../../tests/mutants/catalogue/__init__.py) names its tests.

{HEAD}
|---|---|---|---|
{table}
"""
