"""Opening a wheel again: what a crash left behind, and what damage is found."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import msgpack
import pytest
from filled_wheels import filled, message, slot_file
from wheel_disks import PowerlessDisk, contents, flip, make_older, remaining_files
from wheel_reading import PROGRESS, checkpoint, entries_in

from delayd.errors import CorruptionError, DiskError
from delayd.wheel import Frame, FrameKind, Progress
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.storage import Wheel


def test_a_wheel_is_after_recovery_what_it_was_at_its_last_checkpoint(tmp_path: Path) -> None:
    wheel = Wheel.open(tmp_path, partitions=2)
    wheel.append(
        [message(5_000, 1), Frame(6_000, 1, 2, 0, FrameKind.PENDING_REPLY, 6_000, (None, ""))]
    )
    checkpoint(wheel)
    before = contents(wheel)
    wheel.append([message(5_000, 3), message(9_000, 4)])
    wheel.forget([6])
    wheel.begin_checkpoint(PROGRESS._replace(frontier=b"newer"))
    wheel.close()
    again = Wheel.open(tmp_path, partitions=2)
    assert contents(again) == before
    assert remaining_files(tmp_path) == {"0/5.0", "0/6.0"}
    again.close()


def test_a_new_wheel_has_no_progress_and_opening_it_again_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        wheel = Wheel.open(tmp_path / "deep" / "er", partitions=2)
        assert wheel.progress is None
        assert wheel.slots() == []
        wheel.close()


def test_a_torn_tail_is_cut_to_the_catalogued_length(tmp_path: Path) -> None:
    filled(tmp_path)
    length = slot_file(tmp_path).stat().st_size
    with slot_file(tmp_path).open("ab") as file:
        file.write(b"\x30\x00\x00\x00torn")
    wheel = Wheel.open(tmp_path, partitions=2)
    assert slot_file(tmp_path).stat().st_size == length
    entries = wheel.append([message(5_500, 99)])
    assert entries[0].position == length
    checkpoint(wheel)
    assert len(entries_in(wheel, 5)) == 11
    wheel.close()


def test_a_checkpoint_outlives_any_number_of_losses_of_power(tmp_path: Path) -> None:
    (tmp_path / "graves").mkdir()
    for seed in range(10):
        directory = tmp_path / str(seed)
        disk = PowerlessDisk(tmp_path / "graves")
        wheel = Wheel.open(directory, partitions=2, disk=disk)
        wheel.append([message(5_000 + n, n) for n in range(3)])
        checkpoint(wheel)
        before = contents(wheel)
        wheel.append([message(5_500, 9)])
        wheel.begin_checkpoint(PROGRESS)
        for _ in range(3):
            wheel.close()
            disk.lose_power(Random(seed))
            wheel = Wheel.open(directory, partitions=2, disk=disk)
            assert contents(wheel) == before
        wheel.close()


def test_files_that_the_catalogue_does_not_know_are_removed(tmp_path: Path) -> None:
    filled(tmp_path)
    for name in ("0/5.1", "0/6.0", "3/10800.0"):
        path = tmp_path / "slots" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    Wheel.open(tmp_path, partitions=2).close()
    assert remaining_files(tmp_path) == {"0/5.0"}
    assert not (tmp_path / "slots" / "3").exists()


def test_a_removal_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/trimmed.md, A checkpoint that the log does not reach."""
    filled(tmp_path)
    wheel = Wheel.open(tmp_path, partitions=2)

    def refuse(path: str, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("delayd.wheel.recovery.shutil.rmtree", refuse)
        with pytest.raises(DiskError, match="is being removed: Permission denied"):
            wheel.discard()
        with pytest.raises(DiskError, match="is being removed: Permission denied"):
            Wheel.open(tmp_path, partitions=2)
    wheel = Wheel.open(tmp_path, partitions=2)
    assert wheel.progress is None
    wheel.close()


@pytest.mark.parametrize("removed", ["", "slots/0", "catalogue"])
def test_the_removal_of_a_wheel_that_was_cut_short_goes_on(tmp_path: Path, removed: str) -> None:
    """docs/design/trimmed.md, A checkpoint that the log does not reach."""
    filled(tmp_path)
    (tmp_path / "format.json").rename(tmp_path / "format.json.discarded")
    if removed:
        shutil.rmtree(tmp_path / removed)
    wheel = Wheel.open(tmp_path, partitions=2)
    assert wheel.progress is None and wheel.slots() == []
    checkpoint(wheel)
    wheel.discard()
    assert {path.name for path in tmp_path.iterdir()} == {"slots"}
    wheel = Wheel.open(tmp_path, partitions=2)
    assert wheel.progress is None
    wheel.close()


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    names = {"note.txt", "0/README", "lost/5.0"}
    for name in names:
        path = tmp_path / "slots" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    wheel = Wheel.open(tmp_path, partitions=2)
    wheel.forget([5])
    checkpoint(wheel)
    wheel.close()
    assert remaining_files(tmp_path) == names


def test_a_missing_file_names_slot_and_bytes(tmp_path: Path) -> None:
    length = sum(entry.length for entry in filled(tmp_path))
    slot_file(tmp_path).unlink()
    with pytest.raises(CorruptionError, match=f"slot 5: .* is missing; bytes 0 to {length}"):
        Wheel.open(tmp_path, partitions=2)


def test_a_short_file_names_slot_and_bytes(tmp_path: Path) -> None:
    length = sum(entry.length for entry in filled(tmp_path))
    slot_file(tmp_path).write_bytes(slot_file(tmp_path).read_bytes()[:-1])
    with pytest.raises(
        CorruptionError, match=f"slot 5: .* bytes {length - 1} to {length} are lost, of 10 frames"
    ):
        Wheel.open(tmp_path, partitions=2)


def test_a_failed_recovery_releases_the_directory(tmp_path: Path) -> None:
    filled(tmp_path)
    hidden = slot_file(tmp_path).rename(tmp_path / "aside")
    with pytest.raises(CorruptionError):
        Wheel.open(tmp_path, partitions=2)
    hidden.rename(slot_file(tmp_path))
    Wheel.open(tmp_path, partitions=2).close()


FLIPPED = {"length": 0, "high length": 3, "crc": 4, "flags": 10, "lane": 13, "due": 33, "body": 50}


@pytest.mark.parametrize("byte", FLIPPED.values(), ids=FLIPPED.keys())
def test_a_flipped_byte_is_found_by_entries_and_by_read(tmp_path: Path, byte: int) -> None:
    entries = filled(tmp_path, count=3)
    start = entries[1].position
    assert start + byte < entries[1].position + entries[1].length
    flip(slot_file(tmp_path), start + byte, 5)
    wheel = Wheel.open(tmp_path, partitions=2)
    with pytest.raises(CorruptionError, match=f"slot 5: the frame at bytes {start} to .*: 2$"):
        try:
            entries_in(wheel, 5)
        except CorruptionError as error:
            raise CorruptionError(error.message) from error
    with pytest.raises(CorruptionError, match=f"slot 5: the frame at bytes {start} to"):
        wheel.read(entries)
    assert wheel.read([entries[0], entries[2]]) == [message(5_000, 0), message(5_002, 2)]
    wheel.close()


def test_a_file_that_is_cut_under_a_running_wheel_is_found(wheel: Wheel, tmp_path: Path) -> None:
    entries = wheel.append([message(5_000 + n, n) for n in range(3)])
    checkpoint(wheel)
    slot_file(tmp_path).write_bytes(b"")
    for attempt in (lambda: entries_in(wheel, 5), lambda: wheel.read(entries)):
        with pytest.raises(CorruptionError, match=r"slot 5: the frame at bytes 0 to .* is cut off"):
            attempt()


def test_an_unknown_format_version_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "format.json").write_text(json.dumps({"format": 99, "partitions": 2}))
    stray = tmp_path / "slots" / "0" / "6.0"
    stray.write_bytes(b"a later format may know it")
    with pytest.raises(DiskError, match="wheel format 99; this delayd knows"):
        Wheel.open(tmp_path, partitions=2)
    assert stray.exists()


