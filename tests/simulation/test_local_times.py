"""Local times in whole clusters: what the seeds are for is met, and a wrong master is found out.

Source: docs/design/local-times.md.
"""

from collections import Counter
from pathlib import Path

import pytest
from seeded_tests import judged

from delayd.node.delivery import local_step
from delayd.request.recurrence.local_times import resolved_ms

SEEDS = range(1, 5)
SECOND_MS = 1_000
AGAIN_MS = 3 * SECOND_MS
"""Before it is due a local time is resolved again, in these runs."""


@pytest.fixture(autouse=True)
def again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_step, "AGAIN_MS", AGAIN_MS)


def seen_in(seed: int, folder: Path) -> Counter[str]:
    """Play a seed to its end, and judge it; return what became of local times."""
    _, judge = judged(seed, folder)
    return judge.local.seen


@pytest.mark.long
def test_local_times_are_resolved_again_and_delivered(tmp_path: Path) -> None:
    """Rules: local-times"""
    seen = Counter[str]()
    for seed in SEEDS:
        seen += seen_in(seed, tmp_path / str(seed))
    assert seen["delivered"] > 5 and seen["expected"] > 5 and seen["over"] > 5, seen
    assert seen["final"] > seen["delivered"] / 2, seen


def an_hour_early(text: str, zone: str) -> int:
    return resolved_ms(text, zone) - 3_600_000


@pytest.mark.long
def test_a_master_that_errs_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_step, "resolved_ms", an_hour_early)
    with pytest.raises(AssertionError, match="the clock shows it at"):
        for seed in SEEDS:
            seen_in(seed, tmp_path / str(seed))
