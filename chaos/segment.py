"""Segments of the logs, one for each scenario of a stage: they divide an audit's findings. Pure.

Scenarios of a stage run one after the other, and the cluster is quiescent between them. So each has
a segment of the buffer and of the frontier, and targets of its own. A finding belongs to the
scenario that sent the record it is about; if none did, to the one whose target the record lies in;
if it is about the frontier, to the one that ran at that step.

Invariant: no finding is dropped. One that belongs to no scenario counts against the whole stage.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.cross_check import WRONG

NOBODY: Final = -1
UNKNOWN: Final = "unknown"
"""A delivery that no request explains; the source that it names proves nothing."""


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The ends of the logs at a moment: the next offsets."""

    buffer: tuple[int, ...]
    """By partition."""
    frontier: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The records from `begin` up to, not including, `end`."""

    begin: LogEnds
    end: LogEnds
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
    """The findings, by segment in their order; `nobodys` is the rest."""

    found: tuple[Counter[str], ...]
    nobodys: Counter[str]


def of_source(segments: Sequence[Segment], source: str) -> int:
    """Return whose request that is, by number in the sequence, or NOBODY."""
    return next((n for n, each in enumerate(segments) if each.has_source(source)), NOBODY)


def of_target(segments: Sequence[Segment], topic: str) -> int:
    """Return whose target that is."""
    return next((n for n, each in enumerate(segments) if topic in each.targets), NOBODY)


def of_step(segments: Sequence[Segment], offset: int | None) -> int:
    """Return which scenario ran at that record of the frontier."""
    if offset is None:
        return NOBODY
    return next((n for n, each in enumerate(segments) if each.has_step(offset)), NOBODY)


def shares_of(
    audit: Mapping[str, Any], plain: Mapping[int, Mapping[str, int]], segments: Sequence[Segment]
) -> Shares:
    """An audit's JSON divided. It names few examples of each fault. Of the faults that the plain
    check counts too (`plain`, by segment or NOBODY), its division is taken where both count as
    many; what is beyond the examples of another fault is nobody's."""
    found: list[Counter[str]] = [Counter() for _ in segments]
    nobodys: Counter[str] = Counter(audit["found"])
    if len(segments) == 1:
        return Shares((nobodys,), Counter())
    divided = {name for name in WRONG if _total(plain, name) == nobodys[name]}
    whose = [
        (_owner(finding, segments), finding["fault"], 1)
        for finding in audit["examples"]
        if finding["fault"] not in divided
    ]
    whose += [(n, name, counts[name]) for n, counts in plain.items() for name in sorted(divided)]
    for number, fault, count in whose:
        if number != NOBODY:
            found[number][fault] += count
            nobodys[fault] -= count
    return Shares(tuple(+each for each in found), +nobodys)


def _owner(finding: Mapping[str, Any], segments: Sequence[Segment]) -> int:
    fault, source, topic = finding["fault"], finding["source"], finding["topic"]
    if fault == UNKNOWN:
        return of_target(segments, topic or "")
    if fault.startswith("frontier-"):
        return of_step(segments, finding["offset"])
    return of_source(segments, source or "")


def _total(plain: Mapping[int, Mapping[str, int]], name: str) -> int:
    return sum(counts[name] for counts in plain.values())
