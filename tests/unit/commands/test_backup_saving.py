"""Backups: exactly one checkpoint, what is new alone, whole or none at whatever point it is killed.

Source: docs/design/storage.md, "Backups".
"""

import shutil
from pathlib import Path

import pytest
from backups import Counted, Giving, Killed, backed_up, frozen, killing_at, quiet, restored
from cluster_settings import PARTITIONS
from wheel_snapshots import contents_of, running
from wheels_on_disk import Ingest, slot_at

from delayd.commands.backup import packs, saving
from delayd.commands.backup.keeping import backups_in, chosen, remove, to_remove, verify
from delayd.commands.backup.manifest import claim, names_of, read_manifest
from delayd.commands.backup.packs import Blob, Kind
from delayd.commands.backup.plan import Known, Wanted, neighbours, planned
from delayd.commands.backup.stores import Directory
from delayd.errors import BackupError
from delayd.wheel import Frame, FrameKind


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several packs, blobs and chunks of lines in a small wheel."""
    monkeypatch.setattr(packs, "PACK_BYTES", 20_000)
    monkeypatch.setattr(saving, "BLOB_BYTES", 1_000)
    monkeypatch.setattr(saving, "CHUNK_BYTES", 3_011)
    monkeypatch.setattr(saving, "LINES_CUT", 0x1F)
    monkeypatch.setattr(saving, "GAP_BYTES", 0)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.mkdir()
    return path


def test_a_restored_wheel_is_the_checkpoint(tmp_path: Path, target: Path) -> None:
    ingest = running(tmp_path / "a")
    store = Directory(target)
    saved, _ = backed_up(store, ingest)
    as_it_was = frozen(ingest, tmp_path / "frozen")
    ingest.append(500)
    ingest.end()
    restored(store, saved.name, tmp_path / "b")
    assert contents_of(tmp_path / "b") == contents_of(as_it_was)
    assert saved.manifest.about["frames"] == 1_250 and saved.packs > 5
    assert not verify(store, quiet).damaged_packs


def test_a_second_backup_takes_what_is_new_alone(tmp_path: Path, target: Path) -> None:
    ingest = running(tmp_path / "a", frames=1_000)
    store = Directory(target)
    first, given = backed_up(store, ingest)
    assert given == first.manifest.bytes
    nothing, given = backed_up(store, ingest, 2)
    assert (nothing.written_bytes, given) == (0, 0)
    before = first.manifest.bytes
    ingest.append(100)
    ingest.checkpoint()
    second, given = backed_up(store, ingest, 3)
    new = second.manifest.bytes - before
    assert 0 < new <= given < 4 * new < before
    for number, saved in enumerate((first, second)):
        restored(store, saved.name, tmp_path / f"b{number}")
    assert contents_of(tmp_path / "b1") == contents_of(frozen(ingest, tmp_path / "frozen"))
    assert contents_of(tmp_path / "b0") != contents_of(tmp_path / "b1")
    ingest.wheel.close()


def test_a_file_that_grows_with_each_backup_is_in_few_pieces(tmp_path: Path, target: Path) -> None:
    ingest = Ingest(tmp_path / "a")
    store = Directory(target)
    for number in range(40):
        ingest.wheel.append([ingest.frame(slot_at(0)) for _ in range(2)])
        ingest.checkpoint()
        saved, _ = backed_up(store, ingest, number)
    assert max(len(file.blobs) for file in saved.manifest.files) <= 12
    assert contents_of(restored(store, saved.name, tmp_path / "b")) == contents_of(
        frozen(ingest, tmp_path / "frozen")
    )
    ingest.wheel.close()


def test_it_is_whole_or_none_at_whatever_point_it_is_killed(tmp_path: Path, target: Path) -> None:
    ingest = running(tmp_path / "a")
    store = Directory(target)
    backed_up(store, ingest)
    shutil.copytree(target, tmp_path / "begun")
    ingest.append(100)
    ingest.checkpoint()
    wanted = contents_of(frozen(ingest, tmp_path / "frozen"))
    killed = 0
    while True:
        shutil.rmtree(target)
        shutil.copytree(tmp_path / "begun", target)
        try:
            backed_up(Counted(target, killing_at(killed, ("write", "written"))), ingest, 2)
        except Killed:
            ingest.wheel._segments.files.holds = 0
            assert [each.problem for each in backups_in(store)] in ([""], ["", ""])
            backed_up(store, ingest, 3)
        assert not verify(store, quiet).damaged_backups
        name = chosen(store, None).name
        directory = restored(store, name, tmp_path / f"b{killed}")
        assert contents_of(directory) == wanted
        if len(names_of(store)) == 2 and name.startswith("19700101T000000.002"):
            break
        killed += 1
    assert killed >= 4
    ingest.wheel.close()


def test_a_killed_run_serves_the_next_one(tmp_path: Path, target: Path) -> None:
    ingest = running(tmp_path / "a")
    with pytest.raises(Killed):
        backed_up(Counted(target, killing_at(7, ("write",))), ingest)
    ingest.wheel._segments.files.holds = 0
    store = Directory(target)
    assert backups_in(store) == [] and len(store.names("packs")) == 6
    saved, given = backed_up(store, ingest)
    assert given < saved.manifest.bytes
    assert store.names("packs") >= saved.manifest.packs
    assert contents_of(restored(store, saved.name, tmp_path / "b")) == contents_of(
        frozen(ingest, tmp_path / "frozen")
    )
    ingest.wheel.close()


def test_an_hour_that_is_half_split_is_backed_up_from_its_start(
    tmp_path: Path, target: Path
) -> None:
    ingest = Ingest(tmp_path / "a")
    far = slot_at(0) // 3600 * 3600 + 360_000
    body = bytes(40_000)
    for n in range(1_000):
        ingest.wheel.append([Frame((far + n) * 1_000, 0, n, 0, 0, 1, (b"k", body))])
    ingest.offsets[0] = 1_000
    ingest.checkpoint()
    store = Directory(target)
    backed_up(store, ingest)
    ingest.wheel.advance(far * 1_000)
    for _ in range(30):
        ingest.wheel.split_some()
    ingest.checkpoint()
    saved, _ = backed_up(store, ingest, 2)
    (hour,) = [file for file in saved.manifest.files if "hour" in file.file]
    assert 0 < hour.start < hour.end
    assert contents_of(restored(store, saved.name, tmp_path / "b")) == contents_of(
        frozen(ingest, tmp_path / "frozen")
    )
    ingest.wheel.close()


def in_order(directory: Path, order: int, replies_first: bool) -> Ingest:
    """The same frames as in any other order."""
    ingest = Ingest(directory)
    kinds = [FrameKind.MESSAGE] * 40 + [FrameKind.PENDING_REPLY] * 2
    frames = [ingest.frame(slot_at(0), kind) for kind in kinds]
    ingest.wheel.append((frames[::-1] if replies_first else frames)[::order])
    ingest.checkpoint()
    return ingest


def test_the_bytes_of_a_node_with_another_order_are_not_taken(tmp_path: Path, target: Path) -> None:
    one, other = in_order(tmp_path / "a", 1, False), in_order(tmp_path / "b", 1, True)
    store = Directory(target)
    backed_up(store, one)
    # The same frames, the same digest: only where the pending replies lie tells them apart.
    saved, given = backed_up(store, other, 2)
    assert given == saved.manifest.bytes
    assert contents_of(restored(store, saved.name, tmp_path / "c")) == contents_of(
        frozen(other, tmp_path / "frozen")
    )
    # With other frames behind them, the digest does.
    for each in (one, other):
        each.wheel.append([each.frame(slot_at(1)) for _ in range(50)])
    one.checkpoint()
    backed_up(store, one, 3)
    other.wheel.append([other.frame(slot_at(1)) for _ in range(10)])
    other.checkpoint()
    saved, _ = backed_up(store, other, 4)
    assert contents_of(restored(store, saved.name, tmp_path / "d")) == contents_of(
        frozen(other, tmp_path / "frozen2")
    )
    one.wheel.close()
    other.wheel.close()


def test_a_wheel_that_was_made_again_under_the_same_names_is_not_mixed(
    tmp_path: Path, target: Path
) -> None:
    """A node that lost its disk has other frames in files of the same names, and of the same
    lengths too."""
    store = Directory(target)
    for seed, count in ((1, 40), (2, 50)):
        ingest = Ingest(tmp_path / f"a{seed}", seed)
        frames = [ingest.frame(slot_at(0)) for _ in range(count)]
        ingest.wheel.append([frame._replace(body=(b"key", bytes(60))) for frame in frames])
        ingest.checkpoint()
        saved, _ = backed_up(store, ingest, seed)
        directory = restored(store, saved.name, tmp_path / f"b{seed}")
        assert contents_of(directory) == contents_of(frozen(ingest, tmp_path / f"f{seed}"))
        ingest.wheel.close()


def test_a_pack_that_vanishes_meanwhile_makes_no_backup(tmp_path: Path, target: Path) -> None:
    ingest = Ingest(tmp_path / "a")
    store = Directory(target)
    for number in range(2):
        ingest.wheel.append([ingest.frame(slot_at(number)) for _ in range(500)])
        ingest.checkpoint()
        if not number:
            backed_up(store, ingest)

    written = []

    def lose(method: str, name: str) -> None:
        if method == "write":
            written.append(name)
        for path in (target / "packs").glob("*") if method == "written" else ():
            path.unlink()

    with pytest.raises(BackupError, match="was removed meanwhile"):
        backed_up(Counted(target, lose), ingest, 2)
    assert len(names_of(store)) == 1
    assert not [name for name in written if name.startswith("backups/")], "not even for a moment"
    ingest.wheel.close()


# Keeping.


def test_what_is_kept_stays_whole_at_whatever_point_a_removal_is_killed(
    tmp_path: Path, target: Path
) -> None:
    ingest = running(tmp_path / "a")
    store = Directory(target)
    for number in range(4):
        if number == 3:
            ingest.wheel.forget([slot_at(index) for index in range(90)])
        ingest.append(150, first=90 if number == 3 else 0)
        ingest.checkpoint()
        saved, _ = backed_up(store, ingest, number)
    shutil.copytree(target, tmp_path / "begun")
    removed = to_remove(store, 2)
    assert len(removed.backups) == 2
    for number in range(len(removed.backups) + len(removed.packs) + 1):
        shutil.rmtree(target)
        shutil.copytree(tmp_path / "begun", target)
        stops = Counted(target, killing_at(number, ("remove",)))
        try:
            remove(stops, removed)
        except Killed:
            assert [each.problem for each in backups_in(store)] == [""] * len(names_of(store))
            remove(store, to_remove(store, 2))
        assert len(names_of(store)) == 2
        assert not verify(store, quiet).damaged_backups and not verify(store, quiet).unnamed_packs
    assert contents_of(restored(store, saved.name, tmp_path / "b")) == contents_of(
        frozen(ingest, tmp_path / "frozen")
    )
    remove(store, to_remove(store, 1))
    assert len(store.names("packs")) == len(saved.manifest.packs)
    ingest.wheel.close()


def test_nothing_is_removed_while_a_backup_cannot_be_read(tmp_path: Path, target: Path) -> None:
    ingest = running(tmp_path / "a")
    store = Directory(target)
    for number in range(3):
        backed_up(store, ingest, number)
    path = target / "backups" / names_of(store)[1]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BackupError, match="nothing is removed"):
        to_remove(store, 1)
    assert [bool(each.problem) for each in backups_in(store)] == [False, False, True]
    assert len(verify(store, quiet).damaged_backups) == 1
    ingest.wheel.close()


def test_damage_is_named_and_the_next_backup_mends_it(tmp_path: Path, target: Path) -> None:
    ingest = running(tmp_path / "a")
    store = Directory(target)
    saved, _ = backed_up(store, ingest)
    pack = next(blob.pack for blob in saved.manifest.blobs() if blob.kind.file and blob.size > 100)
    path = target / "packs" / pack
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found = verify(store, quiet)
    assert set(found.damaged_packs) == {pack} and set(found.damaged_backups) == {saved.name}
    assert any("slots/" in file for file in found.damaged_backups[saved.name])
    with pytest.raises(BackupError, match=f"{pack} is damaged"):
        restored(store, saved.name, tmp_path / "b")
    assert not (tmp_path / "b" / "format.json").exists()
    path.unlink()
    assert backups_in(store)[0].problem == "1 packs are missing"
    again, given = backed_up(store, ingest, 2)
    assert 0 < given < again.manifest.bytes
    assert not backups_in(store)[1].problem
    # The same bytes under the same name: the older one is whole again, too.
    restored(store, again.name, tmp_path / "c")
    ingest.wheel.close()


def test_the_newest_backup_by_a_time_is_chosen(tmp_path: Path, target: Path) -> None:
    ingest = running(tmp_path / "a")
    store = Directory(target)
    for at_ms in (1_000, 2_000, 3_000):
        backed_up(store, ingest, at_ms)
    assert chosen(store, None)[1].made_ms == 3_000
    assert chosen(store, 2_999)[1].made_ms == 2_000
    with pytest.raises(BackupError, match="no backup here that is so old"):
        chosen(store, 999)
    ingest.wheel.close()


# Targets.


def test_a_target_is_for_one_cluster(target: Path) -> None:
    whose = {"cluster": "c", "realm": "c/1", "buffer": "id", "partitions": PARTITIONS}
    claim(Directory(target), whose)
    claim(Directory(target), whose)
    with pytest.raises(BackupError, match="holds backups of the cluster c/1"):
        claim(Directory(target), {**whose, "realm": "c/2"})


def test_a_directory_with_other_things_is_no_target(target: Path) -> None:
    (target / "format.json").write_text("{}")
    whose = {"cluster": "c", "realm": "c/1", "buffer": "id", "partitions": PARTITIONS}
    with pytest.raises(BackupError, match=r"other things in the target, such as format\.json"):
        claim(Directory(target), whose)


def test_a_manifest_reads_as_it_was_written(tmp_path: Path, target: Path) -> None:
    ingest = running(tmp_path / "a")
    saved, _ = backed_up(Directory(target), ingest)
    assert read_manifest(Directory(target), saved.name) == saved.manifest
    ingest.wheel.close()


# The plan.


def blob(file: str, first: int, size: int, pack: str = "p", at: int = 0) -> Blob:
    return Blob(Kind(file, first, 1, 1), pack, at, size, 0)


def test_packs_that_are_hardly_needed_are_given_up() -> None:
    there = [blob("a", 0, 100, "p", 0), blob("b", 0, 300, "p", 100), blob("a", 100, 50, "q")]
    needs_both = planned(Known(there), [Wanted("a", 0, 150), Wanted("b", 0, 300)], ())
    assert [len(chain) for chain in needs_both.chains] == [2, 1] and not needs_both.worn
    needs_little = planned(Known(there), [Wanted("a", 0, 150)], ())
    assert needs_little.worn == {"p"} and [*needs_little.chains] == [[]]


def test_neighbouring_bytes_are_asked_for_at_once() -> None:
    assert neighbours([(0, 10), (12, 20), (90, 100)], 5) == {0: 20, 90: 100}
    assert neighbours([], 5) == {}


def test_a_donor_gives_no_more_than_it_is_asked_for(tmp_path: Path) -> None:
    ingest = running(tmp_path / "a")
    ingest.wheel.snapshots.hold()
    snapshot = ingest.wheel.snapshots.open()
    assert len(Giving(snapshot).bytes_at(10, 7)) == 7
    snapshot.close()
    ingest.wheel.close()
