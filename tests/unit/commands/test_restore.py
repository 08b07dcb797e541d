"""Restoring: a whole wheel or none, in an empty directory, of the cluster that it is from.

Source: docs/design/storage.md, "Backups".
"""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from backups import WHOSE, Counted, Killed, backed_up, frozen, killing_at, quiet, restored
from cluster_settings import PARTITIONS, SETTINGS
from manual_clock import ManualClock
from wheel_snapshots import contents_of, running

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.commands.backup import packs, saving
from delayd.commands.backup.manifest import Manifest, read_manifest
from delayd.commands.backup.restoring import refuse_other_cluster, refuse_trimmed, restore
from delayd.commands.backup.stores import Directory
from delayd.errors import BackupError, ConfigError, DiskFullError
from delayd.runtime.clock import SystemClock
from delayd.wheel.disk import OpenFile, SystemDisk
from delayd.wheel.storage import Wheel


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_BYTES", 20_000)
    monkeypatch.setattr(saving, "BLOB_BYTES", 1_000)
    monkeypatch.setattr(saving, "LINES_CUT", 0x1F)


class Made:
    """A backup, and what it is of."""

    def __init__(self, folder: Path) -> None:
        ingest = running(folder / "a")
        (folder / "target").mkdir()
        self.target = folder / "target"
        self.store = Directory(self.target)
        self.saved, _ = backed_up(self.store, ingest)
        self.name, self.manifest = self.saved.name, self.saved.manifest
        self.wanted = contents_of(frozen(ingest, folder / "frozen"))
        ingest.wheel.close()


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_a_killed_restore_goes_on(made: Made, tmp_path: Path) -> None:
    manifest = read_manifest(made.store, made.name)
    for number in range(0, len(manifest.packs), 3):
        directory = tmp_path / f"b{number}"
        store = Counted(made.target, killing_at(number, ("read",)))
        with pytest.raises(Killed):
            restore(store, made.name, manifest, directory, SystemClock(), quiet, spare_bytes=0)
        assert not (directory / "format.json").exists()
        assert contents_of(restored(made.store, made.name, directory)) == made.wanted


def test_one_that_was_killed_while_it_took_its_place_goes_on(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(self: Path, target: Path) -> Path:
        if Path(target).name == "format.json":
            raise Killed
        os.rename(self, target)  # noqa: PTH104
        return target

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "rename", kill)
        restored(made.store, made.name, tmp_path / "b")
    assert (tmp_path / "b" / "slots").exists() and not (tmp_path / "b" / "format.json").exists()
    assert contents_of(restored(made.store, made.name, tmp_path / "b")) == made.wanted


