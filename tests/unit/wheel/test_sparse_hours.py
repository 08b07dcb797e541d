"""Hours of few messages, which are read where they are, and dense ones, which give room back."""

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_settings import LANES, PARTITIONS, SETTINGS
from step_pieces import messages_of
from wheel_disks import FailingDisk, remaining_files
from wheel_reading import checkpoint, entries_in, split_all

from delayd.errors import CorruptionError, DiskError
from delayd.node.delivery.planner import Planner
from delayd.wheel import Frame, FrameKind, files, near_hours, segments, slot_index
from delayd.wheel.disk import SystemDisk
from delayd.wheel.storage import Wheel
from replication.delivery_queue import StepLimits
from replication.frontier import first_frontier
from replication.rank import Rank

pytestmark = pytest.mark.usefixtures("either_path")

HOUR = 10
FIRST = 36_000
FIRST_MS = 1_000 * FIRST


def message(due_ms: int, offset: int, value: bytes = b"v", *, append_ms: int = 1) -> Frame:
    body = ("t", None, None, value, None, None, None)
    return Frame(due_ms, offset % PARTITIONS, offset, 0, FrameKind.MESSAGE, append_ms, body)


def frames_in(wheel: Wheel, slot: int) -> list[Frame]:
    return wheel.read(entries_in(wheel, slot))


def far_messages(count: int, value: bytes = b"v") -> list[Frame]:
    return [message(FIRST_MS + 907 * n % 9_000, n, value) for n in range(count)]


