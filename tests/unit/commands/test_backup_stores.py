"""Where backups lie: a directory and an object store keep the same rules."""

import errno
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from backups import backed_up, frozen, quiet, restored
from wheel_snapshots import contents_of, running

from delayd.commands.backup.keeping import verify
from delayd.commands.backup.stores import (
    Directory,
    NoSuchObjectError,
    Remote,
    Store,
    _time_of,
    open_store,
)
from delayd.errors import BackupError, DiskFullError


@pytest.fixture(params=["directory", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()
        return open_store(f"memory://bucket/{tmp_path.name}")
    (tmp_path / "target").mkdir()
    url = str(tmp_path / "target")
    found = open_store(url if request.param == "directory" else f"file://{url}")
    assert isinstance(found, Directory)
    return found


def test_an_object_is_what_was_written(store: Store) -> None:
    assert store.names() == set() and store.names("packs") == set()
    store.write("packs/a", b"0123456789")
    store.write("b", b"")
    assert (store.names(), store.names("packs")) == ({"b"}, {"a"})
    assert store.read("packs/a") == b"0123456789"
    assert store.read("packs/a", 2, 5) == b"234" and store.read("packs/a", 7) == b"789"
    store.remove("packs/a")
    store.remove("packs/a")
    assert store.names("packs") == set()
    with pytest.raises(NoSuchObjectError, match="is missing"):
        store.read("packs/a")


def test_an_object_has_the_time_of_the_store(store: Store) -> None:
    before_ms = time.time_ns() // 1_000_000
    store.write("packs/a", b"0123456789")
    at_ms = store.times_ms("packs")["a"]
    # The clock of a file system ticks more coarsely.
    assert before_ms - 1_000 <= at_ms <= time.time_ns() // 1_000_000 + 1_000
    assert store.times_ms("none") == {}


@pytest.mark.parametrize(
    "said",
    [
        {"LastModified": datetime(2026, 1, 31, 12, tzinfo=UTC)},
        {"updated": "2026-01-31T12:00:00.000Z"},
        {"last_modified": datetime(2026, 1, 31, 12, tzinfo=UTC)},
        {"created": datetime(2026, 1, 31, 12)},
        {"created": 1_769_860_800.0},
    ],
)
def test_drivers_name_the_time_as_they_like(said: dict[str, Any]) -> None:
    assert _time_of(said) == 1_769_860_800_000


def test_a_driver_may_say_no_time() -> None:
    assert _time_of({"updated": "yesterday", "mtime": None}) is None


def test_a_backup_in_it_is_restored(store: Store, tmp_path: Path) -> None:
    ingest = running(tmp_path / "a")
    with store.locked():
        backed_up(store, ingest)
        ingest.append(100)
        ingest.checkpoint()
        saved, _ = backed_up(store, ingest, 2)
    assert contents_of(restored(store, saved.name, tmp_path / "b")) == contents_of(
        frozen(ingest, tmp_path / "frozen")
    )
    assert not verify(store, quiet).damaged_backups
    ingest.wheel.close()


def test_a_directory_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="there is no directory"):
        open_store(str(tmp_path / "away"))


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    one, other = Directory(tmp_path), Directory(tmp_path)
    with one.locked(), pytest.raises(BackupError, match="another process writes"), other.locked():
        pass
    with other.locked():
        pass


def test_what_was_half_written_is_nothing(tmp_path: Path) -> None:
    store = Directory(tmp_path)
    store.write("packs/a", b"a")
    (tmp_path / "packs" / ".b.new").write_bytes(b"half")
    assert store.names("packs") == {"a"}
    with store.locked():
        assert not (tmp_path / "packs" / ".b.new").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Directory(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("delayd.commands.backup.stores.os.fsync", full)
    with pytest.raises(DiskFullError, match="No space left"):
        store.write("packs/a", b"a")
    assert list((tmp_path / "packs").iterdir()) == []


def test_a_protocol_without_its_driver_names_the_extra() -> None:
    with pytest.raises(BackupError, match=r"delayd\[backup\]"):
        open_store("nonsense://bucket")


def test_what_a_driver_raises_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory://bucket")
    assert isinstance(store, Remote)

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("403")

    for call, name in (("pipe_file", "write"), ("cat_file", "read"), ("ls", "names")):
        monkeypatch.setattr(store._files, call, refuse)
        arguments = ("a", b"") if name == "write" else ("a",)
        method: Callable[..., object] = getattr(store, name)
        with pytest.raises(BackupError, match="RuntimeError: 403"):
            method(*arguments)
