"""A disk that fails stops the wheel for good. Source: docs/design, the wheel, checkpoint."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wheel_disks import IO_ERROR, NO_SPACE, FailingDisk, FullDisk, FullOnceDisk, contents
from wheel_reading import PROGRESS, checkpoint, entries_in

from delayd.errors import CorruptionError, DiskError, DiskFullError
from delayd.wheel import Frame, FrameKind, segments
from delayd.wheel.checkpoint import FILES_SYNCED_ONE_BY_ONE_MAX
from delayd.wheel.disk import OpenFile, SystemDisk
from delayd.wheel.storage import Wheel


def messages(count: int, first: int = 0) -> list[Frame]:
    return [
        Frame(1_000 * (first + n), 0, first + n, 5, FrameKind.MESSAGE, 1, (b"x" * 100,))
        for n in range(count)
    ]


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def wheel(tmp_path: Path, disk: FailingDisk) -> Iterator[Wheel]:
    made = Wheel.open(tmp_path, partitions=2, disk=disk)
    yield made
    made.close()


def is_poisoned(wheel: Wheel) -> None:
    calls: list[Callable[[], object]] = [
        lambda: wheel.append(messages(1)),
        wheel.slots,
        lambda: wheel.next_slot(0),
        lambda: wheel.info(0),
        lambda: entries_in(wheel, 0),
        lambda: wheel.read([]),
        lambda: wheel.pending_replies((0, 0)),
        lambda: wheel.forget([]),
        lambda: wheel.forget_pending_replies((0, 0)),
        lambda: wheel.begin_checkpoint(PROGRESS),
        wheel.free_bytes,
    ]
    for call in calls:
        with pytest.raises(DiskError, match="stopped after an earlier failure"):
            call()


@pytest.mark.parametrize("call", ["append", "create", "make_folder"])
def test_a_failed_write_at_begin_stops_the_wheel(
    wheel: Wheel, disk: FailingDisk, call: str
) -> None:
    wheel.append(messages(3))
    disk.failing = {call: IO_ERROR}
    with pytest.raises(DiskError, match="Input/output error"):
        wheel.begin_checkpoint(PROGRESS)
    disk.failing = {}
    is_poisoned(wheel)


def files_in(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in directory.rglob("slots/*/*")}


@pytest.mark.parametrize(
    ("call", "is_new", "places"),
    [
        ("append", True, 3),
        ("append", False, 3),
        ("create", True, 3),
        ("make_folder", True, 1),
    ],
)
def test_a_full_disk_leaves_the_wheel_as_it_was_and_the_next_checkpoint_tries_again(
    tmp_path: Path, call: str, is_new: bool, places: int
) -> None:
    """docs/design/storage.md, Failures: each write that may meet a full disk, in turn.

    Rules: full-disk-taken-back
    """
    for place in range(places):
        folder = tmp_path / str(place)
        disk = FullOnceDisk()
        wheel = Wheel.open(folder, partitions=2, disk=disk)
        if not is_new:
            wheel.append(messages(3))
            checkpoint(wheel)
        wheel.append(messages(3))
        expected = contents(wheel)
        disk.fails_at = (call, place)
        with pytest.raises(DiskFullError):
            wheel.begin_checkpoint(PROGRESS)
        assert wheel.is_refused and contents(wheel) == expected
        assert files_in(folder) == {
            wheel._layout.segment_file(segment.name): segment.written
            for segment in wheel._segments.all()
            if segment.written
        }
        checkpoint(wheel)
        assert not wheel.is_refused
        wheel.close()
        again = Wheel.open(folder, partitions=2)
        assert contents(again)["slots"] == expected["slots"]
        again.close()


def test_tails_that_do_not_fit_on_a_full_disk_wait_in_memory(
    wheel: Wheel, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules: full-disk-taken-back"""
    monkeypatch.setattr(segments, "TAIL_BYTES_MAX", 1_000)
    disk.failing = {"append": NO_SPACE}
    entries = wheel.append(messages(50))
    assert wheel.is_refused and wheel.read(entries) == messages(50)
    disk.failing = {}
    checkpoint(wheel)
    assert not wheel.is_refused and wheel.stats().tail_bytes == 0
    assert wheel.read(entries) == messages(50)


