"""Snapshots of a running wheel, and their copies: exactly one checkpoint, whatever happens beside
it; a copy is verified before it takes anybody's place. Kills are in tests/crashes.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_settings import PARTITIONS
from wheel_disks import flip
from wheel_snapshots import SOURCE, Held, contents_of, running
from wheels_on_disk import FORGOTTEN_SLOTS, Ingest, slot_at

from delayd.commands.examine.verifying import verify
from delayd.errors import CorruptionError, DiskError, DiskFullError
from delayd.wheel import Frame
from delayd.wheel.draft import Draft, finish, is_under_way, note_damage, noted_damage
from delayd.wheel.snapshot import Snapshot


def copied(snapshot: Snapshot, directory: Path) -> None:
    """A whole copy, in its place."""
    draft = Draft(directory)
    with draft.locked():
        draft.begin(SOURCE)
        draft.copy(Held(snapshot), lambda *told: None)
        draft.verify(PARTITIONS, lambda *told: None)
        draft.install(0)


def test_a_copy_is_the_checkpoint_whatever_happens_beside_it(tmp_path: Path) -> None:
    ingest = running(tmp_path / "a")
    wheel = ingest.wheel
    wheel.snapshots.hold()
    with_that = wheel.snapshots.open()
    frozen = copy_of_directory(tmp_path / "a", tmp_path / "frozen")

    ingest.append(300)
    wheel.forget([slot_at(index) for index in range(FORGOTTEN_SLOTS)], wheel.hours())
    ingest.checkpoint()
    ingest.append(300)
    ingest.checkpoint()
    assert wheel.stats().files_to_unlink > 0

    copied(with_that, tmp_path / "b")
    with_that.close()
    wheel.snapshots.release()
    ingest.checkpoint()
    assert wheel.stats().files_to_unlink == 0
    wheel.close()

    assert contents_of(tmp_path / "b") == contents_of(frozen)
    findings, _ = verify(tmp_path / "b", lambda *told: None)
    assert findings.is_whole and not findings.foreign_count
    assert not (tmp_path / "b" / "fetch").exists() and not (tmp_path / "b" / "replaced").exists()


def copy_of_directory(directory: Path, to: Path) -> Path:
    """What lies on the disk now, hard linked where files only grow; cut by their lines later."""
    shutil.copytree(directory, to)
    (to / "catalogue" / "LOCK").unlink()
    return to


def test_a_split_hour_is_copied_from_its_start_while_nothing_is_punched(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path / "a")
    wheel = ingest.wheel
    far = slot_at(0) // 3600 * 3600 + 360_000
    body = bytes(40_000)
    for n in range(1_000):
        ingest.wheel.append(
            [Frame((far + n) * 1_000, 0, n, 0, 0, 1, (b"k", body))],
        )
    ingest.offsets[0] = 1_000
    ingest.checkpoint()
    wheel.advance(far * 1_000)
    for _ in range(30):
        wheel.split_some()
    ingest.checkpoint()
    wheel.snapshots.hold()
    snapshot = wheel.snapshots.open()
    while wheel.split_some():
        pass
    ingest.checkpoint()
    copied(snapshot, tmp_path / "b")
    hour = next(path for path in (tmp_path / "b" / "slots").rglob("hour.0"))
    assert hour.stat().st_blocks * 512 < hour.stat().st_size, "what was split off takes no room"
    snapshot.close()
    wheel.snapshots.release()
    wheel.close()
    findings, _ = verify(tmp_path / "b", lambda *told: None)
    assert findings.is_whole


def test_there_is_no_snapshot_before_the_first_checkpoint(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path)
    with pytest.raises(DiskError, match="no checkpoint yet"):
        ingest.wheel.snapshots.open()
    ingest.wheel.close()


def test_a_closed_snapshot_gives_nothing(tmp_path: Path) -> None:
    ingest = running(tmp_path)
    snapshot = ingest.wheel.snapshots.open()
    snapshot.close()
    with pytest.raises(DiskError, match="closed"):
        snapshot.lines_after(b"", 1)
    with pytest.raises(DiskError, match="closed"):
        snapshot.bytes_at(0, 1)
    ingest.wheel.close()


@pytest.fixture
def draft(tmp_path: Path) -> Iterator[Draft]:
    """A whole copy that is not verified yet."""
    ingest = running(tmp_path / "a")
    snapshot = ingest.wheel.snapshots.open()
    draft = Draft(tmp_path / "b")
    with draft.locked():
        draft.begin(SOURCE)
        draft.copy(Held(snapshot), lambda *told: None)
        snapshot.close()
        ingest.wheel.close()
        yield draft


def files_of(draft: Draft) -> list[Path]:
    return sorted(path for path in (draft._root / "wheel" / "slots").rglob("*") if path.is_file())


def test_a_flipped_bit_of_any_place_of_a_file_is_found(draft: Draft) -> None:
    for path in files_of(draft)[:3]:
        for place in range(0, path.stat().st_size, 97):
            flip(path, place)
            with pytest.raises(CorruptionError, match="differs from its line"):
                draft.verify(PARTITIONS, lambda *told: None)
            flip(path, place)
    draft.verify(PARTITIONS, lambda *told: None)


def test_a_file_that_is_longer_or_shorter_than_its_line_is_found(draft: Draft) -> None:
    path = files_of(draft)[0]
    data = path.read_bytes()
    for wrong in (data + b"\0", data + data, data[:-1], b""):
        path.write_bytes(wrong)
        with pytest.raises(CorruptionError, match="differs from its line"):
            draft.verify(PARTITIONS, lambda *told: None)
    path.unlink()
    with pytest.raises(DiskError):
        draft.verify(PARTITIONS, lambda *told: None)


def test_a_catalogue_that_lacks_a_line_is_found(draft: Draft) -> None:
    catalogue = draft._catalogue()
    catalogue._db.delete(next(key for key, _ in catalogue._db if key[:1] == b"s"))
    catalogue.close()
    with pytest.raises(CorruptionError, match="counted"):
        draft.verify(PARTITIONS, lambda *told: None)


def test_bytes_beyond_the_stream_are_refused(tmp_path: Path) -> None:
    ingest = running(tmp_path / "a")
    snapshot = ingest.wheel.snapshots.open()

    class Longer(Held):
        def bytes_at(self, position: int) -> bytes:
            return super().bytes_at(position) + b"beyond"

    draft = Draft(tmp_path / "b")
    with draft.locked():
        draft.begin(SOURCE)
        with pytest.raises(CorruptionError, match="bytes came at byte"):
            draft.copy(Longer(snapshot), lambda *told: None)
    snapshot.close()
    ingest.wheel.close()


def test_one_process_copies_at_a_time(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    assert not is_under_way(tmp_path)
    with draft.locked():
        assert is_under_way(tmp_path)
        with pytest.raises(DiskError, match="another process copies"), Draft(tmp_path).locked():
            pass
    assert not is_under_way(tmp_path)


def test_the_old_wheel_is_kept_aside_with_its_damage(tmp_path: Path, draft: Draft) -> None:
    home = tmp_path / "b"
    old = running(home, 100)
    old.wheel.close()
    before = contents_of(home)
    note_damage(home, "slot 5 is broken")
    assert noted_damage(home) == "slot 5 is broken"
    draft.verify(PARTITIONS, lambda *told: None)
    draft.install(0)
    assert noted_damage(home) is None
    assert contents_of(home) == contents_of(tmp_path / "a")
    assert contents_of(home / "replaced") == before
    assert noted_damage(home / "replaced") == "slot 5 is broken"


def test_the_old_wheel_gives_way_when_there_is_no_room(tmp_path: Path, draft: Draft) -> None:
    home = tmp_path / "b"
    running(home, 100).wheel.close()
    draft.verify(PARTITIONS, lambda *told: None)
    draft.install(2**60)
    assert not (home / "replaced").exists()
    assert contents_of(home) == contents_of(tmp_path / "a")
    with pytest.raises(DiskFullError, match="larger volume"):
        Draft(home).require_room(2**60, 0)
    assert contents_of(home) == contents_of(tmp_path / "a"), "nothing is removed in vain"


def test_an_unverified_copy_takes_nobodys_place(tmp_path: Path, draft: Draft) -> None:
    running(tmp_path / "b", 100).wheel.close()
    before = contents_of(tmp_path / "b")
    assert not finish(tmp_path / "b")
    assert contents_of(tmp_path / "b") == before
