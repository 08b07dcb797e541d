"""Restoring: a verified wheel in a data directory, made from a backup, for a node to start from.

    1. refuse   another cluster's backup, a directory with a wheel in it, a buffer that was trimmed
                beyond the backup
    2. copy     into DIR/fetch, as from another node (`delayd.wheel.draft`)
    3. verify   every frame, by the catalogue
    4. install  format.json last

A run that is killed, or that meets a full disk or a damaged backup, leaves no wheel; the next one
goes on.

A node that starts from it reads the buffer from the backup's checkpoint on. If the buffer begins
behind that, a node does not use the wheel: it proves that all that was trimmed is done and rebuilds
from the buffer, or copies another node's wheel, or ends with `buffer-position`
(docs/design/trimmed.md, "A checkpoint that the log does not reach").
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from delayd.bus import Bus
from delayd.commands.backup.manifest import Manifest
from delayd.commands.backup.source import BackupSource
from delayd.commands.backup.stores import Store
from delayd.errors import BackupError, ConfigError, CorruptionError
from delayd.runtime.clock import Clock
from delayd.wheel import Progress
from delayd.wheel.draft import Draft, Tell, finish, remove_replaced
from delayd.wheel.layout import FORMAT_VERSION
from delayd.wheel.stopped import locked, open_stopped
from replication.record import FrontierFormatError, decode
from replication.settings import Settings

_WHEEL: Final = frozenset({"format.json", "catalogue", "slots"})
_HARMLESS: Final = frozenset({"fetch", "exports", "reserve", "audits", "damage.json", "lost+found"})
"""What a directory without a wheel may hold: a copy on its way, what a node makes first, reports of
audits, what a file system makes."""


class Restored(NamedTuple):
    """A wheel that was made."""

    progress: Progress | None
    """Its checkpoint; None if only its installation was left to be done."""
    took_ms: int


def refuse_other_cluster(manifest: Manifest, settings: Settings) -> None:
    """Raise BackupError unless the backup is of this cluster."""
    theirs = (manifest.about["realm"], manifest.about["buffer"])
    if theirs != (settings.realm, settings.buffer.topic_id):
        raise BackupError(
            f"the backup is of the cluster {theirs[0]} with the buffer {theirs[1]}, and this one "
            f"is {settings.realm} with {settings.buffer.topic_id}",
            remedy="nodes take only their own cluster's wheel; `delayd move` brings pending "
            "messages into another cluster",
        )


def refuse_trimmed(
    manifest: Manifest, settings: Settings, bus: Bus, timeout_ms: int, *, is_told: bool
) -> Sequence[str]:
    """Return what a person must know of the buffer. Raise BackupError if no node would use the
    wheel, unless told that it is wanted all the same."""
    with closing(bus.cluster()) as kafka:
        starts = kafka.start_offsets(settings.buffer.name, timeout_ms)
        ends = kafka.end_offsets(settings.buffer.name, timeout_ms, committed=False)
    lines = [
        f"{settings.buffer.name}/{p} begins at offset {start}, and the backup has read up to "
        f"{manifest.about['reached'][p]}"
        for p, start in sorted(starts.items())
        if start > manifest.about["reached"][p]
    ]
    lines += [
        f"{settings.buffer.name}/{p} ends at offset {end}, and the backup has read up to "
        f"{manifest.about['ingested'][p]}: the topic has lost records"
        for p, end in sorted(ends.items())
        if end < manifest.about["ingested"][p]
    ]
    if lines and not is_told:
        raise BackupError(
            f"no node would use this wheel, because what it has not read is gone: "
            f"{'; '.join(lines)}",
            remedy="restore a newer backup if there is one. A node that finds such a wheel "
            "rebuilds from the buffer if it can prove that nothing else is needed, and ends "
            "otherwise. --behind-the-log makes the wheel all the same, to look into it or for "
            "`delayd move`",
        )
    return lines


def refuse_full(directory: Path) -> None:
    """Raise BackupError if a directory holds a wheel, or what is none of a node; DiskError if a
    node runs there."""
    if not directory.exists():
        if not directory.parent.is_dir():
            raise ConfigError(
                f"there is no directory {directory.parent}",
                remedy="mount the volume of the data directory, or make the directory",
            )
        return
    try:
        names = {path.name for path in directory.iterdir()}
    except OSError as error:
        raise ConfigError(
            f"{directory}: {error.strerror}", remedy="name a directory that this user may write to"
        ) from error
    if strangers := sorted(names - _WHEEL - _HARMLESS):
        raise BackupError(
            f"{directory} is not empty: it holds {strangers[0]}",
            remedy="name an empty directory; move away what is there if nobody needs it",
        )
    if names & _WHEEL and (offsets := _ingested_in(directory)) is not None:
        raise BackupError(
            f"{directory} holds a wheel, which has read the buffer up to {list(offsets)}",
            remedy="a node can start on it; move it away if it shall not. Nothing was changed",
        )


def _ingested_in(directory: Path) -> tuple[int, ...] | None:
    """Return how far the wheel in a directory is; None if it holds nothing yet, as a node leaves it
    that could not begin."""
    try:
        with locked(directory) as layout, open_stopped(layout) as wheel:
            return None if wheel.progress is None else wheel.progress.offsets
    except CorruptionError as error:
        raise BackupError(
            f"{directory} holds a damaged wheel: {error.message}",
            remedy="move it away. Nothing was changed",
        ) from error


def restore(
    store: Store,
    name: str,
    manifest: Manifest,
    directory: Path,
    clock: Clock,
    tell: Tell,
    *,
    spare_bytes: int,
) -> Restored:
    """Make the wheel. `spare_bytes` stay free beside it.

    Raises BackupError, which names what is damaged; DiskError and DiskFullError of this disk. In
    each case no wheel was made, and the next call goes on.
    """
    if manifest.about["wheel_format"] != FORMAT_VERSION:
        raise BackupError(
            f"the backup is of a wheel of format {manifest.about['wheel_format']}, and this "
            f"version of delayd knows {FORMAT_VERSION}",
            remedy="restore it with the version of delayd that made it, or a newer one",
        )
    began_ms = clock.monotonic_ms()
    draft = Draft(directory)
    source = {"backup": name}
    if draft.source == source and finish(directory):
        remove_replaced(directory)
        return Restored(None, clock.monotonic_ms() - began_ms)
    refuse_full(directory)
    with draft.locked():
        if draft.source != source:
            draft.clear()
            draft.require_room(manifest.bytes + 2 * manifest.catalogue_bytes, spare_bytes)
            draft.begin(source)
        draft.copy(BackupSource(store, manifest), tell)
        try:
            progress = draft.verify(manifest.about["partitions"], tell)
            _require_same(manifest.about, progress)
        except CorruptionError as error:
            draft.clear()
            raise BackupError(
                f"the backup {name} is damaged: {error.message}",
                remedy="no wheel was made; restore an older backup by --at",
            ) from error
        draft.install(0)
    # An empty wheel may have been there.
    remove_replaced(directory)
    return Restored(progress, clock.monotonic_ms() - began_ms)


def _require_same(about: Mapping[str, object], progress: Progress) -> None:
    """Raise CorruptionError unless the checkpoint is the one that the manifest speaks of."""
    if list(progress.offsets) != about["ingested"]:
        raise CorruptionError(f"its checkpoint has read up to {list(progress.offsets)}")
    try:
        of_whom = decode(progress.frontier).settings if progress.frontier else None
    except FrontierFormatError as error:
        raise CorruptionError(f"its checkpoint: {error}") from error
    if of_whom is not None and of_whom.buffer.topic_id != about["buffer"]:
        raise CorruptionError("its checkpoint is another cluster's")
