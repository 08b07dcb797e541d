"""Attribution of findings on a whole stage: the audit's report and the cross-check, by scenario.

Invariant: no finding is dropped. One that belongs to no scenario counts against those that broke
the stage, or else against all.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from chaos.backend import Backend
from chaos.cross_check import cross_checks
from chaos.scenario_run import log_ends_of
from chaos.segment import NOBODY, Segment, Shares, of_source, of_target, shares_of
from chaos.verdict import SHOWN_MAX, Shared, Witnessed, disagreements, total

Report = Mapping[str, Any]
"""What `delayd audit --json` prints."""


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
    counts = cross_checks(
        backend.bootstrap,
        backend.prefix,
        None if report is None else report["cut"]["offset"],
        range(len(segments)),
        partial(_part_of, segments),
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
    shares = Shares(tuple(Counter() for _ in witnessed), Counter())
    if report is not None:
        shares = shares_of(report, counts, segments)
        nobodys += [
            f"{count} {fault} by the audit, of no scenario"
            for fault, count in shares.nobodys.items()
        ]
        outcomes = [each.outcomes for each in witnessed]
        judged = None if None in outcomes else total(each or {} for each in outcomes)
        nobodys += disagreements(report, total(counts.values()), judged)
    blamed = [not each.is_quiescent for each in witnessed]
    is_broken = any(blamed)
    return [
        Shared(found, counts[n], nobodys if blamed[n] or not is_broken else ())
        for n, found in enumerate(shares.found)
    ]


def _part_of(segments: Sequence[Segment], source: str | None, topic: str) -> int:
    return of_target(segments, topic) if source is None else of_source(segments, source)