def test_another_partition_count_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(DiskError, match="a buffer of 2 partitions, not 3"):
        Wheel.open(tmp_path, partitions=3)


def test_a_damaged_format_file_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "format.json").write_text("{")
    with pytest.raises(CorruptionError, match=r"format\.json is damaged"):
        Wheel.open(tmp_path, partitions=2)


@pytest.mark.parametrize("has_catalogue", [True, False])
def test_a_wheel_without_its_format_file_is_refused(tmp_path: Path, has_catalogue: bool) -> None:
    filled(tmp_path)
    (tmp_path / "format.json").unlink()
    if not has_catalogue:
        shutil.rmtree(tmp_path / "catalogue")
    with pytest.raises(CorruptionError, match="empty its data directory"):
        Wheel.open(tmp_path, partitions=2)
    assert slot_file(tmp_path).exists()


def test_a_creation_that_was_cut_short_is_completed(tmp_path: Path) -> None:
    Wheel.open(tmp_path, partitions=2).close()
    (tmp_path / "format.json").rename(tmp_path / "format.json.new")
    Wheel.open(tmp_path, partitions=2).close()
    assert (tmp_path / "format.json").exists()


def test_a_checkpoint_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    """docs/design/frontier.md, Optional fields.

    Rules: needed-features
    """
    filled(tmp_path)
    catalogue = Catalogue(str(tmp_path / "catalogue"), create=False)
    values = (*Progress((0, 0), (0, 0), (0, 0), b""), "later")
    catalogue._db.put(b"z", msgpack.packb(values))
    catalogue.close()
    with pytest.raises(DiskError, match="newest version of delayd that has run"):
        Wheel.open(tmp_path, partitions=2)


