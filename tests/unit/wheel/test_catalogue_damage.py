"""A catalogue whose files are lost or damaged is found out when a wheel is opened again."""

import shutil
from pathlib import Path

import pytest
from filled_wheels import filled, message, slot_file
from wheel_disks import ObservedDatabase, contents, flip, remaining_files
from wheel_reading import checkpoint

from delayd.errors import CorruptionError
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.storage import Wheel


@pytest.mark.parametrize("victim", ["", "CURRENT", "MANIFEST-*"])
def test_a_lost_leveldb_says_to_rebuild_from_the_buffer(tmp_path: Path, victim: str) -> None:
    filled(tmp_path)
    if victim:
        for path in (tmp_path / "catalogue").glob(victim):
            path.unlink()
    else:
        shutil.rmtree(tmp_path / "catalogue")
    with pytest.raises(CorruptionError, match="lost or damaged") as found:
        Wheel.open(tmp_path, partitions=2)
    assert "rebuilt from the buffer" in found.value.remedy
    assert slot_file(tmp_path).exists()


@pytest.mark.parametrize("name", ["MANIFEST-*", "*.log"])
def test_a_record_that_leveldb_takes_for_a_torn_write_is_found(tmp_path: Path, name: str) -> None:
    """With a longer length the last record of a log would be dropped, and the slots in it."""
    filled(tmp_path)
    Wheel.open(tmp_path, partitions=2).close()
    wheel = Wheel.open(tmp_path, partitions=2)
    wheel.append([message(6_000, 11)])
    checkpoint(wheel)
    wheel.close()
    (path,) = (tmp_path / "catalogue").glob(name)
    data = path.read_bytes()
    at = 0
    while (after := at + 7 + int.from_bytes(data[at + 4 : at + 6], "little")) < len(data):
        at = after
    flip(path, at + 5, 4)
    with pytest.raises(CorruptionError, match="a record with a wrong length"):
        Wheel.open(tmp_path, partitions=2)
    assert remaining_files(tmp_path) == {"0/5.0", "0/6.0"}


@pytest.mark.parametrize("lost", [b"s" + (5).to_bytes(8, "big"), b"h" + (20).to_bytes(8, "big")])
def test_a_line_that_leveldb_has_lost_is_missed(tmp_path: Path, lost: bytes) -> None:
    filled(tmp_path)
    wheel = Wheel.open(tmp_path, partitions=2)
    wheel.append([message(72_000_000, 11)])
    checkpoint(wheel)
    wheel.close()
    catalogue = Catalogue(str(tmp_path / "catalogue"), create=False)
    catalogue._db.delete(lost)
    catalogue.close()
    with pytest.raises(CorruptionError, match="the last checkpoint counted 1 slots and 1 hours"):
        Wheel.open(tmp_path, partitions=2)
    assert remaining_files(tmp_path) == {"0/5.0", "20/hour.0"}


def test_a_flipped_byte_in_a_leveldb_table_is_found_or_harmless(tmp_path: Path) -> None:
    filled(tmp_path / "whole")
    wheel = Wheel.open(tmp_path / "whole", partitions=2)
    before = contents(wheel)
    wheel.close()
    (table,) = (tmp_path / "whole" / "catalogue").glob("*.ldb")
    size = table.stat().st_size
    found = 0
    for position in range(size):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "whole", copy)
        flip(copy / "catalogue" / table.name, position)
        try:
            wheel = Wheel.open(copy, partitions=2)
        except CorruptionError as error:
            found += 1
            assert "lost or damaged" in error.message
            assert slot_file(copy).exists(), "files were removed on the word of a damaged catalogue"
        else:
            assert contents(wheel) == before
            wheel.close()
        shutil.rmtree(copy)
    assert found > size / 2


@pytest.mark.parametrize("newer_tables", [0, 1, 2])
def test_damage_at_which_plyvels_iterator_ends_without_an_error_is_found(
    tmp_path: Path, newer_tables: int
) -> None:
    wheel = Wheel.open(tmp_path, partitions=2)
    wheel.append([message(1_000 * n, n) for n in range(500)])
    checkpoint(wheel)
    wheel.close()
    for _ in range(newer_tables):
        wheel = Wheel.open(tmp_path, partitions=2)
        checkpoint(wheel)
        wheel.close()
    Wheel.open(tmp_path, partitions=2).close()
    table = min((tmp_path / "catalogue").glob("*.ldb"))
    flip(table, table.read_bytes().index(b"frontier"))
    with pytest.raises(CorruptionError, match="lost or damaged"):
        Wheel.open(tmp_path, partitions=2)
    assert len(remaining_files(tmp_path)) == 500


def test_a_scan_that_does_not_end_at_progress_was_cut_short(tmp_path: Path) -> None:
    filled(tmp_path)
    catalogue = Catalogue(str(tmp_path / "catalogue"), create=False)
    assert [line.name.number for line in catalogue.segments()] == [5]
    catalogue._db = ObservedDatabase(catalogue._db, lost=1)
    with pytest.raises(CorruptionError, match="it ends at b't"):
        catalogue.segments()
    catalogue.close()


def test_every_batch_is_synced(wheel: Wheel) -> None:
    observed = ObservedDatabase(wheel._catalogue._db)
    wheel._catalogue._db = observed
    checkpoint(wheel)
    assert observed.batches == [{"sync": True}]
