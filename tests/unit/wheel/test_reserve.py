"""The file that keeps room on a volume which another program fills."""

import errno
import os
from pathlib import Path

import pytest

from delayd.errors import DiskFullError
from delayd.wheel.disk import SystemDisk
from delayd.wheel.reserve import FILE, Reserve

LIMIT_BYTES = 1 << 20
PLENTY_BYTES = 10 * LIMIT_BYTES


class Volume(SystemDisk):
    """Tells what is free as a test says; may be unable to hold room."""

    free = PLENTY_BYTES
    can_reserve = True

    def free_bytes(self, path: str) -> int:
        return self.free

    def reserve(self, path: str, size_bytes: int) -> None:
        if not self.can_reserve:
            raise DiskFullError(f"cannot reserve: {os.strerror(errno.ENOSPC)}")
        super().reserve(path, size_bytes)


def taken_bytes(folder: Path) -> int:
    """What the reserve takes on the disk."""
    path = folder / FILE
    return path.stat().st_blocks * 512 if path.exists() else 0


def test_room_is_kept_where_there_is_plenty_and_given_back_where_there_is_none(
    tmp_path: Path,
) -> None:
    """docs/design/storage.md, Short of room.

    Rules: reserve-released
    """
    volume = Volume()
    reserve = Reserve(volume, str(tmp_path), LIMIT_BYTES)
    volume.free = 2 * LIMIT_BYTES
    reserve.tend()
    assert taken_bytes(tmp_path) == 0, "too little is free"
    volume.free = PLENTY_BYTES
    reserve.tend()
    assert taken_bytes(tmp_path) >= LIMIT_BYTES // 2
    volume.free = LIMIT_BYTES // 8
    assert not reserve.release_if_low(), "a checkpoint has room"
    later = Reserve(volume, str(tmp_path), LIMIT_BYTES)
    volume.free -= 1
    assert later.release_if_low() and taken_bytes(tmp_path) == 0
    assert not later.release_if_low(), "once"


def test_a_volume_that_can_hold_no_room_goes_without(tmp_path: Path) -> None:
    volume = Volume()
    volume.can_reserve = False
    reserve = Reserve(volume, str(tmp_path), LIMIT_BYTES)
    for _ in range(2):
        reserve.tend()
    assert not list(tmp_path.iterdir())


def test_a_file_that_a_crash_has_left_empty_is_filled(tmp_path: Path) -> None:
    """docs/design/storage.md, Short of room: also one of a smaller limit."""
    for left in (b"", b"short"):
        (tmp_path / FILE).write_bytes(left)
        volume = Volume()
        reserve = Reserve(volume, str(tmp_path), LIMIT_BYTES)
        volume.free = LIMIT_BYTES // 8
        assert not reserve.release_if_low()
        volume.free = PLENTY_BYTES
        reserve.tend()
        assert taken_bytes(tmp_path) >= LIMIT_BYTES // 2


def test_a_limit_of_nothing_keeps_no_room(tmp_path: Path) -> None:
    Reserve(Volume(), str(tmp_path), 0).tend()
    assert not list(tmp_path.iterdir())


def test_a_file_that_could_not_be_filled_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SystemDisk()
    monkeypatch.setattr("delayd.wheel.disk._call", lambda *_: errno.ENOSPC)
    with pytest.raises(DiskFullError):
        disk.reserve(str(tmp_path / FILE), LIMIT_BYTES)
    assert not list(tmp_path.iterdir())
