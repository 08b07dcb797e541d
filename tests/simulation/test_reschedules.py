"""Reschedules in whole clusters: what the seeds are for is met.

Source: docs/design/rescheduling.md.
"""

from collections import Counter
from pathlib import Path

import pytest
from seeded_tests import judged

SEEDS = (*range(1, 6), 18, 20, 21)


def seen_in(seed: int, folder: Path) -> Counter[str]:
    """Play a seed to its end, and judge it; return what became of reschedules."""
    _, judge = judged(seed, folder, moves=True)
    return judge.moves.seen


@pytest.mark.long
def test_messages_are_moved_overridden_held_and_found_too_late(tmp_path: Path) -> None:
    """Rules: reschedule-moves, reschedule-holds, reschedule-overridden"""
    seen = Counter[str]()
    for seed in SEEDS:
        seen += seen_in(seed, tmp_path / str(seed))
    for what in ("rescheduled", "too-late", "not-found", "moved", "overridden", "held"):
        assert seen[what] > 2, seen
