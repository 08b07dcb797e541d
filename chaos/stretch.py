"""Whose is what an audit of a whole stage found? Pure.

Scenarios of a stage play one after the other, and the cluster is at rest between them. So each has
a stretch of the buffer and of the frontier to itself, and targets of its own. A finding belongs to
the scenario that sent the record it is about; if nobody did, to the one whose target it lies in; if
it is about the frontier, to the one that played at that record.

Invariant: nothing is dropped: what is nobody's is counted, and is held against the whole stage.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.cross_check import WRONG

NOBODY: Final = -1
UNKNOWN: Final = "unknown"
"""A delivery of what nobody asked for; the source that it names proves nothing."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where the logs ended at a moment, and would go on."""

    buffer: tuple[int, ...]
    """By partition."""
    frontier: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """From one mark to another, the latter excluded."""

    begin: Mark
    end: Mark
    targets: frozenset[str]

    def has_source(self, source: str) -> bool:
        """`partition/offset` of a record of the buffer."""
        partition, slash, offset = source.partition("/")
        if not (slash and partition.isdigit() and offset.isdigit()):
            return False
        number = int(partition)
        if number >= len(self.begin.buffer):
            return False
        return self.begin.buffer[number] <= int(offset) < self.end.buffer[number]

    def has_step(self, offset: int) -> bool:
        """The offset of a frontier record."""
        return self.begin.frontier <= offset < self.end.frontier


@dataclass(frozen=True, slots=True)
class Shares:
    """What was found, by stretch in their order; `nobodys` is the rest."""

    found: tuple[Counter[str], ...]
    nobodys: Counter[str]


def of_source(stretches: Sequence[Stretch], source: str) -> int:
    """Whose request that is, by number in the sequence, or NOBODY."""
    return next((n for n, each in enumerate(stretches) if each.has_source(source)), NOBODY)


def of_target(stretches: Sequence[Stretch], topic: str) -> int:
    """Whose target that is."""
    return next((n for n, each in enumerate(stretches) if topic in each.targets), NOBODY)


def of_step(stretches: Sequence[Stretch], offset: int | None) -> int:
    """Who played at that record of the frontier."""
    if offset is None:
        return NOBODY
    return next((n for n, each in enumerate(stretches) if each.has_step(offset)), NOBODY)


def shares_of(
    audit: Mapping[str, Any], plain: Mapping[int, Mapping[str, int]], stretches: Sequence[Stretch]
) -> Shares:
    """An audit's JSON divided. It names few examples of each fault. Of the faults that the plain
    check counts too (`plain`, by stretch or NOBODY), its division is taken where both count as
    many; what is beyond the examples of another fault is nobody's."""
    found: list[Counter[str]] = [Counter() for _ in stretches]
    nobodys: Counter[str] = Counter(audit["found"])
    if len(stretches) == 1:
        return Shares((nobodys,), Counter())
    divided = {name for name in WRONG if _total(plain, name) == nobodys[name]}
    whose = [
        (_owner(finding, stretches), finding["fault"], 1)
        for finding in audit["examples"]
        if finding["fault"] not in divided
    ]
    whose += [(n, name, counts[name]) for n, counts in plain.items() for name in sorted(divided)]
    for number, fault, count in whose:
        if number != NOBODY:
            found[number][fault] += count
            nobodys[fault] -= count
    return Shares(tuple(+each for each in found), +nobodys)


def _owner(finding: Mapping[str, Any], stretches: Sequence[Stretch]) -> int:
    fault, source, topic = finding["fault"], finding["source"], finding["topic"]
    if fault == UNKNOWN:
        return of_target(stretches, topic or "")
    if fault.startswith("frontier-"):
        return of_step(stretches, finding["offset"])
    return of_source(stretches, source or "")


def _total(plain: Mapping[int, Mapping[str, int]], name: str) -> int:
    return sum(counts[name] for counts in plain.values())
