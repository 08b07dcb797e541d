"""Frames that are read natively: those of any files, one behind the other, or none at all."""

from pathlib import Path

import pytest
from wheel_reading import checkpoint, entries_in, split_all

from delayd.errors import DiskError
from delayd.runtime import native
from delayd.wheel import Entry, Frame, FrameKind
from delayd.wheel.disk import OpenFile
from delayd.wheel.frame import encode
from delayd.wheel.storage import Wheel

DUE_MS = 1_700_000_000_000
FAR_MS = DUE_MS + 100 * 3_600_000
COUNT = 40
NO_DESCRIPTOR = 10**6


@pytest.fixture(autouse=True)
def the_library_runs(
    wheel: Wheel, library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the messages' hour is near."""
    monkeypatch.setattr(native, "library", library)
    wheel.advance(DUE_MS)


def messages(due_ms: int, first: int = 0) -> list[Frame]:
    """Of two seconds, in another order than they are due."""
    return [
        Frame(
            due_ms + number * 617 % COUNT * 50, 0, first + number, 0, FrameKind.MESSAGE, 1, ("t",)
        )
        for number in range(COUNT)
    ]


def entries_of(wheel: Wheel, frames: list[Frame]) -> list[Entry]:
    return [
        entry
        for slot in sorted({frame.due_ms // 1_000 for frame in frames})
        for entry in entries_in(wheel, slot)
    ]


def encoded(frames: list[Frame]) -> bytes:
    """In rank order."""
    return b"".join(encode(frame)[0] for frame in sorted(frames, key=lambda frame: frame[:3]))


def test_frames_of_slots_and_of_a_sparse_hour_are_read_in_the_order_of_their_entries(
    wheel: Wheel,
) -> None:
    near, far = messages(DUE_MS), messages(FAR_MS, COUNT)
    wheel.append([*near, *far])
    checkpoint(wheel)
    split_all(wheel)
    entries = entries_of(wheel, [*near, *far])
    index = wheel.index(FAR_MS // 1_000)
    assert index is not None and index.slot.part is not None, "it is a sparse hour"
    frames = wheel.gather(entries)
    assert frames is not None and bytes(frames.data) == encoded([*near, *far])


def test_nothing_is_read_where_a_frame_is_in_memory_only(wheel: Wheel) -> None:
    first, second = messages(DUE_MS), messages(DUE_MS, COUNT)
    wheel.append(first)
    assert wheel.gather(entries_of(wheel, first)) is None
    checkpoint(wheel)
    before = entries_of(wheel, first)
    wheel.append(second)
    assert wheel.gather(before) is not None
    assert wheel.gather(entries_of(wheel, [*first, *second])) is None


def test_a_file_that_was_cut_is_left_to_python(wheel: Wheel, tmp_path: Path) -> None:
    frames = messages(DUE_MS)
    wheel.append(frames)
    checkpoint(wheel)
    entries = entries_of(wheel, frames)
    files = [path for path in tmp_path.glob("slots/*/*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:-1])
    assert wheel.gather(entries) is None


def test_a_disk_that_cannot_be_read_is_left_to_python(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = messages(DUE_MS)
    wheel.append(frames)
    checkpoint(wheel)
    entries = entries_of(wheel, frames)
    monkeypatch.setattr(
        wheel._reader._descriptors, "get", lambda path: OpenFile(path, NO_DESCRIPTOR)
    )
    assert wheel.gather(entries) is None
    with pytest.raises(DiskError):
        wheel.read(entries)


def test_without_the_library_python_reads(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = messages(DUE_MS)
    wheel.append(frames)
    checkpoint(wheel)
    entries = entries_of(wheel, frames)
    monkeypatch.setattr(native, "library", None)
    assert wheel.gather(entries) is None
