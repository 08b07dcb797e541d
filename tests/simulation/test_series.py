"""Series in whole clusters: what the seeds are for is met, and a master that errs is found out.

Source: docs/design/series.md.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from seeded_tests import judged

from delayd.node.delivery import series_step
from delayd.node.delivery.step_writer import StepWriter
from delayd.request import Series
from delayd.request.recurrence.series import Found, following
from delayd.wheel import Frame

SEEDS = range(1, 5)
SECOND_MS = 1_000


def seen_in(seed: int, folder: Path) -> Counter[str]:
    """Play a seed to its end, and judge it; return what became of series."""
    _, judge = judged(seed, folder)
    return judge.series.seen + Counter(cut=len(judge.series.cut))


@pytest.mark.long
def test_occurrences_are_delivered_found_late_and_the_last_of_their_series(tmp_path: Path) -> None:
    """Rules: series-go-on, series-end"""
    seen = Counter[str]()
    for seed in SEEDS:
        seen += seen_in(seed, tmp_path / str(seed))
    assert seen["delivered"] > 5 and seen["late"] > 5 and seen["ended"] > 5, seen


def too_late(series: Series, due_ms: int, now_ms: int) -> Found:
    return _following(series, due_ms + 6 * SECOND_MS, now_ms)


def same_number(series: Series, due_ms: int, now_ms: int) -> Found:
    found, next_ms = _following(series, due_ms, now_ms)
    return Found(found._replace(occurrence=series.occurrence), next_ms)


_following = following


@pytest.mark.long
@pytest.mark.parametrize("errs", [too_late, same_number])
def test_an_occurrence_that_is_passed_over_or_misnumbered_is_found(
    errs: Callable[[Series, int, int], Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_step, "following", errs)
    with pytest.raises(AssertionError, match=r" after |ended"):
        for seed in SEEDS:
            seen_in(seed, tmp_path / str(seed))


@pytest.mark.long
def test_a_series_that_breaks_off_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: StepWriter, frame: Frame, series: Series) -> None:
        """Write nothing."""

    monkeypatch.setattr(StepWriter, "_go_on", forget)
    with pytest.raises(AssertionError, match=r" after |ended"):
        for seed in SEEDS:
            seen_in(seed, tmp_path / str(seed))
