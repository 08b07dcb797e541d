"""Packs that rot in the store: found by a share in each run, and not taken by later backups.

Source: docs/design/storage.md, "Backups".
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from backups import Counted, backed_up, frozen, quiet, restored
from wheel_snapshots import contents_of, running
from wheels_on_disk import Ingest, slot_at

from delayd.commands.backup import packs, saving
from delayd.commands.backup.keeping import backups_in, chosen, verify
from delayd.commands.backup.manifest import Manifest
from delayd.commands.backup.saving import SHARES
from delayd.commands.backup.stores import Directory


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 20_000)
    monkeypatch.setattr(saving, "BLOB_BYTES", 1_000)
    monkeypatch.setattr(saving, "LINES_CUT", 0x1F)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.mkdir()
    return path


@pytest.fixture
def ingest(tmp_path: Path) -> Iterator[Ingest]:
    found = running(tmp_path / "a")
    yield found
    found.wheel.close()


def rot(target: Path, pack: str, at: int) -> None:
    """Flip a bit on the disk."""
    path = target / "packs" / pack
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def taken_over(earlier: Manifest, later: Manifest) -> packs.Blob:
    """A blob of a file that the later backup has taken from the earlier one."""
    both = set(earlier.blobs()) & set(later.blobs())
    return max((blob for blob in both if blob.kind.file), key=lambda blob: blob.size)


def test_a_rotten_pack_is_found_and_not_inherited(
    ingest: Ingest, target: Path, tmp_path: Path
) -> None:
    store = Directory(target)
    first, _ = backed_up(store, ingest, 1)
    ingest.append(50)
    ingest.checkpoint()
    second, _ = backed_up(store, ingest, 2)
    bad = taken_over(first.manifest, second.manifest)
    rot(target, bad.pack, bad.at + bad.size // 2)
    for number in range(SHARES):
        saved, _ = backed_up(store, ingest, 3 + number)
        if saved.manifest.damaged_packs:
            break
    assert saved.manifest.damaged_packs == {bad.pack} and bad.pack not in saved.manifest.packs
    assert backups_in(store)[0].problem == "1 packs are damaged"
    assert saved.name not in verify(store, quiet).damaged_backups
    # Nor by the next ones, though another share is read now.
    ingest.append(50)
    ingest.checkpoint()
    after, _ = backed_up(store, ingest, 100)
    assert after.manifest.damaged_packs == {bad.pack} and bad.pack not in after.manifest.packs
    assert chosen(store, None).name == after.name
    assert contents_of(restored(store, after.name, tmp_path / "b")) == contents_of(
        frozen(ingest, tmp_path / "frozen")
    )


def test_every_pack_is_read_once_in_so_many_runs(ingest: Ingest, target: Path) -> None:
    read: list[str] = []

    def note(method: str, name: str) -> None:
        if method == "read" and name.startswith("packs/"):
            read.append(name.removeprefix("packs/"))

    store = Directory(target)
    first, _ = backed_up(store, ingest)
    most = 0
    for number in range(SHARES):
        before = len(read)
        saving._damaged_among(Counted(target, note), store.names("packs"), number, quiet)
        most = max(most, len(read) - before)
    assert sorted(read) == sorted(first.manifest.packs)
    assert most < len(read) / 2, "a share, not all at once"


def test_of_many_packs_a_run_reads_a_smaller_share(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SHARES", 2)
    store = Directory(target)
    for number in range(100):
        store.write(f"packs/{number}.pack", b"")
    found = [saving._damaged_among(store, store.names("packs"), n, quiet) for n in range(16)]
    assert frozenset().union(*found) == store.names("packs") and sum(map(len, found)) == 100
    assert max(map(len, found)) < 25


def test_a_pack_that_is_copied_again_byte_by_byte_is_whole_again(
    ingest: Ingest, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SHARES", 1)
    store = Directory(target)
    first, _ = backed_up(store, ingest, 1)
    for pack in first.manifest.packs:
        rot(target, pack, 100)
    second, given = backed_up(store, ingest, 2)
    assert given == second.manifest.bytes
    assert second.manifest.packs == first.manifest.packs and not second.manifest.damaged_packs
    assert not verify(store, quiet).damaged_backups


def test_damage_that_a_run_meets_does_not_end_it(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a pending reply lies, and in lines that are moved out of a worn pack."""
    monkeypatch.setattr(saving, "_damaged_among", lambda *_: frozenset())
    ingest = running(tmp_path / "a")
    store = Directory(target)
    first, _ = backed_up(store, ingest, 1)
    for pack in sorted(first.manifest.packs):
        for at in range(200, (target / "packs" / pack).stat().st_size, 500):
            rot(target, pack, at)
    ingest.wheel.forget([slot_at(index) for index in range(60)])
    ingest.append(100, first=60)
    ingest.checkpoint()
    saved, _ = backed_up(store, ingest, 2)
    assert saved.manifest.damaged_packs
    ingest.wheel.close()