def test_a_full_disk_leaves_no_wheel_and_the_next_run_goes_on(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = SystemDisk.append, []

    def full(self: SystemDisk, file: OpenFile, data: bytes | bytearray) -> None:
        calls.append(file.path)
        if len(calls) == 20:
            raise DiskFullError(os.strerror(errno.ENOSPC))
        append(self, file, data)

    with monkeypatch.context() as patch, pytest.raises(DiskFullError):
        patch.setattr(SystemDisk, "append", full)
        restored(made.store, made.name, tmp_path / "b")
    assert not (tmp_path / "b" / "format.json").exists()
    assert contents_of(restored(made.store, made.name, tmp_path / "b")) == made.wanted


def test_too_little_room_is_said_before_anything_is_copied(made: Made, tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="would be free in"):
        restored(made.store, made.name, tmp_path / "b", spare_bytes=1 << 60)
    assert not list((tmp_path / "b").rglob("*.log"))
    # The next run says so, too.
    with pytest.raises(DiskFullError, match="would be free in"):
        restored(made.store, made.name, tmp_path / "b", spare_bytes=1 << 60)


def test_another_backup_begins_again(made: Made, tmp_path: Path) -> None:
    store = Counted(made.target, killing_at(3, ("read",)))
    with pytest.raises(Killed):
        restore(
            store, "other.json", made.manifest, tmp_path / "b", SystemClock(), quiet, spare_bytes=0
        )
    assert contents_of(restored(made.store, made.name, tmp_path / "b")) == made.wanted


def test_damage_in_any_pack_leaves_no_wheel(made: Made, tmp_path: Path) -> None:
    for number, pack in enumerate(sorted(made.manifest.packs)):
        path = made.target / "packs" / pack
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(BackupError, match=f"{pack} is damaged"):
            restored(made.store, made.name, tmp_path / f"b{number}")
        assert not (tmp_path / f"b{number}" / "format.json").exists()
        path.write_bytes(whole)
    # It goes on when the pack is back.
    assert contents_of(restored(made.store, made.name, tmp_path / "b0")) == made.wanted


def test_a_manifest_of_something_else_is_refused(made: Made, tmp_path: Path) -> None:
    wrong = replace(made.manifest, about={**made.manifest.about, "ingested": [1, 1]})
    with pytest.raises(BackupError, match="its checkpoint has read up to"):
        restore(made.store, made.name, wrong, tmp_path / "b", SystemClock(), quiet, spare_bytes=0)
    assert not (tmp_path / "b" / "format.json").exists()


# Where it goes.


def test_a_directory_with_a_wheel_is_refused(made: Made, tmp_path: Path) -> None:
    restored(made.store, made.name, tmp_path / "b")
    with pytest.raises(BackupError, match="holds a wheel, which has read the buffer up to"):
        restored(made.store, made.name, tmp_path / "b")
    assert contents_of(tmp_path / "b") == made.wanted


def test_a_directory_with_anything_else_is_refused(made: Made, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes").touch()
    with pytest.raises(BackupError, match="is not empty: it holds notes"):
        restored(made.store, made.name, tmp_path / "b")
    with pytest.raises(ConfigError, match="Not a directory"):
        restored(made.store, made.name, tmp_path / "b" / "notes")
    with pytest.raises(ConfigError, match="there is no directory"):
        restored(made.store, made.name, tmp_path / "away" / "b")


def test_what_a_node_leaves_that_could_not_begin_is_empty(made: Made, tmp_path: Path) -> None:
    Wheel.open(tmp_path / "b", partitions=PARTITIONS).close()
    (tmp_path / "b" / "lost+found").mkdir()
    assert contents_of(restored(made.store, made.name, tmp_path / "b")) == made.wanted
    assert not (tmp_path / "b" / "replaced").exists()


# The cluster.


def test_another_clusters_backup_is_refused(made: Made) -> None:
    refuse_other_cluster(made.manifest, SETTINGS)
    for other in (
        replace(SETTINGS, buffer=replace(SETTINGS.buffer, topic_id="another")),
        replace(SETTINGS, cluster="another"),
    ):
        with pytest.raises(BackupError, match="the backup is of the cluster"):
            refuse_other_cluster(made.manifest, other)


def bus_with(records: int, start: int) -> MemoryBus:
    """A buffer that begins and ends at these offsets, in each partition."""
    kafka = MemoryKafka(ManualClock(10**12))
    kafka.create_topic(SETTINGS.buffer.name, PARTITIONS)
    for partition in range(PARTITIONS):
        for _ in range(records):
            kafka.append(SETTINGS.buffer.name, partition, None, b"v")
        kafka.log(SETTINGS.buffer.name, partition).delete_before(start)
    return MemoryBus(kafka)


def read_up_to(made: Made, reached: int) -> Manifest:
    offsets = [reached] * PARTITIONS
    return replace(made.manifest, about={**WHOSE, "reached": offsets, "ingested": offsets})


def test_a_wheel_that_no_node_would_use_is_refused_unless_it_is_wanted(made: Made) -> None:
    """docs/design/trimmed.md, A checkpoint that the log does not reach."""
    manifest = read_up_to(made, 10)
    for start in (0, 10):
        assert not refuse_trimmed(manifest, SETTINGS, bus_with(20, start), 100, is_told=False)
    bus = bus_with(20, 11)
    with pytest.raises(BackupError, match="delayd-buffer/0 begins at offset 11, and the backup"):
        refuse_trimmed(manifest, SETTINGS, bus, 100, is_told=False)
    assert len(refuse_trimmed(manifest, SETTINGS, bus, 100, is_told=True)) == PARTITIONS


def test_a_buffer_that_has_lost_records_is_named(made: Made) -> None:
    with pytest.raises(BackupError, match="the topic has lost records"):
        refuse_trimmed(read_up_to(made, 21), SETTINGS, bus_with(20, 0), 100, is_told=False)
