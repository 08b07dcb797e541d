"""The wheel in one life: what goes in comes out, in rank order."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from wheel_disks import CountingDisk, FailingDisk, remaining_files
from wheel_reading import PROGRESS, checkpoint, entries_in

from delayd.wheel import (
    Frame,
    FrameKind,
    decoding,
    files,
    segments,
)
from delayd.wheel.checkpoint import PendingCheckpoint
from delayd.wheel.segment import Segment
from delayd.wheel.segments import Segments
from delayd.wheel.storage import Wheel

pytestmark = pytest.mark.usefixtures("either_path")


def message(
    due_ms: int, offset: int, body: tuple[Any, ...] = (b"v",), *, partition: int = 0
) -> Frame:
    return Frame(due_ms, partition, offset, offset % 64, FrameKind.MESSAGE, 1_000, body)


def pending_reply(append_ms: int, partition: int, offset: int) -> Frame:
    return Frame(append_ms, partition, offset, 0, FrameKind.PENDING_REPLY, append_ms, (b"reject",))


def test_frames_are_read_back_in_the_order_asked_for(wheel: Wheel) -> None:
    bodies: list[tuple[Any, ...]] = [(), (None, b"", ""), (b"x" * 1_000_000,), ("日本 🕰",)]
    frames = [message(5_000 + n, n, body) for n, body in enumerate(bodies)]
    entries = wheel.append(frames)
    assert wheel.read(entries) == frames
    assert wheel.read(entries[::-1]) == frames[::-1]
    checkpoint(wheel)
    assert wheel.read([*entries, *entries]) == [*frames, *frames]


@pytest.mark.usefixtures("dense_hours")
def test_no_piece_of_a_split_writes_out_all_slots_of_an_hour(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held meanwhile: 3,600 new files take a second."""
    monkeypatch.setattr(segments, "TAIL_BYTES_MAX", 20_000)
    monkeypatch.setattr(segments, "TAILS_PER_CALL", 4)
    monkeypatch.setattr("delayd.wheel.near_hours.SPLIT_BYTES", 2_000)
    for offset in range(500):
        wheel.append([message(36_000_000 + offset * 1_000, offset)._replace(append_ms=0)])
    while wheel.write_out():
        pass
    assert (wheel.hours(), wheel.slots()) == ([10], [])
    wheel.advance(36_000_000)
    written = [0]
    write_tail = Segments.write_tail

    def counted(segments: Segments, segment: Segment) -> None:
        written[-1] += 1
        write_tail(segments, segment)

    monkeypatch.setattr(Segments, "write_tail", counted)
    while wheel.split_some():
        written.append(0)
    assert max(written) == 4 and sum(written) > 100
    assert len(wheel.slots()) == 500


def test_scattered_frames_are_read_without_reading_what_lies_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk()
    wheel = Wheel.open(tmp_path, partitions=2, disk=disk)
    entries = wheel.append([message(5_000, n, (b"x" * 1_000,)) for n in range(100)])
    checkpoint(wheel)
    disk.calls.clear()
    wheel.read(entries)
    assert disk.calls.count("pread") == 1
    disk.calls.clear()
    wheel.read([entries[0], entries[50], entries[99]])
    assert disk.calls.count("pread") == 3
    monkeypatch.setattr(decoding, "STRETCH_BYTES_MAX", 10_000)
    disk.calls.clear()
    wheel.read(entries)
    assert disk.calls.count("pread") >= 10, "memory of one read is not bounded"
    wheel.close()


def test_slots_are_listed_ascending_and_by_range(wheel: Wheel) -> None:
    wheel.append([message(slot * 1_000, slot) for slot in (9, 3, 7, 5)])
    assert wheel.slots() == [3, 5, 7, 9]
    assert wheel.slots(5, 7) == [5, 7]
    assert wheel.slots(4) == [5, 7, 9]
    assert wheel.slots(last=3) == [3]
    assert wheel.slots(10) == []
    assert wheel.next_slot(0) == 3
    assert wheel.next_slot(5) == 5
    assert wheel.next_slot(8) == 9
    assert wheel.next_slot(10) is None


def test_frames_beyond_the_tails_limit_are_written_out_and_still_read(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "TAIL_BYTES_MAX", 1_000)
    frames = [message(5_000 + 400 * n, n, (b"x" * 100,)) for n in range(30)]
    entries = wheel.append(frames)
    assert wheel.stats().tail_bytes <= 1_000
    assert remaining_files(tmp_path), "nothing was written out"
    assert wheel.read(entries) == frames
    assert sum(len(entries_in(wheel, slot)) for slot in wheel.slots()) == 30


def test_a_slots_info_counts_its_frames_and_knows_its_highest_offsets(wheel: Wheel) -> None:
    entries = wheel.append([message(5_000, 8), message(5_001, 3), message(5_002, 4, partition=1)])
    info = wheel.info(5)
    assert info is not None
    assert info.count == 3
    assert info.bytes == sum(entry.length for entry in entries)
    assert info.highest_offsets == (8, 4)
    assert wheel.info(6) is None


