"""Backups of a wheel without nodes and without a cluster, for tests."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from cluster_settings import PARTITIONS, SETTINGS
from wheel_snapshots import LINES_BYTES
from wheels_on_disk import Ingest

from delayd.commands.backup.manifest import claim, read_manifest
from delayd.commands.backup.restoring import restore
from delayd.commands.backup.saving import Saved, known_in, save
from delayd.commands.backup.stores import Directory, Store
from delayd.runtime.clock import SystemClock
from delayd.wheel.layout import FORMAT_VERSION
from delayd.wheel.snapshot import Line, Snapshot

WHOSE: Final = {
    "cluster": SETTINGS.cluster,
    "prefix": SETTINGS.prefix,
    "realm": SETTINGS.realm,
    "buffer": SETTINGS.buffer.topic_id,
    "partitions": PARTITIONS,
}


def quiet(*told: Any) -> None:
    """Tell nobody."""


class Killed(BaseException):
    """As if the process had ended here."""


class Giving:
    """A snapshot as a donor gives it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.catalogue_bytes = snapshot.catalogue_bytes
        self.given_bytes = 0
        """Of files."""
        self._snapshot = snapshot

    def lines_after(self, key: bytes) -> Sequence[Line]:
        return self._snapshot.lines_after(key, LINES_BYTES)

    def bytes_at(self, position: int, size_bytes: int | None = None) -> bytes:
        assert size_bytes
        data = self._snapshot.bytes_at(position, size_bytes)
        self.given_bytes += len(data)
        return data


@contextmanager
def snapshot_of(ingest: Ingest) -> Any:
    """A held snapshot of its last checkpoint."""
    ingest.wheel.snapshots.hold()
    with closing(ingest.wheel.snapshots.open()) as snapshot:
        yield snapshot
    ingest.wheel.snapshots.release()


def backed_up(store: Store, ingest: Ingest, made_ms: int = 1) -> tuple[Saved, int]:
    """A backup of its last checkpoint, and how many bytes of files the donor gave for it."""
    with snapshot_of(ingest) as snapshot:
        donor = Giving(snapshot)
        about = {
            **WHOSE,
            "wheel_format": FORMAT_VERSION,
            "node": "n1",
            "ingested": list(snapshot.progress.offsets),
            "reached": list(snapshot.progress.offsets),
        }
        claim(store, about)
        saved = save(store, known_in(store, quiet), donor, quiet, about, made_ms)
        return saved, donor.given_bytes


def restored(store: Store, name: str, directory: Path, spare_bytes: int = 0) -> Path:
    """A directory with the wheel of a backup."""
    manifest = read_manifest(store, name)
    restore(store, name, manifest, directory, SystemClock(), quiet, spare_bytes=spare_bytes)
    return directory


def frozen(ingest: Ingest, to: Path) -> Path:
    """What a wheel has on its disk now."""
    shutil.copytree(ingest.directory, to)
    (to / "catalogue" / "LOCK").unlink()
    return to


class Counted:
    """A store that is killed at one of its calls, or in which something else happens then."""

    def __init__(
        self, root: Path, before: Callable[[str, str], object], *, is_exclusive: bool = True
    ) -> None:
        """`before` gets the method and the name of each call that changes or reads an object."""
        self.is_exclusive = is_exclusive
        self.times: dict[str, int] | None = None
        """Those of the store if they are not to be the directory's."""
        self._store = Directory(root)
        self._before = before

    def locked(self) -> Any:
        return self._store.locked()

    def names(self, folder: str = "") -> set[str]:
        return self._store.names(folder)

    def times_ms(self, folder: str) -> dict[str, int]:
        return self._store.times_ms(folder) if self.times is None else self.times

    def read(self, name: str, first: int = 0, end: int | None = None) -> bytes:
        self._before("read", name)
        return self._store.read(name, first, end)

    def write(self, name: str, data: bytes) -> None:
        self._before("write", name)
        self._store.write(name, data)
        self._before("written", name)

    def remove(self, name: str) -> None:
        self._before("remove", name)
        self._store.remove(name)


def killing_at(number: int, methods: Sequence[str]) -> Callable[[str, str], None]:
    """What kills at the call of this number, from 0 on."""
    left = [number]

    def before(method: str, name: str) -> None:
        if method in methods:
            if not left[0]:
                raise Killed
            left[0] -= 1

    return before
