"""Backups that are there: listed, verified, removed.

    remove      1. manifests, the oldest first   2. packs that no manifest names any more

A kill in between leaves packs that nothing names; the next run uses or removes them. If a manifest
cannot be read, nobody knows which packs it names: then no pack is removed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from delayd.commands.backup.manifest import FOLDER as BACKUPS
from delayd.commands.backup.manifest import Manifest, names_of, read_manifest
from delayd.commands.backup.packs import FOLDER as PACKS
from delayd.commands.backup.packs import read_pack
from delayd.commands.backup.stores import Store
from delayd.errors import BackupError
from delayd.wheel.frame import crc_of

FILES_TOLD: Final = 20
"""Files that are named of each backup; further ones are counted."""


class Listed(NamedTuple):
    """A backup that is there."""

    name: str
    manifest: Manifest | None
    """None if it cannot be read."""
    problem: str
    """What is wrong with it; empty if nothing is, as far as names tell."""


def backups_in(store: Store) -> list[Listed]:
    """Return all backups, the oldest first. Raises BackupError if the store does not answer."""
    there = store.names(PACKS)
    found = []
    for name in names_of(store):
        try:
            manifest = read_manifest(store, name)
        except BackupError as error:
            found.append(Listed(name, None, error.message))
            continue
        lost = len(manifest.packs - there)
        found.append(Listed(name, manifest, f"{lost} packs are missing" if lost else ""))
    return found


def chosen(store: Store, at_ms: int | None) -> tuple[str, Manifest]:
    """Return the newest backup that was made by then, or the newest of all. Raises BackupError."""
    listed = backups_in(store)
    fitting = [
        each
        for each in listed
        if each.manifest is None or at_ms is None or each.manifest.made_ms <= at_ms
    ]
    if not fitting:
        raise BackupError(
            "there is no backup here" + (" that is so old" if listed else ""),
            remedy="see `delayd backup --list`",
        )
    name, manifest, problem = fitting[-1]
    if manifest is None:
        raise BackupError(problem, remedy="remove it, or choose an older one by --at")
    return name, manifest


@dataclass(slots=True)
class Verified:
    """What a verification has found."""

    backups: int = 0
    packs: int = 0
    bytes: int = 0
    damaged_packs: dict[str, str] = field(default_factory=dict)
    """By pack: what is wrong."""
    damaged_backups: dict[str, list[str]] = field(default_factory=dict)
    """By backup: what of it cannot be restored."""
    unnamed_packs: int = 0
    """Packs of no backup: those of a run that was killed."""


def verify(store: Store, tell: Callable[[str, int, int], None]) -> Verified:
    """Read every pack and compare it with its name, and each blob with its checksum in each
    backup. Damage is returned; BackupError if the store does not answer."""
    found = Verified()
    listed = backups_in(store)
    manifests = {each.name: each.manifest for each in listed if each.manifest is not None}
    found.backups = len(listed)
    for each in listed:
        if each.manifest is None:
            found.damaged_backups[each.name] = [each.problem]
    wanted: dict[str, set[tuple[int, int, int]]] = {}
    for manifest in manifests.values():
        for blob in manifest.blobs():
            wanted.setdefault(blob.pack, set()).add((blob.at, blob.size, blob.crc))
    for done, pack in enumerate(sorted(wanted)):
        tell("verifying", done, len(wanted))
        try:
            data = read_pack(store, pack)
            if any(crc_of([data[at : at + size]]) != crc for at, size, crc in wanted[pack]):
                raise BackupError(f"{PACKS}/{pack} differs from the checksums of a backup")
        except BackupError as error:
            found.damaged_packs[pack] = error.message
            continue
        found.packs += 1
        found.bytes += len(data)
    for name, manifest in manifests.items():
        if manifest.packs & set(found.damaged_packs):
            found.damaged_backups[name] = _damaged_in(manifest, set(found.damaged_packs))
    found.unnamed_packs = len(store.names(PACKS) - set(wanted))
    return found


def _damaged_in(manifest: Manifest, packs: set[str]) -> list[str]:
    files = [f.file for f in manifest.files if any(blob.pack in packs for blob in f.blobs)]
    told = files[:FILES_TOLD]
    if len(files) > len(told):
        told.append(f"{len(files) - len(told)} further files")
    if any(lines.blob.pack in packs for lines in manifest.lines):
        told.insert(0, "catalogue")
    return told


class Removed(NamedTuple):
    """What a removal removes."""

    backups: list[str]
    packs: list[str]


def to_remove(store: Store, keep: int) -> Removed:
    """Return what goes if so many backups stay. Raises BackupError if that cannot be known."""
    listed = backups_in(store)
    unreadable = [each.problem for each in listed if each.manifest is None]
    if unreadable:
        raise BackupError(
            f"nothing is removed: {unreadable[0]}",
            remedy="nobody knows which packs it needs; remove that backup by hand if you can do "
            "without it",
        )
    old = [each.name for each in listed[: max(0, len(listed) - keep)]]
    needed: set[str] = set()
    for each in listed[len(old) :]:
        assert each.manifest is not None, "all were read"
        needed |= each.manifest.packs
    return Removed(old, sorted(store.names(PACKS) - needed))


def remove(store: Store, removed: Removed) -> None:
    """Remove it. Raises BackupError; the next removal goes on."""
    for name in removed.backups:
        store.remove(f"{BACKUPS}/{name}")
    for name in removed.packs:
        store.remove(f"{PACKS}/{name}")