def test_progress_is_that_of_the_last_finished_checkpoint(wheel: Wheel) -> None:
    assert wheel.progress is None
    pending = wheel.begin_checkpoint(PROGRESS)
    pending.sync()
    assert wheel.progress is None
    wheel.finish_checkpoint(pending)
    assert wheel.progress == PROGRESS


def test_answers_are_found_by_offset_wherever_they_wait(wheel: Wheel) -> None:
    """Rules: reply-waits"""
    wheel.append([pending_reply(5_000, 1, 4), pending_reply(9_000, 0, 6), message(5_000, 7)])
    checkpoint(wheel)
    wheel.append([pending_reply(9_500, 0, 8)])
    pending = wheel.begin_checkpoint(PROGRESS)
    wheel.append([pending_reply(9_600, 0, 9)])

    def found(*from_offsets: int) -> list[tuple[int, int]]:
        return [(entry.partition, entry.offset) for entry in wheel.pending_replies(from_offsets)]

    settling: list[Callable[[], object]] = [
        pending.sync,
        lambda: wheel.finish_checkpoint(pending),
        wheel.stats,
    ]
    for settle in settling:
        assert found(0, 0) == [(0, 6), (0, 8), (0, 9), (1, 4)]
        assert found(7, 5) == [(0, 8), (0, 9)]
        assert found(9, 4) == [(0, 9), (1, 4)]
        settle()
    bodies = [frame.body for frame in wheel.read(wheel.pending_replies((0, 0)))]
    assert bodies == [(b"reject",)] * 4


def test_forgotten_answers_are_gone_at_once_and_later_ones_stay(wheel: Wheel) -> None:
    wheel.append([pending_reply(5_000, 0, 1), pending_reply(5_000, 1, 1)])
    checkpoint(wheel)
    wheel.append([pending_reply(5_000, 0, 2)])
    wheel.forget_pending_replies((3, 0))
    assert [entry[1:3] for entry in wheel.pending_replies((0, 0))] == [(1, 1)]
    wheel.append([pending_reply(5_000, 0, 0)])
    for _ in range(2):
        assert [entry[1:3] for entry in wheel.pending_replies((0, 0))] == [(0, 0), (1, 1)]
        checkpoint(wheel)


def test_a_forgotten_slot_is_gone_at_once_and_its_file_after_the_checkpoint(
    wheel: Wheel, tmp_path: Path
) -> None:
    wheel.append([message(5_000, 1), message(6_000, 2), message(3_600_000, 3)])
    checkpoint(wheel)
    wheel.forget([5, 3600, 77])
    assert wheel.slots() == [6]
    assert entries_in(wheel, 5) == []
    assert wheel.info(5) is None
    pending = wheel.begin_checkpoint(PROGRESS)
    pending.sync()
    assert remaining_files(tmp_path) == {"0/5.0", "0/6.0", "1/3600.0"}
    wheel.finish_checkpoint(pending)
    assert remaining_files(tmp_path) == {"0/6.0"}
    assert not (tmp_path / "slots" / "1").exists(), "an empty hour folder stayed"


def test_a_file_is_not_unlinked_by_a_checkpoint_that_began_before_the_forget(
    wheel: Wheel, tmp_path: Path
) -> None:
    wheel.append([message(5_000, 1)])
    pending = wheel.begin_checkpoint(PROGRESS)
    wheel.forget([5])
    pending.sync()
    wheel.finish_checkpoint(pending)
    assert remaining_files(tmp_path) == {"0/5.0"}
    checkpoint(wheel)
    assert remaining_files(tmp_path) == set()


@pytest.mark.usefixtures("dense_hours")
def test_while_splits_are_held_no_frame_moves_and_no_file_goes(
    wheel: Wheel, tmp_path: Path
) -> None:
    """docs/design/storage.md, Exports.

    Rules: splits-held
    """
    wheel.append([message(36_000_000 + n, n) for n in range(4)])
    wheel.append([message(5_000, 9)])
    checkpoint(wheel)
    assert wheel.hold_splits()
    wheel.advance(36_000_000)
    wheel.forget([5])
    checkpoint(wheel)
    assert not wheel.split_some()
    assert wheel.hours() == [10] and wheel.slots() == []
    assert remaining_files(tmp_path) == {"0/5.0", "10/hour.0"}
    wheel.release_splits()
    assert not wheel.hold_splits(), "a near hour must be split first"
    while wheel.split_some():
        pass
    checkpoint(wheel)
    assert remaining_files(tmp_path) == {"10/36000.0"}
    assert wheel.hold_splits()