def test_a_file_that_cannot_be_removed_for_want_of_room_is_removed_later(
    wheel: Wheel, disk: FailingDisk
) -> None:
    wheel.append(messages(2))
    checkpoint(wheel)
    wheel.forget([0, 1])
    disk.failing = {"unlink": NO_SPACE}
    checkpoint(wheel)
    assert wheel.stats().files_to_unlink == 2
    disk.failing = {}
    checkpoint(wheel)
    assert wheel.stats().files_to_unlink == 0


def test_a_write_that_cannot_be_taken_back_stops_the_wheel(wheel: Wheel, disk: FailingDisk) -> None:
    wheel.append(messages(1))
    checkpoint(wheel)
    wheel.append(messages(1))
    disk.failing = {"append": NO_SPACE, "truncate": NO_SPACE}
    with pytest.raises(DiskError, match="No space left"):
        wheel.begin_checkpoint(PROGRESS)
    disk.failing = {}
    is_poisoned(wheel)


def test_a_full_disk_at_a_sync_stops_the_wheel(wheel: Wheel, disk: FailingDisk) -> None:
    """docs/design/storage.md, Failures: it is not known then what the disk has."""
    wheel.append(messages(1))
    disk.failing = {"fdatasync": NO_SPACE}
    pending = wheel.begin_checkpoint(PROGRESS)
    with pytest.raises(DiskError, match="No space left"):
        pending.sync()
    disk.failing = {}
    is_poisoned(wheel)


def test_the_error_of_a_full_disk_names_file_and_remedy(tmp_path: Path) -> None:
    disk = FullDisk()
    file = disk.open(str(tmp_path / "file"), create=True)
    with pytest.raises(DiskFullError, match=r"cannot append .*No space left.*free space on"):
        disk.append(file, b"x")
    disk.close(file)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_the_remedy_of_a_failing_volume_holds_for_a_trimmed_buffer_too(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "makedirs", fails)
    with pytest.raises(DiskError) as found:
        SystemDisk().make_folder(str(tmp_path / "slots"))
    assert "a healthy volume, empty" in found.value.remedy
    assert "from the buffer, or copies another node's" in found.value.remedy


@pytest.mark.parametrize("call", ["fdatasync", "sync_folder"])
def test_a_failed_sync_stops_the_wheel_and_the_checkpoint_never_was(
    tmp_path: Path, call: str
) -> None:
    disk = FailingDisk()
    wheel = Wheel.open(tmp_path, partitions=2, disk=disk)
    wheel.append(messages(3))
    checkpoint(wheel)
    before = contents(wheel)
    wheel.append(messages(3, first=3))
    disk.failing = {call: IO_ERROR}
    pending = wheel.begin_checkpoint(PROGRESS._replace(frontier=b"new"))
    with pytest.raises(DiskError, match="Input/output error"):
        pending.sync()
    disk.failing = {}
    is_poisoned(wheel)
    with pytest.raises(DiskError, match="stopped after an earlier failure"):
        wheel.finish_checkpoint(pending)
    wheel.close()
    again = Wheel.open(tmp_path, partitions=2)
    assert contents(again) == before
    again.close()


def test_many_dirty_files_take_one_syncfs_and_its_failure_stops_the_wheel(
    wheel: Wheel, disk: FailingDisk
) -> None:
    many = FILES_SYNCED_ONE_BY_ONE_MAX + 1
    wheel.append(messages(many))
    disk.calls.clear()
    checkpoint(wheel)
    assert [call for call in disk.calls if "sync" in call] == ["syncfs"]
    wheel.append(messages(many))
    pending = wheel.begin_checkpoint(PROGRESS)
    disk.failing = {"syncfs": IO_ERROR}
    with pytest.raises(DiskError, match="Input/output error"):
        pending.sync()
    is_poisoned(wheel)


