"""Reschedules in whole clusters: what the seeds are for is met.

Source: docs/design/rescheduling.md.
"""

from collections import Counter
from pathlib import Path

import pytest
from simulated.world import World
from simulation_checker import Checker
from structlog.testing import capture_logs

SEEDS = (*range(1, 6), 18, 20, 21)


def seen_in(seed: int, folder: Path) -> Counter[str]:
    """Play a seed to its end, and judge it; return what became of reschedules."""
    world = World(seed, folder, moves=True)
    try:
        with capture_logs():
            world.run()
        judge = world.judge()
        judge.check()
    finally:
        world.close()
    assert isinstance(judge, Checker)
    return judge.moves.seen


@pytest.mark.long
def test_messages_are_moved_overridden_held_and_found_too_late(tmp_path: Path) -> None:
    """Rules: reschedule-moves, reschedule-holds, reschedule-overridden"""
    seen = Counter[str]()
    for seed in SEEDS:
        seen += seen_in(seed, tmp_path / str(seed))
    for what in ("rescheduled", "too-late", "not-found", "moved", "overridden", "held"):
        assert seen[what] > 2, seen
