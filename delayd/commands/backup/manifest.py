"""Manifests: what one backup is. It exists from the moment in which its manifest does.

A JSON object; its name carries the time of the backup and the hash of its bytes, so a manifest that
was cut off or changed is not taken for one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from delayd.commands.backup.packs import Blob, Kind, sum_of
from delayd.commands.backup.stores import Store
from delayd.errors import BackupError

FORMAT: Final = 1
FOLDER: Final = "backups"
MARKER: Final = "delayd-backup.json"
CLOCKS_DIFFER_MS: Final = 60_000
"""Of two hosts that both have the time."""


class SavedFile(NamedTuple):
    """A slot or hour file."""

    file: str
    """Path in the data directory."""
    start: int
    """Its first byte that belongs to the checkpoint."""
    end: int
    """Its length in the checkpoint."""
    blobs: tuple[Blob, ...]
    """Its bytes from `start` up to `end`."""


class SavedLines(NamedTuple):
    """Some lines of the catalogue."""

    first_key: str
    """The first one's key, in hexadecimal."""
    blob: Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One backup."""

    made_ms: int
    about: Mapping[str, Any]
    """As the donor described it: `node`, `realm`, `buffer`, `partitions`, `wheel_format`,
    `ingested`, `reached`; and `cluster`, `prefix`, `release`, `number`, `damaged_packs`,
    `pending` messages, `frames`."""
    lines: Sequence[SavedLines]
    """In the order of keys."""
    files: Sequence[SavedFile]
    """In the order of the stream of a snapshot."""

    @property
    def number(self) -> int:
        """Return the number of the run that made it: larger than those of all that it found."""
        return int(self.about.get("number", 0))

    @property
    def damaged_packs(self) -> frozenset[str]:
        """Return packs in the store that were found damaged by then; it names none of them."""
        return frozenset(self.about.get("damaged_packs", ()))

    @property
    def age(self) -> tuple[int, int, int]:
        """Return what is larger for a newer backup: first what it has read of the buffer, which
        only grows; then its number; the clock of its host last, which may be wrong."""
        return sum(self.about["ingested"]), self.number, self.made_ms

    @property
    def catalogue_bytes(self) -> int:
        """Return the bytes of all lines."""
        return sum(lines.blob.size for lines in self.lines)

    @property
    def bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.end - file.start for file in self.files)

    def blobs(self) -> list[Blob]:
        """Return all that it names."""
        return [*(lines.blob for lines in self.lines), *(b for f in self.files for b in f.blobs)]

    @property
    def packs(self) -> set[str]:
        """Return the packs that it names."""
        return {blob.pack for blob in self.blobs()}

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it; packs are named once and then by number."""
        packs = sorted(self.packs)
        number = {name: at for at, name in enumerate(packs)}

        def told(blob: Blob) -> list[int]:
            kind = blob.kind
            place = [number[blob.pack], blob.at, blob.size, blob.crc]
            return place if kind.lines else [*place, kind.first, kind.frames, kind.digest]

        return {
            "format": FORMAT,
            "made": told_at(self.made_ms),
            "made_ms": self.made_ms,
            **self.about,
            "packs": packs,
            "lines": [
                [each.first_key, each.blob.kind.lines, told(each.blob)] for each in self.lines
            ],
            "files": [[f.file, f.start, f.end, [told(b) for b in f.blobs]] for f in self.files],
        }

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Manifest":
        """Return what `to_json` gave. Raises BackupError for another format."""
        found = dict(fields)
        if found.pop("format") != FORMAT:
            raise BackupError(
                f"a backup has format {fields['format']}, and this version of delayd knows "
                f"{FORMAT}",
                remedy="run the version of delayd that has made it, or a newer one",
            )
        packs = found.pop("packs")
        lines = [
            SavedLines(key, Blob(Kind("", lines=sum_), packs[at[0]], *at[1:4]))
            for key, sum_, at in found.pop("lines")
        ]
        files = [
            SavedFile(
                file,
                start,
                end,
                tuple(Blob(Kind(file, *at[4:7]), packs[at[0]], *at[1:4]) for at in blobs),
            )
            for file, start, end, blobs in found.pop("files")
        ]
        made_ms = found.pop("made_ms")
        del found["made"]
        return cls(made_ms=made_ms, about=found, lines=lines, files=files)


def told_at(at_ms: int) -> str:
    """Return a time as people read it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def write_manifest(store: Store, manifest: Manifest) -> str:
    """Make it a backup; return its name. Raises what `write` of a store raises."""
    data = json.dumps(manifest.to_json(), separators=(",", ":")).encode()
    name = f"{_begin_of(manifest.made_ms)}-{sum_of(data)}.json"
    store.write(f"{FOLDER}/{name}", data)
    return name


def names_of(store: Store) -> list[str]:
    """Return the names of all backups, by the clocks of the hosts that made them."""
    return sorted(name for name in store.names(FOLDER) if name.endswith(".json"))


def names_in_future(names: Iterable[str], now_ms: int) -> list[str]:
    """Return which of these backups were made later than now, by a clock that was wrong."""
    return sorted(name for name in names if name > _begin_of(now_ms + CLOCKS_DIFFER_MS))


def _begin_of(made_ms: int) -> str:
    at = datetime.fromtimestamp(made_ms / 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{made_ms % 1000:03}Z"


def read_manifest(store: Store, name: str) -> Manifest:
    """Return a backup. Raises BackupError, also if it is damaged."""
    data = store.read(f"{FOLDER}/{name}")
    if not name.endswith(f"-{sum_of(data)}.json"):
        raise BackupError(
            f"{FOLDER}/{name} is damaged: it does not hold what its name says",
            remedy="remove it if another backup is whole: `delayd backup --list`",
        )
    return Manifest.of(json.loads(data))


def claim(store: Store, about: Mapping[str, Any]) -> None:
    """Make a store the one for backups of this cluster, or see that it is.

    Raises BackupError if it holds another cluster's, or what is no backup.
    """
    whose = {name: about[name] for name in ("cluster", "realm", "buffer", "partitions")}
    there = owner_of(store)
    if there is None:
        if strangers := sorted(store.names() - {"LOCK"}):
            raise BackupError(
                f"there are other things in the target, such as {strangers[0]}, and no backups",
                remedy="name an empty directory, or one with backups",
            )
        store.write(MARKER, json.dumps({"format": FORMAT, **whose}).encode())
    elif any(there.get(name) != value for name, value in whose.items()):
        raise BackupError(
            f"the target holds backups of the cluster {there.get('realm')}, and this one is "
            f"{whose['realm']}",
            remedy="name another target: each cluster has its own",
        )


def owner_of(store: Store) -> dict[str, Any] | None:
    """Return whose backups a store holds; None if it holds none. Raises BackupError."""
    if MARKER not in store.names():
        return None
    try:
        found = json.loads(store.read(MARKER))
        if isinstance(found, dict) and found.get("format") == FORMAT:
            return found
    except ValueError:
        pass
    raise BackupError(
        f"{MARKER} in the target is damaged, or of a newer version of delayd",
        remedy="see what it holds; with the version of delayd that has made it, all may be well",
    )
