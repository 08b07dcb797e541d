"""Backups as text and JSON. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from delayd.commands.backup.keeping import Listed, Removed, Verified
from delayd.commands.backup.manifest import Manifest, told_at
from delayd.commands.backup.restoring import Restored
from delayd.commands.backup.saving import Saved

Json = dict[str, Any]


def manifest_json(name: str, manifest: Manifest) -> Json:
    """Return what a backup is, without its files."""
    return {
        "backup": name,
        "made_ms": manifest.made_ms,
        **manifest.about,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "catalogue_bytes": manifest.catalogue_bytes,
        "packs": len(manifest.packs),
    }


def saved_json(saved: Saved, removed: Removed | None) -> Json:
    """Return a backup that was made."""
    return {
        **manifest_json(saved.name, saved.manifest),
        "written_bytes": saved.written_bytes,
        "written_packs": saved.packs,
        "removed_backups": [] if removed is None else [*removed.backups],
        "removed_packs": 0 if removed is None else len(removed.packs),
    }


def saved_lines(saved: Saved) -> Iterator[str]:
    """Yield the same for people."""
    yield f"backup {saved.name}, from {saved.manifest.about['node']}"
    yield counts(saved.manifest)
    yield f"new: {saved.written_bytes} bytes in {saved.packs} packs"
    if damaged := saved.manifest.damaged_packs:
        yield (
            f"{len(damaged)} packs in the target are damaged: this backup does without them, older "
            "ones may not; see `delayd backup --verify`"
        )


def counts(manifest: Manifest) -> str:
    """Return what a backup holds, in a line."""
    return (
        f"{manifest.about['pending']} pending messages, {manifest.about['frames']} frames, "
        f"{len(manifest.files)} files, {manifest.bytes} bytes, catalogue "
        f"{manifest.catalogue_bytes} bytes"
    )


def listed_json(listed: Sequence[Listed], now_ms: int) -> Json:
    """Return all backups, with their age; it is negative if a clock was wrong."""
    return {
        "backups": [
            {"backup": name, "problem": problem}
            if manifest is None
            else {
                **manifest_json(name, manifest),
                "age_ms": now_ms - manifest.made_ms,
                "problem": problem,
            }
            for name, manifest, problem in listed
        ]
    }


def listed_lines(listed: Sequence[Listed]) -> Iterator[str]:
    """Yield the same for people."""
    for name, manifest, problem in listed:
        if manifest is None:
            yield f"{name}: {problem}"
            continue
        yield (
            f"{told_at(manifest.made_ms)}  {manifest.about['cluster']}, from "
            f"{manifest.about['node']}: {counts(manifest)}" + (f"; {problem}" if problem else "")
        )
    yield f"{len(listed)} backups"


def verified_json(found: Verified) -> Json:
    """Return what a verification has found."""
    return {
        "ok": not found.damaged_backups and not found.damaged_packs,
        "backups": found.backups,
        "packs": found.packs,
        "bytes": found.bytes,
        "damaged_packs": found.damaged_packs,
        "damaged_backups": found.damaged_backups,
        "unnamed_packs": found.unnamed_packs,
    }


def verified_lines(found: Verified) -> Iterator[str]:
    """Yield the same for people."""
    yield from found.damaged_packs.values()
    for name, what in found.damaged_backups.items():
        yield f"backup {name} cannot be restored: {', '.join(what)}"
    whole = found.backups - len(found.damaged_backups)
    yield (
        f"{whole} of {found.backups} backups are whole; {found.packs} packs with {found.bytes} "
        f"bytes were read and are as they were written"
    )
    if found.unnamed_packs:
        yield f"{found.unnamed_packs} packs belong to no backup: the next one uses or removes them"


def restored_json(name: str, manifest: Manifest, directory: str, restored: Restored) -> Json:
    """Return a wheel that was restored."""
    return {
        **manifest_json(name, manifest),
        "directory": directory,
        "took_ms": restored.took_ms,
    }


def restored_lines(name: str, manifest: Manifest, directory: str) -> Iterator[str]:
    """Yield the same for people."""
    yield f"{directory} holds the wheel of backup {name}, of {told_at(manifest.made_ms)}"
    yield counts(manifest)
    ingested = ", ".join(f"{p}: {at}" for p, at in enumerate(manifest.about["ingested"]))
    yield f"start the node: it reads the buffer from these offsets on: {ingested}"