def test_few_dirty_files_are_synced_one_by_one_and_then_their_names(
    wheel: Wheel, disk: FailingDisk
) -> None:
    wheel.append(messages(2))
    disk.calls.clear()
    checkpoint(wheel)
    syncs = [call for call in disk.calls if "sync" in call]
    assert syncs == ["fdatasync", "fdatasync", "sync_folder", "sync_folder"]
    wheel.append(messages(2))
    disk.calls.clear()
    checkpoint(wheel)
    assert [call for call in disk.calls if "sync" in call] == ["fdatasync", "fdatasync"]


def test_a_failed_leveldb_write_stops_the_wheel(wheel: Wheel) -> None:
    wheel.append(messages(1))
    pending = wheel.begin_checkpoint(PROGRESS)
    wheel._catalogue.close()
    with pytest.raises(RuntimeError, match="closed"):
        pending.sync()
    is_poisoned(wheel)


def test_a_failed_unlink_stops_the_wheel(wheel: Wheel, disk: FailingDisk) -> None:
    wheel.append(messages(1))
    checkpoint(wheel)
    wheel.forget([0])
    disk.failing = {"unlink": IO_ERROR}
    with pytest.raises(DiskError, match="Input/output error"):
        checkpoint(wheel)
    is_poisoned(wheel)


def test_a_frame_that_cannot_be_encoded_stops_the_wheel(wheel: Wheel) -> None:
    with pytest.raises(TypeError):
        wheel.append([*messages(1), messages(1)[0]._replace(body=(object(),))])
    is_poisoned(wheel)


def test_damage_that_a_reader_finds_does_not_stop_the_wheel(wheel: Wheel, tmp_path: Path) -> None:
    wheel.append(messages(2))
    checkpoint(wheel)
    path = tmp_path / "slots" / "0" / "0.0"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptionError):
        entries_in(wheel, 0)
    assert wheel.read(entries_in(wheel, 1)) == messages(2)[1:]


def test_every_call_of_the_real_disk_turns_an_os_error_into_a_disk_error_with_a_remedy(
    tmp_path: Path,
) -> None:
    disk = SystemDisk()
    nowhere = str(tmp_path / "no" / "where")
    closed = OpenFile(nowhere, 999_999)
    (tmp_path / "file").write_bytes(b"")
    calls: list[Callable[[], object]] = [
        lambda: disk.make_folder(str(tmp_path / "file" / "x")),
        lambda: disk.list_folder(nowhere),
        lambda: disk.remove_folder(nowhere),
        lambda: disk.open(nowhere, create=False),
        lambda: disk.open(nowhere, create=True),
        lambda: disk.open_folder(nowhere),
        lambda: disk.close(closed),
        lambda: disk.append(closed, b"x"),
        lambda: disk.pread(closed, 1, 0),
        lambda: disk.fdatasync(closed),
        lambda: disk.sync_folder(nowhere),
        lambda: disk.syncfs(closed),
        lambda: disk.truncate(nowhere, 0),
        lambda: disk.rename(nowhere, nowhere),
        lambda: disk.unlink(nowhere),
        lambda: disk.free_bytes(nowhere),
    ]
    for call in calls:
        with pytest.raises(DiskError) as found:
            call()
        assert str(tmp_path) in found.value.message
        assert found.value.remedy
        assert isinstance(found.value.__cause__, OSError)


def test_an_existing_file_is_never_created_over(tmp_path: Path) -> None:
    disk = SystemDisk()
    path = str(tmp_path / "file")
    disk.close(disk.open(path, create=True))
    with pytest.raises(DiskError, match="File exists"):
        disk.open(path, create=True)
