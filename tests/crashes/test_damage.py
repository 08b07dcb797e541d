"""Every damaged byte of a stopped wheel is reported or harmless; nothing is lost silently.

This is a small run; `make wheel-damage` does 1,000 bits and 500 tails, of another wheel each time.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from crashes.damage import Report, Target, flips, tails, told
from delayd.wheel.catalogue import Catalogue

SEED = 20_261_122


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tmp_path_factory.mktemp("damage"), SEED)


@pytest.mark.long
@pytest.mark.parametrize(("harm", "count"), [(flips, 80), (tails, 40)])
def test_flipped_bits_and_torn_tails_are_told_or_harmless(
    target: Target, harm: Callable[[Target, int, int], Report], count: int
) -> None:
    report = harm(target, SEED, count)
    assert report.problems == [], "\n".join(told(harm.__name__, report))
    found: Counter[str] = Counter()
    for (_, outcome), number in report.outcomes.items():
        found[outcome] += number
    assert found.total() == count and found["silent"] == 0
    assert min(found[name] for name in ("refused", "unread", "same")) > 0


def test_what_is_lost_without_a_word_would_be_seen(target: Target) -> None:
    """A line of the catalogue is lost, and at the next start its file."""

    def lose(path: Path) -> None:
        catalogue = Catalogue(str(path.parent), create=False)
        slot = max(name.number for name, *_ in catalogue.segments() if not name.is_hour)
        catalogue._db.delete(b"s" + slot.to_bytes(8, "big"))
        # With the totals, the wheel would miss the line.
        catalogue._db.delete(b"t")
        catalogue.close()

    outcome, is_reported, why = target.damaged(lose, Path("catalogue/CURRENT"))
    assert (outcome, is_reported) == ("silent", True)
    assert "1 frames fewer" in why


def test_a_wheel_that_is_not_damaged_is_the_same(target: Target) -> None:
    assert target.damaged(lambda path: None, Path("format.json")) == ("same", False, "")
