"""The filters of LevelDB's tables save reads, and change no answer."""

from contextlib import suppress
from pathlib import Path

import pytest
from wheel_disks import flip

from delayd.errors import CorruptionError
from delayd.wheel import catalogue
from delayd.wheel.catalogue import Catalogue

KNOWN, FILTER_NAME = 300, b"filter.leveldb.BuiltinBloomFilter2"


def key_of(number: int) -> bytes:
    return b"i\x00\x01order-%d" % number


def filled(folder: Path, first: int = 0) -> None:
    """Its lines lie in a table, not in a log."""
    with_lines = Catalogue(str(folder), create=True)
    with_lines.put_lines([(key_of(first + n), b"%d" % n) for n in range(KNOWN)])
    with_lines.close()
    compacted = Catalogue(str(folder), create=False)
    compacted._db.compact_range()
    compacted.close()


def filters_in(folder: Path) -> int:
    return sum(FILTER_NAME in table.read_bytes() for table in folder.glob("*.ldb"))


def answers(folder: Path) -> list[bytes | None]:
    opened = Catalogue(str(folder), create=False)
    found = [opened.note(key_of(n)) for n in range(2 * KNOWN)]
    opened.close()
    return found


def test_a_catalogue_without_filters_is_read_on_and_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(catalogue, "BLOOM_BITS", 0)
        filled(tmp_path)
        before = answers(tmp_path)
    assert filters_in(tmp_path) == 0
    assert answers(tmp_path) == before == [b"%d" % n for n in range(KNOWN)] + [None] * KNOWN
    filled(tmp_path)
    assert filters_in(tmp_path) == 1
    assert answers(tmp_path) == before


def test_a_damaged_filter_hides_no_id(tmp_path: Path) -> None:
    filled(tmp_path)
    before = answers(tmp_path)
    [table] = tmp_path.glob("*.ldb")
    name_at = table.read_bytes().index(FILTER_NAME)
    # Before the index of the blocks lies the filter: 10 bits of each key.
    for place in range(name_at - KNOWN * catalogue.BLOOM_BITS // 8, name_at, 3):
        flip(table, place)
        with suppress(CorruptionError):
            assert answers(tmp_path) == before
        flip(table, place)
