"""Attribution of findings on a whole stage: the audit's report and the cross-check, by scenario.

Scenarios of a stage run one after the other, and the cluster is quiescent between them. So each has
a segment of the buffer and of the frontier, and targets of its own. A finding belongs to the
scenario that sent the record it is about; if none did, to the one whose target the record lies in;
if it is about the frontier, to the one that ran at that step.

Invariant: no finding is dropped. One that belongs to no scenario counts against those that broke
the stage, or else against all.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from chaos.backend import Backend
from chaos.cross_check import WRONG, cross_checks, cut_of
from chaos.scenario_run import log_ends_of
from chaos.verdict import SHOWN_MAX, LogEnds, Shared, Witnessed, disagreements, total

NOBODY: Final = -1
UNKNOWN: Final = "unknown"
"""A delivery that no request explains; the source that it names proves nothing."""

Report = Mapping[str, Any]
"""What `delayd audit --json` prints."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The records from `begin` up to, not including, `end`."""

    begin: LogEnds
    end: LogEnds
    targets: frozenset[str]

    def has_source(self, source: str) -> bool:
        """`partition/offset` of a record of the buffer."""
        place = re.fullmatch(r"(\d+)/(\d+)", source)
        if place is None or int(place[1]) >= len(self.begin.buffer):
            return False
        number = int(place[1])
        return self.begin.buffer[number] <= int(place[2]) < self.end.buffer[number]

    def has_step(self, partition: int, offset: int) -> bool:
        """The place of a frontier record; of what was not there at the beginning, any."""
        begin, end = ((*ends.frontier, *[0] * partition) for ends in (self.begin, self.end))
        return begin[partition] <= offset < end[partition]


def of_source(segments: Sequence[Segment], source: str) -> int:
    """Return whose request that is, by number in the sequence, or NOBODY."""
    return next((n for n, each in enumerate(segments) if each.has_source(source)), NOBODY)


def of_target(segments: Sequence[Segment], topic: str) -> int:
    """Return whose target that is."""
    return next((n for n, each in enumerate(segments) if topic in each.targets), NOBODY)


def of_step(segments: Sequence[Segment], partition: int | None, offset: int | None) -> int:
    """Return which scenario ran at that record of the frontier."""
    if partition is None or offset is None:
        return NOBODY
    found = (n for n, each in enumerate(segments) if each.has_step(partition, offset))
    return next(found, NOBODY)


def shares_of(
    audit: Mapping[str, Any], plain: Mapping[int, Mapping[str, int]], segments: Sequence[Segment]
) -> tuple[list[Counter[str]], Counter[str]]:
    """Return an audit's findings by segment, and what is nobody's. It names few examples of each
    fault. Of the faults that the plain check counts too (`plain`, by segment or NOBODY), its
    division is taken where both count as many; what is beyond the examples of another fault is
    nobody's."""
    found: list[Counter[str]] = [Counter() for _ in segments]
    nobodys: Counter[str] = Counter(audit["found"])
    if len(segments) == 1:
        return [nobodys], Counter()
    divided = {name for name in WRONG if total(plain.values())[name] == nobodys[name]}
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
    return [+each for each in found], +nobodys


def attribute(
    backend: Backend, witnessed: Sequence[Witnessed], report: Report | None
) -> list[Shared]:
    """Return the findings of the audit, if there is one, and of the cross-check, by scenario."""
    ends = [*(each.begin for each in witnessed), log_ends_of(backend)]
    segments = [
        Segment(begin, end, each.targets)
        for begin, end, each in zip(ends, ends[1:], witnessed, strict=False)
    ]
    examples: dict[int, list[str]] = defaultdict(list)

    def part_of(source: str | None, topic: str) -> int:
        return of_target(segments, topic) if source is None else of_source(segments, source)

    counts = cross_checks(
        backend.bootstrap,
        backend.prefix,
        None if report is None else cut_of(report),
        range(len(segments)),
        part_of,
        lambda part, sentence: examples[part].append(sentence),
    )
    return [
        replace(each, examples=tuple(examples[n][:SHOWN_MAX]))
        for n, each in enumerate(shared_by(witnessed, segments, counts, report))
    ]


def shared_by(
    witnessed: Sequence[Witnessed],
    segments: Sequence[Segment],
    counts: Mapping[int, Mapping[str, int]],
    report: Report | None,
) -> list[Shared]:
    """Return what each scenario answers for. A finding of no scenario is the fault of those that
    broke the stage; if none has, of all."""
    nobodys = [
        f"{count} {name} by the cross-check, of no scenario"
        for name, count in counts.get(NOBODY, {}).items()
        if count
    ]
    found = [Counter[str]() for _ in witnessed]
    if report is not None:
        found, rest = shares_of(report, counts, segments)
        nobodys += [f"{n} {fault} by the audit, of no scenario" for fault, n in rest.items()]
        outcomes = [each.outcomes for each in witnessed]
        judged = None if None in outcomes else total(each or {} for each in outcomes)
        nobodys += disagreements(report, total(counts.values()), judged)
    is_broken = not all(each.is_quiescent for each in witnessed)
    return [
        Shared(found[n], counts[n], () if is_broken and each.is_quiescent else nobodys)
        for n, each in enumerate(witnessed)
    ]


def _owner(finding: Mapping[str, Any], segments: Sequence[Segment]) -> int:
    fault, source, topic = finding["fault"], finding["source"], finding["topic"]
    if fault == UNKNOWN:
        return of_target(segments, topic or "")
    if fault.startswith("frontier-"):
        return of_step(segments, finding["partition"], finding["offset"])
    return of_source(segments, source or "")
