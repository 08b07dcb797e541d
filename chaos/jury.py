"""The judges of a whole stage: the audit's report and the cross-check, divided among scenarios.

Invariant: what is nobody's is held against somebody: against who broke the stage, or else all.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from chaos.backend import Backend
from chaos.cross_check import cross_checks
from chaos.play import mark_of
from chaos.stretch import NOBODY, Shares, Stretch, of_source, of_target, shares_of
from chaos.verdict import SHOWN_MAX, Played, Shared, disagreements, total

Report = Mapping[str, Any]
"""What `delayd audit --json` prints."""


def jury(backend: Backend, played: Sequence[Played], report: Report | None) -> list[Shared]:
    """By the audit, if there is one, and the cross-check, over all that has been played."""
    marks = [*(each.begin for each in played), mark_of(backend)]
    stretches = [
        Stretch(begin, end, each.targets)
        for begin, end, each in zip(marks, marks[1:], played, strict=False)
    ]
    examples: dict[int, list[str]] = defaultdict(list)
    counts = cross_checks(
        backend.bootstrap,
        backend.prefix,
        None if report is None else report["cut"]["offset"],
        range(len(stretches)),
        partial(_part_of, stretches),
        lambda part, sentence: examples[part].append(sentence),
    )
    return [
        replace(each, examples=tuple(examples[n][:SHOWN_MAX]))
        for n, each in enumerate(shared_by(played, stretches, counts, report))
    ]


def shared_by(
    played: Sequence[Played],
    stretches: Sequence[Stretch],
    counts: Mapping[int, Mapping[str, int]],
    report: Report | None,
) -> list[Shared]:
    """What each of those who played answers for. What is nobody's is the fault of who broke the
    stage; if nobody has, of all."""
    nobodys = [
        f"{count} {name} by the cross-check, of no scenario"
        for name, count in counts.get(NOBODY, {}).items()
        if count
    ]
    shares = Shares(tuple(Counter() for _ in played), Counter())
    if report is not None:
        shares = shares_of(report, counts, stretches)
        nobodys += [
            f"{count} {fault} by the audit, of no scenario"
            for fault, count in shares.nobodys.items()
        ]
        outcomes = [each.outcomes for each in played]
        judged = None if None in outcomes else total(each or {} for each in outcomes)
        nobodys += disagreements(report, total(counts.values()), judged)
    blamed = [not each.is_at_rest for each in played]
    is_broken = any(blamed)
    return [
        Shared(found, counts[n], nobodys if blamed[n] or not is_broken else ())
        for n, found in enumerate(shares.found)
    ]


def _part_of(stretches: Sequence[Stretch], source: str | None, topic: str) -> int:
    return of_target(stretches, topic) if source is None else of_source(stretches, source)