def test_a_wheel_of_the_format_before_is_taken_over(tmp_path: Path) -> None:
    """Format 4 knew no totals and no hours."""
    filled(tmp_path)
    make_older(tmp_path)
    wheel = Wheel.open(tmp_path, partitions=2)
    assert wheel.counts.hours == {0: {"": 10}}, "counted anew"
    wheel.pass_to(6)
    assert wheel.counts.total == 0
    assert len(entries_in(wheel, 5)) == 10
    checkpoint(wheel)
    wheel.close()
    assert json.loads((tmp_path / "format.json").read_text())["format"] == 5
    Wheel.open(tmp_path, partitions=2).close()


def test_a_broken_hour_is_found_when_it_is_split_and_nothing_of_it_is_lost(
    wheel: Wheel, tmp_path: Path
) -> None:
    wheel.append([message(72_000_000 + n, n) for n in range(20)])
    checkpoint(wheel)
    path = tmp_path / "slots" / "20" / "hour.0"
    flip(path, -3)
    wheel.advance(72_000_000)
    with pytest.raises(
        CorruptionError, match=r"hour 20: the frame at bytes \d+ to \d+ has a wrong"
    ):
        wheel.split_some()
    info = wheel.hour_info(20)
    assert info is not None and info.count == 20
    assert wheel.slots() == [] and path.exists()


def test_an_hour_that_is_not_what_its_line_says_is_found_at_the_end_of_its_split(
    wheel: Wheel,
    tmp_path: Path,
) -> None:
    wheel.append([message(72_000_000, n) for n in range(3)])
    checkpoint(wheel)
    path = tmp_path / "slots" / "20" / "hour.0"
    data = path.read_bytes()
    size = len(data) // 3
    path.write_bytes(data[:size] + data[:size] + data[2 * size :])
    wheel.advance(72_000_000)
    assert wheel.split_some()
    with pytest.raises(CorruptionError, match="hour 20: its file does not hold the frames"):
        wheel.split_some()
    assert path.exists()


def test_a_second_process_is_told_that_the_directory_is_in_use(
    wheel: Wheel, tmp_path: Path
) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from delayd.errors import DiskError; from delayd.wheel.storage import Wheel\n"
        "try: Wheel.open(Path(sys.argv[1]), partitions=2)\n"
        "except DiskError as error: print(type(error).__name__, error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout
    assert told.startswith("DiskError ")
    assert "in use by another process" in told
    with pytest.raises(DiskError, match="in use by another process"):
        Wheel.open(tmp_path, partitions=2)