def test_a_sparse_hour_is_read_where_it_is_and_no_file_is_made(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/storage.md, Hour files.

    Rules: sparse-hours
    """
    monkeypatch.setattr(near_hours, "SPLIT_BYTES", 300)
    monkeypatch.setattr(slot_index, "SCAN_BYTES", 200)
    far = far_messages(200)
    wheel.append(far)
    checkpoint(wheel)
    assert wheel.slots() == [] and wheel.whole_below == FIRST
    split_all(wheel, FIRST_MS)
    assert wheel.whole_below is None and wheel.slots() == [FIRST + n for n in range(9)]
    # What comes for it now goes to its slots; one had nothing.
    direct = [message(FIRST_MS + 5, 300), message(FIRST_MS + 20_000, 301)]
    wheel.append(direct)
    assert {frame for slot in wheel.slots() for frame in frames_in(wheel, slot)} == {*far, *direct}
    for slot in wheel.slots():
        ranks = [frame[:3] for frame in frames_in(wheel, slot)]
        assert ranks == sorted(ranks)
        info = wheel.info(slot)
        assert info is not None and info.count == len(ranks)
    checkpoint(wheel)
    assert remaining_files(tmp_path) == {"10/hour.0", "10/36000.0", "10/36020.0"}
    wheel.forget(range(FIRST, FIRST + 3_600), [HOUR])
    checkpoint(wheel)
    assert remaining_files(tmp_path) == set() and wheel.stats().frames == 0


def test_what_was_forgotten_of_a_sparse_hour_is_there_again_after_a_start_until_the_hour_goes(
    tmp_path: Path,
) -> None:
    """No frontier has it delivered twice: it lies below all cursors."""
    wheel = Wheel.open(tmp_path, partitions=PARTITIONS)
    wheel.append(far_messages(100))
    split_all(wheel, FIRST_MS)
    wheel.pass_to(FIRST + 4)
    assert wheel.counts.total == 100 - sum(f.due_ms < FIRST_MS + 4_000 for f in far_messages(100))
    wheel.forget([FIRST, FIRST + 1])
    assert wheel.slots() == [FIRST + n for n in range(2, 9)]
    before = wheel.counts.total
    checkpoint(wheel)
    wheel.close()
    wheel = Wheel.open(tmp_path, partitions=PARTITIONS)
    split_all(wheel, FIRST_MS)
    assert wheel.slots() == [FIRST + n for n in range(9)]
    assert wheel.counts.total == before, "what is passed is not counted again"
    wheel.pass_to(FIRST + 9)
    assert wheel.counts.total == 0
    wheel.close()


def test_damage_in_a_sparse_hour_is_told_with_its_place_by_the_index_and_by_the_reader(
    wheel: Wheel, tmp_path: Path
) -> None:
    """docs/design/storage.md, Frames: what is broken is never skipped."""
    wheel.append(far_messages(20, b"v" * 100))
    checkpoint(wheel)
    path = tmp_path / "slots" / "10" / "hour.0"
    whole = path.read_bytes()
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 1
    path.write_bytes(broken)
    wheel.advance(FIRST_MS)
    with pytest.raises(CorruptionError, match="hour 10: the frame at bytes"):
        wheel.split_some()
    path.write_bytes(whole)
    split_all(wheel, FIRST_MS)
    entries = [entry for slot in wheel.slots() for entry in entries_in(wheel, slot)]
    path.write_bytes(broken)
    with pytest.raises(CorruptionError, match="hour 10: the frame at bytes"):
        wheel.read(entries)
    with pytest.raises(CorruptionError, match="hour 10: "):
        [entries_in(wheel, slot) for slot in wheel.slots()]


def test_a_sparse_hour_that_is_not_what_its_line_says_is_not_read(wheel: Wheel) -> None:
    wheel.append(far_messages(20))
    wheel.advance(FIRST_MS)
    wheel._hours.files[HOUR].digest += 1
    with pytest.raises(CorruptionError, match="hour 10: its file does not hold"):
        split_all(wheel, FIRST_MS)
    assert wheel.whole_below == FIRST


def test_late_arrivals_in_a_sparse_hour_are_found_at_a_takeover(wheel: Wheel) -> None:
    """docs/design/frontier.md, Takeover: the master before had not taken them in.

    Rules: late-arrival
    """
    wheel.append(far_messages(50))
    split_all(wheel, FIRST_MS)
    cursors = (Rank(FIRST_MS + 60_000, 0, 0),) * LANES
    frontier = replace(
        first_frontier(0, PARTITIONS, LANES), cursors=cursors, offsets=(20,) * PARTITIONS
    )
    planner = Planner(wheel, SETTINGS, frontier)
    delivered: list[int] = []
    for _ in range(100):
        plan = planner.plan(FIRST_MS + 61_000, (50,) * PARTITIONS, StepLimits())
        pieces = planner.begin(plan).pieces
        delivered += [frame.offset for frame in messages_of(pieces)]
    assert sorted(delivered) == list(range(20, 50))


def test_an_append_time_that_is_far_ahead_has_nothing_split(wheel: Wheel, tmp_path: Path) -> None:
    """It decides where messages go, and no more: a split is due by a time that the wheel is told.

    Rules: split-by-the-clock
    """
    wheel.append(far_messages(20))
    wheel.append([message(FIRST_MS + 500, 99, append_ms=2 * FIRST_MS)])
    assert not wheel.split_some()
    checkpoint(wheel)
    assert remaining_files(tmp_path) == {"10/hour.0", "10/36000.0"}
    assert wheel.whole_below == FIRST
    split_all(wheel, FIRST_MS)
    assert wheel.whole_below is None


def test_splits_are_not_held_while_a_dense_hour_waits_behind_a_sparse_one(wheel: Wheel) -> None:
    """docs/design/storage.md, Exports: the dense one may begin in a minute, and an export takes
    longer.

    Rules: splits-held
    """
    wheel._hours._sparse_bytes_max = 2_000
    wheel.append(far_messages(2))
    wheel.append([message(FIRST_MS + 3_600_000 + n, 100 + n, b"v" * 100) for n in range(40)])
    wheel.advance(FIRST_MS + 3_600_000)
    assert not wheel.hold_splits()
    while not wheel.hold_splits():
        wheel.split_some()
    assert wheel.whole_below is None and wheel.hours() == [HOUR]
    wheel.release_splits()


@pytest.mark.usefixtures("dense_hours")
def test_room_that_was_split_is_given_back_when_that_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dense hour does not need its room twice.

    Rules: split-room
    """
    monkeypatch.setattr(files, "PUNCH_BYTES_MIN", 64 * 1024)
    wheel = Wheel.open(tmp_path, partitions=PARTITIONS)
    wheel.append(far_messages(40, b"v" * 100_000))
    checkpoint(wheel)
    path = tmp_path / "slots" / "10" / "hour.0"
    before = path.stat()
    wheel.advance(FIRST_MS)
    for _ in range(3):
        assert wheel.split_some()
    start = wheel._hours.files[HOUR].start
    assert start > 1_000_000
    assert path.stat().st_blocks == before.st_blocks, "a crash now needs those bytes"
    checkpoint(wheel)
    found = path.stat()
    assert found.st_size == before.st_size
    assert found.st_blocks <= before.st_blocks - (start - 64 * 1024) // 512
    wheel.close()
    wheel = Wheel.open(tmp_path, partitions=PARTITIONS)
    split_all(wheel, FIRST_MS)
    held = {frame for slot in wheel.slots() for frame in frames_in(wheel, slot)}
    assert held == set(far_messages(40, b"v" * 100_000))
    wheel.close()


def test_a_file_system_that_cannot_give_room_back_keeps_it(tmp_path: Path) -> None:
    disk = SystemDisk()
    path = str(tmp_path / "file")
    file = disk.open(path, create=True)
    disk.append(file, b"x" * 10_000)
    for number, is_harmless in ((95, True), (38, True), (5, False)):

        def refuse(*_: Any, number: int = number) -> int:
            ctypes.set_errno(number)
            return -1

        disk._fallocate = refuse
        if is_harmless:
            disk.punch(file, 4_096)
        else:
            with pytest.raises(DiskError, match="cannot give back 4096 bytes"):
                disk.punch(file, 4_096)
    disk.close(file)


def test_what_a_signal_interrupts_is_called_again(tmp_path: Path) -> None:
    """A node that is told to end may be in the middle of a checkpoint."""
    disk = SystemDisk()
    file = disk.open(str(tmp_path / "file"), create=True)
    folder = disk.open_folder(str(tmp_path))
    calls = 0

    def interrupted_twice(*_: Any) -> int:
        nonlocal calls
        calls += 1
        ctypes.set_errno(4)
        return 0 if calls % 3 == 0 else -1

    disk._fallocate = disk._syncfs = interrupted_twice
    disk.punch(file, 4_096)
    disk.syncfs(folder)
    assert calls == 6
    disk.close(file)
    disk.close(folder)


def test_no_batch_writes_out_many_tails_because_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held meanwhile: 3,600 new files take a second."""
    monkeypatch.setattr(segments, "TAIL_BYTES_MAX", 40_000)
    disk = FailingDisk()
    wheel = Wheel.open(tmp_path, partitions=PARTITIONS, disk=disk)
    most = 0
    for number in range(600):
        disk.calls.clear()
        wheel.append([message(1_000 * number, number)])
        most = max(most, disk.calls.count("append"))
    assert wheel.stats().tail_bytes <= 20_100
    assert most <= 3 and len(remaining_files(tmp_path)) > 200
    wheel.close()
