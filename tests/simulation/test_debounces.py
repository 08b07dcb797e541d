"""Debounces in whole clusters: what the seeds are for is met.

Source: docs/design/debounce.md.
"""

from collections import Counter
from pathlib import Path

import pytest
from seeded_tests import judged
from simulation_checker import Checker
from wishes_checker import LATER

SEEDS = range(1, 7)


def seen_in(seed: int, folder: Path) -> Counter[str]:
    """Play a seed to its end, and judge it; return what became of debounces."""
    _, judge = judged(seed, folder, debounces=True)
    return seen_by(judge)


def seen_by(judge: Checker) -> Counter[str]:
    rules, seen = judge.rules, Counter[str]()
    answered = {marker.source for marker in judge.answers}
    for message in judge.messages:
        if message.op != "debounce":
            continue
        run_ms, killed = rules.runs_ms[message.source], rules.targets_of[message.source]
        seen["quiet"] += message.source not in answered
        seen["joins"] += run_ms < message.append_ms
        seen["cut short"] += message.due_ms < message.append_ms + int(message.asked[:-2])
        seen["replaces another"] += any(m.op != "debounce" for m in killed)
        seen["came out before"] += any(judge.produced[m.source] for m in killed)
        seen["delivered"] += bool(judge.produced[message.source])
        for told in judge.verdicts[message.source]:
            seen[told["verdict"]] += told["verdict"] not in LATER
    return seen


@pytest.mark.long
def test_runs_are_joined_cut_short_and_answered(tmp_path: Path) -> None:
    """Rules: debounce-run, debounce-replaces, debounce-due, debounce-told"""
    seen = Counter[str]()
    for seed in SEEDS:
        seen += seen_in(seed, tmp_path / str(seed))
    for what in (
        *("quiet", "joins", "cut short", "replaces another", "came out before", "delivered"),
        *("replaced", "too-late", "scheduled"),
    ):
        assert seen[what] > 2, seen
