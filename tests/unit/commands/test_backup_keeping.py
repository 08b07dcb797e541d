"""Which backups stay: told by what they hold, and beside other runs on a store without locks.

Source: docs/design/storage.md, "Backups".
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backups import Counted, backed_up, quiet
from wheel_snapshots import running
from wheels_on_disk import Ingest, slot_at

from delayd.commands.backup import packs, saving
from delayd.commands.backup.keeping import (
    SPARED_MS,
    backups_in,
    chosen,
    remove,
    to_remove,
    verify,
)
from delayd.commands.backup.manifest import names_in_future, names_of
from delayd.commands.backup.stores import Directory
from delayd.errors import BackupError

IN_2030_MS = 1_900_000_000_000
NOW_MS = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 20_000)
    monkeypatch.setattr(saving, "BLOB_BYTES", 1_000)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.mkdir()
    return path


@pytest.fixture
def ingest(tmp_path: Path) -> Iterator[Ingest]:
    found = running(tmp_path / "a")
    yield found
    found.wheel._segments.files.holds = 0
    found.wheel.close()


def more(ingest: Ingest) -> Ingest:
    """The same wheel some time later."""
    ingest.append(100)
    ingest.checkpoint()
    return ingest


def changed(ingest: Ingest) -> Ingest:
    """The same wheel when most of what it held is over."""
    ingest.wheel.forget([slot_at(index) for index in range(110)])
    ingest.append(100, first=110)
    ingest.checkpoint()
    return ingest


def once(what: Callable[[], object], at: str, folder: str) -> Callable[[str, str], None]:
    """What does something else at the first such call: another run."""
    left = [what]

    def before(method: str, name: str) -> None:
        if method == at and name.startswith(folder) and left:
            left.pop()()

    return before


def made_earlier(target: Path, ms: int) -> None:
    for path in target.glob("*/*"):
        ns = path.stat().st_mtime_ns - ms * 1_000_000
        os.utime(path, ns=(ns, ns))


# By what they hold.


def test_a_backup_from_the_future_is_as_old_as_what_it_holds(ingest: Ingest, target: Path) -> None:
    store = Directory(target)
    wrong, _ = backed_up(store, ingest, IN_2030_MS)
    # Nothing new was read, and yet it is the later one.
    same, _ = backed_up(store, ingest, NOW_MS)
    assert [each.name for each in backups_in(store)] == [wrong.name, same.name]
    right, _ = backed_up(store, more(ingest), NOW_MS + 1)
    assert chosen(store, None).name == right.name
    assert chosen(store, NOW_MS).name == same.name
    assert names_in_future(names_of(store), NOW_MS) == [wrong.name]
    remove(store, to_remove(store, 1, right.name))
    assert names_of(store) == [right.name] and not verify(store, quiet).damaged_backups


def test_the_backup_of_this_run_stays_though_another_one_holds_more(
    ingest: Ingest, target: Path, tmp_path: Path
) -> None:
    store = Directory(target)
    late = running(tmp_path / "late")
    ahead, _ = backed_up(store, more(ingest), 1)
    made, _ = backed_up(store, late, 2)
    assert chosen(store, None).name == ahead.name
    assert to_remove(store, 1, made.name).backups == []
    assert to_remove(store, 1).backups == [made.name]
    late.wheel.close()


def test_a_broken_backup_does_not_count_as_one_that_is_kept(ingest: Ingest, target: Path) -> None:
    store = Directory(target)
    whole, _ = backed_up(store, ingest, 1)
    broken, _ = backed_up(store, more(ingest), 2)
    (target / "packs" / next(iter(broken.manifest.packs - whole.manifest.packs))).unlink()
    assert to_remove(store, 1).backups == []


def test_the_newest_whole_backup_is_chosen(ingest: Ingest, target: Path) -> None:
    store = Directory(target)
    whole, _ = backed_up(store, ingest, 1)
    broken, _ = backed_up(store, more(ingest), 2)
    cut, _ = backed_up(store, more(ingest), 3)
    (target / "packs" / next(iter(broken.manifest.packs - whole.manifest.packs))).unlink()
    (target / "backups" / cut.name).write_bytes(b"{")
    found = chosen(store, None)
    assert found.name == whole.name
    assert [line.partition(":")[0] for line in found.passed_over] == [cut.name, broken.name]
    assert "packs are missing" in found.passed_over[1]
    for path in (target / "packs").iterdir():
        path.unlink()
    with pytest.raises(BackupError, match="no backup here is whole"):
        chosen(store, None)


# Beside other runs.


def test_a_removal_beside_a_run_is_noticed_by_the_run(ingest: Ingest, target: Path) -> None:
    """It removes what it decided on before, when the manifest is about to be written."""
    store = Directory(target)
    backed_up(store, ingest, 1)

    def lose() -> None:
        next((target / "packs").iterdir()).unlink()

    beside = Counted(target, once(lose, "written", "backups/"), is_exclusive=False)
    with pytest.raises(BackupError, match="was removed meanwhile; no backup was made"):
        backed_up(beside, more(ingest), 2)
    assert len(names_of(store)) == 1
    saved, _ = backed_up(store, ingest, 3)
    assert chosen(store, None).name == saved.name
    assert not backups_in(store)[-1].problem


def test_a_pack_that_a_backup_names_meanwhile_stays(ingest: Ingest, target: Path) -> None:
    """This run has seen no backup that needs them; then another one is made of them."""
    store = Directory(target)
    old, _ = backed_up(store, ingest, 1)
    (target / "backups" / old.name).rename(target / "old")
    made_earlier(target, 2 * SPARED_MS)
    new, _ = backed_up(store, changed(ingest), 2)

    def another_run() -> None:
        (target / "old").rename(target / "backups" / old.name)

    beside = Counted(target, lambda *_: None, is_exclusive=False)
    removed = to_remove(beside, 1, new.name)
    assert removed.packs
    another_run()
    remove(beside, removed)
    assert [each.problem for each in backups_in(store)] == ["", ""]


def test_a_pack_that_a_backup_names_too_late_is_told(ingest: Ingest, target: Path) -> None:
    store = Directory(target)
    old, _ = backed_up(store, ingest, 1)
    (target / "backups" / old.name).rename(target / "old")
    made_earlier(target, 2 * SPARED_MS)
    new, _ = backed_up(store, changed(ingest), 2)

    def another_run() -> None:
        (target / "old").rename(target / "backups" / old.name)

    beside = Counted(target, once(another_run, "remove", "packs/"), is_exclusive=False)
    with pytest.raises(BackupError, match="a backup was made meanwhile"):
        remove(beside, to_remove(beside, 1, new.name))
    assert chosen(store, None).name == new.name


def test_packs_that_no_backup_names_yet_are_spared_for_a_day(ingest: Ingest, target: Path) -> None:
    """Another run has written them, and not its manifest yet."""
    store = Directory(target)
    without_locks = Counted(target, lambda *_: None, is_exclusive=False)
    saved, _ = backed_up(store, ingest, 1)
    store.write("packs/unnamed.pack", b"")
    assert to_remove(store, 1, saved.name).packs == ["unnamed.pack"]
    assert to_remove(without_locks, 1, saved.name).packs == []
    made_earlier(target, SPARED_MS)
    store.write("packs/another.pack", b"")
    assert to_remove(without_locks, 1, saved.name).packs == ["unnamed.pack"]


def test_packs_of_outgoing_backups_go_with_the_next_run(ingest: Ingest, target: Path) -> None:
    without_locks = Counted(target, lambda *_: None, is_exclusive=False)
    backed_up(without_locks, ingest, 1)
    made_earlier(target, 2 * SPARED_MS)
    saved, _ = backed_up(without_locks, changed(ingest), 2)
    removed = to_remove(without_locks, 1, saved.name)
    assert len(removed.backups) == 1 and removed.packs == []
    remove(without_locks, removed)
    removed = to_remove(without_locks, 1, saved.name)
    assert removed.backups == [] and removed.packs
    remove(without_locks, removed)
    assert without_locks.names("packs") == saved.manifest.packs


def test_a_store_without_times_gives_up_what_outgoing_backups_named(
    ingest: Ingest, target: Path
) -> None:
    without_times = Counted(target, lambda *_: None, is_exclusive=False)
    without_times.times = {}
    backed_up(without_times, ingest, 1)
    without_times.write("packs/unnamed.pack", b"")
    saved, _ = backed_up(without_times, changed(ingest), SPARED_MS)
    assert to_remove(without_times, 1, saved.name).packs == []
    saved, _ = backed_up(without_times, ingest, SPARED_MS + 1)
    removed = to_remove(without_times, 1, saved.name)
    assert removed.packs and "unnamed.pack" not in removed.packs
    remove(without_times, removed)
    assert not verify(without_times, quiet).damaged_backups


def test_what_is_removed_while_it_is_verified_is_no_damage(ingest: Ingest, target: Path) -> None:
    store = Directory(target)
    backed_up(store, ingest, 1)
    saved, _ = backed_up(store, changed(ingest), 2)

    def another_run() -> None:
        remove(store, to_remove(store, 1, saved.name))

    found = verify(Counted(target, once(another_run, "read", "packs/")), quiet)
    assert (found.backups, found.damaged_packs, found.damaged_backups) == (1, {}, {})
