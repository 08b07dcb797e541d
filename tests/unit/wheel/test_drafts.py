"""Copies of a wheel in a data directory: what gives way to them, what they keep of an earlier
snapshot, and what lies beside the wheel afterwards. Kills are in tests/crashes.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_settings import PARTITIONS
from wheel_snapshots import SOURCE, Held, contents_of, running
from wheels_on_disk import FORGOTTEN_SLOTS, Ingest, slot_at

from delayd.errors import CorruptionError, DiskError, DiskFullError
from delayd.wheel import Frame
from delayd.wheel.disk import SystemDisk
from delayd.wheel.draft import (
    Draft,
    finish,
    kept_aside_bytes,
    note_damage,
    noted_damage,
    remove_abandoned,
)
from delayd.wheel.draft_files import Room
from delayd.wheel.snapshot import Snapshot
from delayd.wheel.storage import Wheel

MIB = 1 << 20


def untold(stage: str, done: int, total: int) -> None:
    pass


def taken(wheel: Wheel) -> Snapshot:
    wheel.snapshots.hold()
    return wheel.snapshots.open()


def let_go(wheel: Wheel, snapshot: Snapshot) -> None:
    snapshot.close()
    wheel.snapshots.release()


def install(draft: Draft) -> None:
    draft.verify(PARTITIONS, untold)
    draft.install(0)


# Room.


class Volume(SystemDisk):
    """Has so many bytes free at first, and what a test's directory has given back since."""

    def __init__(self, home: Path, free_bytes: int) -> None:
        super().__init__()
        self._home = home
        self._before = Room.of(home).bytes
        self._free_bytes = free_bytes

    def free_bytes_with(self, path: str, more_bytes: int, more_inodes: int) -> int:
        return self._free_bytes + self._before - Room.of(self._home).bytes + more_bytes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data directory with a damaged wheel, and another one that is kept aside."""
    running(tmp_path, 300).wheel.close()
    note_damage(tmp_path, "slot 5 is broken")
    (tmp_path / "replaced").mkdir()
    (tmp_path / "replaced" / "slots").write_bytes(bytes(MIB))
    return tmp_path


def draft_with(home: Path, free_bytes: int) -> Draft:
    draft = Draft(home)
    draft._disk = Volume(home, free_bytes)
    return draft


def in_place_bytes(home: Path) -> int:
    return sum(Room.of(home / name).bytes for name in ("slots", "catalogue", "format.json"))


def test_a_copy_that_cannot_fit_removes_nothing(home: Path) -> None:
    """docs/design/storage.md, Snapshots: it may be the last copy.

    Rules: room-before-removal
    """
    before = contents_of(home)
    most_bytes = in_place_bytes(home) + MIB + 100_000
    with pytest.raises(DiskFullError, match="nothing was removed"):
        draft_with(home, 10).require_room(most_bytes, 100)
    assert contents_of(home) == before and noted_damage(home) == "slot 5 is broken"
    assert kept_aside_bytes(home) is not None


def test_a_wheel_that_can_be_used_gives_way_to_no_copy(home: Path) -> None:
    """docs/design/storage.md, Copy or replay: the node goes on with it."""
    before = contents_of(home)
    with pytest.raises(DiskFullError, match="beside the wheel that is there; nothing was removed"):
        draft_with(home, 1_000).require_room(in_place_bytes(home), 100 + MIB, is_usable=True)
    assert contents_of(home) == before and kept_aside_bytes(home) is not None
    draft_with(home, 1_000).require_room(MIB, 100, is_usable=True)
    assert contents_of(home) == before and kept_aside_bytes(home) is None


def test_as_much_gives_way_as_the_copy_needs(home: Path) -> None:
    before = contents_of(home)
    draft_with(home, 1_000).require_room(900, 100)
    assert kept_aside_bytes(home) is not None
    draft_with(home, 1_000).require_room(MIB, 100)
    assert kept_aside_bytes(home) is None
    assert contents_of(home) == before and noted_damage(home) == "slot 5 is broken"
    draft_with(home, 1_000).require_room(in_place_bytes(home), 100)
    assert not any((home / name).exists() for name in ("slots", "catalogue", "format.json"))
    assert noted_damage(home) is None, "what is damaged is gone"


def test_what_was_copied_takes_no_further_room(home: Path) -> None:
    (home / "fetch" / "wheel").mkdir(parents=True)
    (home / "fetch" / "wheel" / "part").write_bytes(bytes(MIB))
    draft_with(home, 1_000).require_room(MIB, 100)
    assert kept_aside_bytes(home) is not None


def test_files_that_have_another_name_give_no_room_back(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(MIB))
    assert Room.of(tmp_path / "a").bytes >= MIB
    os.link(tmp_path / "a", tmp_path / "b")
    assert Room.of(tmp_path / "a") == Room(0, 0)


# A later snapshot of the same node.


def copied_in_part(source: Held, home: Path, files: int) -> Draft:
    """A copy that was cut short after so many calls for bytes of files."""

    class CutShortError(Exception):
        pass

    left = [files]
    read = source.bytes_at

    def bytes_at(position: int) -> bytes:
        if not left[0]:
            raise CutShortError
        left[0] -= 1
        return read(position)

    source.bytes_at = bytes_at  # type: ignore[method-assign]
    draft = Draft(home)
    draft.begin(SOURCE)
    with pytest.raises(CutShortError):
        draft.copy(source, untold)
    return draft


def test_a_copy_goes_on_with_a_later_snapshot(tmp_path: Path) -> None:
    """docs/design/storage.md, Snapshots: files that are the same are not copied again."""
    ingest = running(tmp_path / "a", 3_000)
    wheel = ingest.wheel
    first = taken(wheel)
    draft = copied_in_part(Held(first), tmp_path / "b", 60)
    let_go(wheel, first)
    # Some files are forgotten, some grow, some are new.
    wheel.forget([slot_at(index) for index in range(FORGOTTEN_SLOTS)], wheel.hours())
    ingest.append(200, FORGOTTEN_SLOTS)
    ingest.checkpoint()
    ingest.checkpoint()
    second = taken(wheel)
    asked: list[int] = []
    held = Held(second)
    read = held.bytes_at

    def bytes_at(position: int) -> bytes:
        data = read(position)
        asked.append(len(data))
        return data

    held.bytes_at = bytes_at  # type: ignore[method-assign]
    draft.rebase({"snapshot": "b"})
    assert Draft(tmp_path / "b").source == {"snapshot": "b"}
    draft.copy(held, untold)
    assert sum(asked) < second.stream.size_bytes * 0.9, "what it has is not asked for again"
    install(draft)
    let_go(wheel, second)
    wheel.close()
    assert contents_of(tmp_path / "b") == contents_of(tmp_path / "a")
    names = {str(path.relative_to(tmp_path / "b")) for path in (tmp_path / "b").rglob("*.0")}
    assert names == {
        str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*.0")
    }


def test_a_file_that_is_another_one_by_now_is_found(tmp_path: Path) -> None:
    """Rules: copy-verified"""
    ingest = running(tmp_path / "a", 600)
    snapshot = taken(ingest.wheel)
    draft = copied_in_part(Held(snapshot), tmp_path / "b", 20)
    path = next(path for path in (draft._root / "wheel" / "slots").rglob("*.0"))
    path.write_bytes(bytes(path.stat().st_size))
    draft.rebase({"snapshot": "b"})
    draft.copy(Held(snapshot), untold)
    with pytest.raises(CorruptionError, match="differs from its line"):
        draft.verify(PARTITIONS, untold)
    let_go(ingest.wheel, snapshot)
    ingest.wheel.close()


# Hours that are being split.


def splitting(folder: Path) -> tuple[Ingest, int]:
    """A wheel with one long hour file, which is due to be split; and its hour."""
    ingest = Ingest(folder)
    far = slot_at(0) // 3600 * 3600 + 360_000
    body = bytes(40_000)
    for n in range(1_000):
        ingest.wheel.append([Frame((far + n) * 1_000, 0, n, 0, 0, 1, (b"k", body))])
    ingest.offsets[0] = 1_000
    ingest.checkpoint()
    ingest.wheel.advance(far * 1_000)
    return ingest, far // 3600


def split_while(ingest: Ingest, hour: int, wanted: Callable[[int, int], bool]) -> None:
    """Split as long as `wanted` says, by how much is split of how many bytes."""
    segment = ingest.wheel._hours.files[hour]
    while wanted(segment.start, segment.written):
        assert ingest.wheel.split_some()
        ingest.checkpoint()


def test_an_hour_that_is_split_but_not_forgotten_is_copied(tmp_path: Path) -> None:
    """No byte of its file is in the stream, and yet the checkpoint names it."""
    ingest, hour = splitting(tmp_path / "a")
    split_while(ingest, hour, lambda start, written: start < written)
    snapshot = taken(ingest.wheel)
    draft = Draft(tmp_path / "b")
    draft.begin(SOURCE)
    draft.copy(Held(snapshot), untold)
    install(draft)
    let_go(ingest.wheel, snapshot)
    ingest.wheel.close()
    again = Wheel.open(tmp_path / "b", partitions=PARTITIONS)
    assert again.progress is not None and again.progress.offsets[0] == 1_000
    again.close()
    assert contents_of(tmp_path / "b") == contents_of(tmp_path / "a")


def test_a_copied_hour_gives_way_to_its_slots(tmp_path: Path) -> None:
    ingest, _ = splitting(tmp_path / "a")
    first = taken(ingest.wheel)
    draft = Draft(tmp_path / "b")
    draft.begin(SOURCE)
    draft.copy(Held(first), untold)
    let_go(ingest.wheel, first)
    while ingest.wheel.split_some():
        ingest.checkpoint()
    ingest.checkpoint()
    ingest.checkpoint()
    second = taken(ingest.wheel)
    draft.rebase({"snapshot": "b"})
    draft.copy(Held(second), untold)
    install(draft)
    let_go(ingest.wheel, second)
    ingest.wheel.close()
    assert contents_of(tmp_path / "b") == contents_of(tmp_path / "a")
    assert not list((tmp_path / "b" / "slots").rglob("hour.0"))


def test_nothing_is_punched_under_a_snapshot(tmp_path: Path) -> None:
    """Rules: snapshot-holds-files"""
    ingest, hour = splitting(tmp_path / "a")
    snapshot = taken(ingest.wheel)
    path = next((tmp_path / "a" / "slots").rglob("hour.0"))
    before = path.stat().st_blocks
    split_while(ingest, hour, lambda start, written: start < written // 2)
    assert path.stat().st_blocks == before
    draft = Draft(tmp_path / "b")
    draft.begin(SOURCE)
    draft.copy(Held(snapshot), untold)
    install(draft)
    let_go(ingest.wheel, snapshot)
    split_while(ingest, hour, lambda start, written: start < written)
    assert path.stat().st_blocks < before, "afterwards it gives its room back"
    ingest.wheel.close()


# What lies beside the wheel.


def whole_draft(tmp_path: Path) -> Draft:
    """A whole copy in b/fetch, of a."""
    ingest = running(tmp_path / "a")
    snapshot = taken(ingest.wheel)
    draft = Draft(tmp_path / "b")
    draft.begin(SOURCE)
    draft.copy(Held(snapshot), untold)
    let_go(ingest.wheel, snapshot)
    ingest.wheel.close()
    return draft


def test_a_wheel_that_was_being_removed_does_not_take_the_copy_with_it(tmp_path: Path) -> None:
    """docs/design/trimmed.md, A checkpoint that the log does not reach.

    Rules: removal-not-inherited
    """
    home = tmp_path / "b"
    running(home, 100).wheel.close()
    (home / "format.json").rename(home / "format.json.discarded")
    install(whole_draft(tmp_path))
    wheel = Wheel.open(home, partitions=PARTITIONS)
    assert wheel.progress is not None
    wheel.close()
    assert contents_of(home) == contents_of(tmp_path / "a")


def test_a_copy_that_nobody_goes_on_with_is_removed(tmp_path: Path) -> None:
    draft = whole_draft(tmp_path)
    with draft.locked(), pytest.raises(DiskError, match="another process copies"):
        remove_abandoned(tmp_path / "b")
    assert draft.source == SOURCE
    assert remove_abandoned(tmp_path / "b")
    assert not (tmp_path / "b" / "fetch").exists()
    assert not remove_abandoned(tmp_path / "b")


def test_an_installation_is_finished_by_one_process(tmp_path: Path) -> None:
    draft = whole_draft(tmp_path)
    draft.verify(PARTITIONS, untold)
    (tmp_path / "b" / "fetch" / "verified").write_text("")
    with draft.locked(), pytest.raises(DiskError, match="another process copies"):
        finish(tmp_path / "b")
    assert not (tmp_path / "b" / "format.json").exists()
    assert finish(tmp_path / "b")
    assert contents_of(tmp_path / "b") == contents_of(tmp_path / "a")


def test_a_lock_that_was_removed_protects_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its opening and its locking another process may have installed the copy."""

    def install_meanwhile(*_: object) -> None:
        shutil.rmtree(tmp_path / "fetch")

    monkeypatch.setattr("delayd.wheel.draft.fcntl.flock", install_meanwhile)
    with pytest.raises(DiskError, match="another process copies"), Draft(tmp_path).locked():
        pass