def test_a_slot_that_is_forgotten_and_filled_again_holds_only_the_new_frames(
    wheel: Wheel, tmp_path: Path
) -> None:
    wheel.append([message(5_000, 1)])
    checkpoint(wheel)
    for round_ in range(3):
        wheel.forget([5])
        frame = message(5_000, 2 + round_)
        assert wheel.read(wheel.append([frame])) == [frame]
        pending = wheel.begin_checkpoint(PROGRESS)
        assert len(remaining_files(tmp_path)) == 2, "the forgotten file was touched too early"
        pending.sync()
        wheel.finish_checkpoint(pending)
        assert wheel.read(entries_in(wheel, 5)) == [frame]
        assert len(remaining_files(tmp_path)) == 1


def test_only_so_many_files_are_unlinked_per_checkpoint(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UNLINKS_MAX", 4)
    wheel.append([message(1_000 * n, n) for n in range(10)])
    checkpoint(wheel)
    wheel.forget(range(10))
    for left in (6, 2, 0, 0):
        checkpoint(wheel)
        assert len(remaining_files(tmp_path)) == left
        assert wheel.stats().files_to_unlink == left


def test_a_long_file_goes_a_piece_per_checkpoint(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held meanwhile: to unlink gigabytes takes seconds."""
    monkeypatch.setattr(files, "CUT_BYTES_MAX", 1_000)
    wheel.append([message(36_000_000, 0, (b"v" * 3_300,))._replace(append_ms=0)])
    wheel.append([message(1_000, 1)])
    checkpoint(wheel)
    file = tmp_path / "slots" / "10" / "hour.0"
    sizes = [file.stat().st_size]
    wheel.forget([], wheel.hours())
    while wheel.stats().files_to_unlink:
        checkpoint(wheel)
        sizes.append(file.stat().st_size if file.exists() else 0)
    assert sizes == [sizes[0], sizes[0] - 1_000, sizes[0] - 2_000, sizes[0] - 3_000, 0]
    assert not file.parent.exists()


def test_appends_reads_and_forgets_go_on_while_a_checkpoint_is_synced(tmp_path: Path) -> None:
    syncing, go_on = Event(), Event()

    def hold(call: str, _: str) -> None:
        if call == "fdatasync" and pending is not None:
            syncing.set()
            assert go_on.wait(30)

    pending: PendingCheckpoint | None = None
    wheel = Wheel.open(tmp_path, partitions=2, disk=CountingDisk(hold), open_files_max=1)
    old = [message(1_000 * n, n) for n in range(4)]
    entries = wheel.append(old)
    pending = wheel.begin_checkpoint(PROGRESS)
    with ThreadPoolExecutor(1) as other:
        synced = other.submit(pending.sync)
        assert syncing.wait(30)
        new = [message(1_000 * n + 1, 10 + n) for n in range(4)]
        entries += wheel.append(new)
        assert wheel.read(entries) == old + new
        assert entries_in(wheel, 2) == [entries[2], entries[6]]
        wheel.forget([0])
        go_on.set()
        synced.result()
    wheel.finish_checkpoint(pending)
    assert wheel.slots() == [1, 2, 3]
    wheel.close()
    again = Wheel.open(tmp_path, partitions=2)
    assert again.read([e for slot in again.slots() for e in entries_in(again, slot)]) == old
    again.close()


def test_stats_follow_appends_checkpoints_and_forgets(wheel: Wheel) -> None:
    entries = wheel.append([message(5_000, 1), message(6_000, 2), message(6_001, 3)])
    size = sum(entry.length for entry in entries)
    stats = wheel.stats()
    assert (stats.slots, stats.frames, stats.bytes, stats.tail_bytes) == (2, 3, size, size)
    checkpoint(wheel)
    assert wheel.stats().tail_bytes == 0
    assert wheel.stats().open_files == 2
    wheel.forget([6])
    stats = wheel.stats()
    assert (stats.slots, stats.frames, stats.bytes) == (1, 1, entries[0].length)
    assert wheel.free_bytes() > 0


def test_a_second_checkpoint_cannot_begin_while_one_is_pending(wheel: Wheel) -> None:
    wheel.begin_checkpoint(PROGRESS)
    with pytest.raises(AssertionError, match="one checkpoint at a time"):
        wheel.begin_checkpoint(PROGRESS)


def test_a_checkpoint_that_is_not_synced_cannot_be_finished(wheel: Wheel) -> None:
    pending = wheel.begin_checkpoint(PROGRESS)
    with pytest.raises(AssertionError, match="not synced"):
        wheel.finish_checkpoint(pending)


def test_close_is_idempotent_and_leaves_no_descriptor(tmp_path: Path) -> None:
    def held() -> list[Path]:
        links = Path("/proc/self/fd").iterdir()
        files = [link.readlink() for link in links if link.is_symlink()]
        return [file for file in files if file.is_relative_to(tmp_path)]

    wheel = Wheel.open(tmp_path, partitions=2)
    wheel.append([message(1_000 * n, n) for n in range(5)])
    assert held()
    wheel.begin_checkpoint(PROGRESS)
    wheel.append([message(1_000 * n, n) for n in range(5)])
    wheel.close()
    wheel.close()
    assert held() == []
    with pytest.raises(AssertionError, match="closed"):
        wheel.slots()
