"""Backups that are there: listed, verified, removed.

    remove      1. manifests, the oldest first   2. packs that no manifest names any more

What backups hold tells which is newer (`Manifest.age`), not the clocks of the hosts that made them.
On a store without locks other runs may make backups meanwhile: manifests are read again
just before packs are removed, and packs that such a run may be about to name are spared.

A kill in between leaves packs that nothing names; the next run uses or removes them. If a manifest
cannot be read, nobody knows which packs it names: then no pack is removed.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from delayd.commands.backup.manifest import FOLDER as BACKUPS
from delayd.commands.backup.manifest import Manifest, names_of, read_manifest
from delayd.commands.backup.packs import FOLDER as PACKS
from delayd.commands.backup.packs import read_pack
from delayd.commands.backup.stores import Store
from delayd.errors import BackupError
from delayd.wheel.frame import crc_of

SPARED_MS: Final = 24 * 3_600_000
"""Packs that no backup names are spared so long, where other runs may be about to name them."""
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
    """Return all backups, by what they hold, the oldest first; last those that cannot be read,
    because nobody knows what they hold. Raises BackupError if the store does not answer."""
    there = store.names(PACKS)
    manifests: dict[str, Manifest] = {}
    illegible = []
    for name in names_of(store):
        try:
            manifests[name] = read_manifest(store, name)
        except BackupError as error:
            illegible.append(Listed(name, None, error.message))
    last = max(manifests.values(), key=lambda manifest: manifest.number, default=None)
    damaged = last.damaged_packs if last else frozenset()
    return [
        *(
            Listed(name, manifest, _problem_of(manifest, there, damaged))
            for name, manifest in sorted(manifests.items(), key=lambda each: each[1].age)
        ),
        *illegible,
    ]


def _problem_of(manifest: Manifest, there: Set[str], damaged: Set[str]) -> str:
    """Return why it cannot be restored; empty if nothing is known."""
    lost, rotten = len(manifest.packs - there), len(manifest.packs & damaged)
    return ", ".join(
        [f"{lost} packs are missing"] * (lost > 0) + [f"{rotten} packs are damaged"] * (rotten > 0)
    )


class Chosen(NamedTuple):
    """The backup to restore."""

    name: str
    manifest: Manifest
    passed_over: Sequence[str]
    """Newer ones that cannot be restored, and why, in a line each."""


def chosen(store: Store, at_ms: int | None) -> Chosen:
    """Return the newest whole backup that was made by then, or the newest whole one of all; whole
    as far as names tell. Raises BackupError if there is none."""
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
    passed_over: list[str] = []
    for name, manifest, problem in reversed(fitting):
        if manifest is not None and not problem:
            return Chosen(name, manifest, passed_over)
        passed_over.append(f"{name}: {problem}")
    raise BackupError(
        f"no backup here is whole: {'; '.join(passed_over)}",
        remedy="see `delayd backup --list`; the next `delayd backup` copies what is missing again",
    )


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
    _forget_removed(store, manifests, found)
    for name, manifest in manifests.items():
        if manifest.packs & set(found.damaged_packs):
            found.damaged_backups[name] = _damaged_in(manifest, set(found.damaged_packs))
    found.unnamed_packs = len(store.names(PACKS) - set(wanted))
    return found


def _forget_removed(store: Store, manifests: dict[str, Manifest], found: Verified) -> None:
    """Forget the backups that another run has removed meanwhile, and what they alone needed."""
    there = set(names_of(store))
    for name in set(manifests) - there:
        del manifests[name]
        found.backups -= 1
    needed = {pack for manifest in manifests.values() for pack in manifest.packs}
    for pack in set(found.damaged_packs) - needed:
        del found.damaged_packs[pack]


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

    backups: Sequence[str]
    packs: Sequence[str]
    kept: frozenset[str] = frozenset()
    """The backups that stay; none of them needs any of the packs."""


def to_remove(store: Store, keep: int, made: str = "") -> Removed:
    """Return what goes if so many whole backups stay, the newest by what they hold; `made`, the
    backup of this run, stays too. Raises BackupError if that cannot be known."""
    listed = backups_in(store)
    unreadable = [each.problem for each in listed if each.manifest is None]
    if unreadable:
        raise BackupError(
            f"nothing is removed: {unreadable[0]}",
            remedy="nobody knows which packs it needs; remove that backup by hand if you can do "
            "without it",
        )
    old: list[Listed] = []
    needed: set[str] = set()
    whole = 0
    for each in reversed(listed):
        assert each.manifest is not None, "all were read"
        if whole >= keep and each.name != made:
            old.append(each)
            continue
        whole += not each.problem
        needed |= each.manifest.packs
    names = [each.name for each in reversed(old)]
    packs = store.names(PACKS) - needed
    if not store.is_exclusive:
        packs = _aged(store, packs, listed, old)
    kept = frozenset(each.name for each in listed) - set(names)
    return Removed(names, sorted(packs), kept)


def _aged(
    store: Store, packs: Iterable[str], listed: Sequence[Listed], old: Sequence[Listed]
) -> set[str]:
    """Return those packs that no run beside this one is about to name.

    If the store has times: those of no backup at all, not of an outgoing one either, that are older
    than a day. If it has none: those of outgoing backups that are a day older than the newest one.
    """
    times = {**store.times_ms(BACKUPS), **store.times_ms(PACKS)}
    now_ms = max(times.values(), default=0)
    there = [each.manifest for each in listed if each.manifest is not None]
    named = {pack for manifest in there for pack in manifest.packs}
    newest_ms = max(there, key=lambda manifest: manifest.age).made_ms if there else 0
    named_ms: dict[str, int] = {}
    for manifest in (each.manifest for each in old if each.manifest is not None):
        for pack in manifest.packs:
            named_ms[pack] = max(named_ms.get(pack, 0), manifest.made_ms)

    def is_aged(pack: str) -> bool:
        if pack in times:
            return pack not in named and now_ms - times[pack] >= SPARED_MS
        return pack in named_ms and newest_ms - named_ms[pack] >= SPARED_MS

    return {pack for pack in packs if is_aged(pack)}


def remove(store: Store, removed: Removed) -> None:
    """Remove it, except packs that a backup has named meanwhile. Raises BackupError; the next
    removal goes on."""
    for name in removed.backups:
        store.remove(f"{BACKUPS}/{name}")
    named = _named_meanwhile(store, removed)
    packs = [name for name in removed.packs if name not in named]
    for name in packs:
        store.remove(f"{PACKS}/{name}")
    if not store.is_exclusive and _named_meanwhile(store, removed) & set(packs):
        raise BackupError(
            "a backup was made meanwhile, and needs packs that were removed",
            remedy="run one backup at a time; run it again: the next backup is whole, see "
            "`delayd backup --list`",
        )


def _named_meanwhile(store: Store, removed: Removed) -> set[str]:
    """Return the packs of backups that were not there when it was decided what goes."""
    return {
        pack
        for name in names_of(store)
        if name not in removed.kept
        for pack in read_manifest(store, name).packs
    }
