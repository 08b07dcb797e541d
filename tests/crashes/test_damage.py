"""Every damaged byte of a stopped wheel is told or harmless; never is anything lost in silence.

Here a part of it; `make wheel-damage` does 1,000 bits and 500 tails, of another wheel each time.
"""

from collections import Counter
from pathlib import Path

import pytest

from crashes.damage import Report, Target, flips, tails, told
from delayd.wheel.catalogue import Catalogue

SEED = 20_261_122
FLIPS = 80
TAILS = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tmp_path_factory.mktemp("damage"), SEED)


def outcomes(report: Report) -> Counter[str]:
    found: Counter[str] = Counter()
    for (_, outcome), count in report.outcomes.items():
        found[outcome] += count
    return found


def test_flipped_bits_are_told_or_harmless(target: Target) -> None:
    report = flips(target, SEED, FLIPS)
    assert report.problems == [], "\n".join(told("flips", report))
    found = outcomes(report)
    assert found.total() == FLIPS and found["silent"] == 0
    assert min(found[name] for name in ("refused", "unread", "same")) > 0


def test_torn_tails_are_told_or_harmless(target: Target) -> None:
    report = tails(target, SEED, TAILS)
    assert report.problems == [], "\n".join(told("tails", report))
    found = outcomes(report)
    assert found.total() == TAILS and found["silent"] == 0
    assert min(found[name] for name in ("refused", "unread", "same")) > 0


def test_what_is_lost_without_a_word_would_be_seen(target: Target) -> None:
    """A line of the catalogue is gone, and with the next start its file."""

    def lose(path: Path) -> None:
        catalogue = Catalogue(str(path.parent), create=False)
        slot = max(catalogue.segments()[0])
        catalogue._db.delete(b"s" + slot.to_bytes(8, "big"))
        # Or the wheel would miss it by itself.
        catalogue._db.delete(b"t")
        catalogue.close()

    outcome, is_reported, why = target.damaged(lose, Path("catalogue/CURRENT"))
    assert (outcome, is_reported) == ("silent", True)
    assert "1 frames fewer" in why


def test_a_wheel_that_is_not_damaged_is_the_same(target: Target) -> None:
    assert target.damaged(lambda path: None, Path("format.json")) == ("same", False, "")


@pytest.mark.parametrize("name", ["MANIFEST-*", "*.log"])
def test_a_longer_last_record_of_leveldb_is_told_or_an_earlier_checkpoint(
    target: Target, name: str
) -> None:
    """LevelDB takes it for one that was being written, and drops it without a word."""
    [path] = (target.whole / "catalogue").glob(name)
    data = path.read_bytes()
    at = last_record(data)
    for bit in range(16):
        if data[at + 4 + bit // 8] >> bit % 8 & 1:
            continue

        def lengthen(path: Path, bit: int = bit) -> None:
            longer = bytearray(data)
            longer[at + 4 + bit // 8] |= 1 << bit % 8
            path.write_bytes(longer)

        outcome, is_reported, why = target.damaged(lengthen, path.relative_to(target.whole))
        assert outcome in ("refused", "earlier"), f"bit {bit}: {outcome} {why}"
        assert is_reported, f"bit {bit}"


def last_record(log: bytes) -> int:
    """Where the last record of a log of LevelDB begins."""
    at = len(log) // 32_768 * 32_768
    while (after := at + 7 + int.from_bytes(log[at + 4 : at + 6], "little")) < len(log):
        at = after
    return at
