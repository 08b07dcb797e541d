"""The journal: one small file for each judged batch, written last, so that a batch counts once.

    journal/<batch>.json    the newest; earlier ones are removed

Spark repeats a batch that it does not know to be done. One that is in the journal is done: only its
alarms are told, if they were not (alarm_log.py).

Invariants: an entry is there whole or not at all; the folders that it names are complete.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from delayd.audit.following.watched_requests import Folders
from delayd.runtime.atomic_file import write_atomically
from replication.rules import Barrier

ALARMS_MAX: Final = 1_000
"""Alarms of one batch that are told one by one; all are counted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The state after a batch."""

    batch: int
    folders: Folders
    positions: Mapping[str, Any]
    """Where it ended (reading/positions.py)."""
    frontier: str
    """The newest frontier records (reading/shard_records.py), as in their topic."""
    frontier_ms: int
    target_partitions: Mapping[str, int]
    targets: tuple[str, ...]
    unread_ms: Mapping[str, int] = field(default_factory=dict)
    """As in batch_context.py."""
    buffer_starts: tuple[int, ...] = ()
    """As in batch_context.py; beyond the start of watching if Kafka deleted what was not read."""
    requests: int = 0
    delivered: int = 0
    pending: int = 0
    found: Mapping[str, int] = field(default_factory=dict)
    """Alarms since watching began, by fault."""
    alarms: tuple[Mapping[str, Any], ...] = ()
    """Of this batch, at most ALARMS_MAX."""
    barriers: tuple[Barrier, ...] = ()
    """What has switched the rules so far, in a frontier or in the buffer."""
    full: tuple[tuple[int, str, int], ...] = ()
    """Targets that are full behind it: partition, target and quota of each."""
    began_ms: int = 0
    took_ms: int = 0

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Read what `Journal.write` wrote."""
        folders = said["folders"]
        return cls(
            **{
                **said,
                "folders": Folders(**{**folders, "changes": tuple(folders["changes"])}),
                "targets": tuple(said["targets"]),
                "buffer_starts": tuple(said.get("buffer_starts", ())),
                "barriers": tuple(Barrier(*each) for each in said.get("barriers", ())),
                "full": tuple((p, topic, most) for p, topic, most in said.get("full", ())),
                "alarms": tuple(said["alarms"]),
            }
        )


class Journal:
    """The entries, in a folder of their own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def newest(self) -> Entry | None:
        """Return the last batch that was judged; None before the first."""
        numbers = [int(file.stem) for file in self._root.glob("*.json") if file.stem.isdecimal()]
        if not numbers:
            return None
        return Entry.from_json(json.loads(self._file(max(numbers)).read_text()))

    def write(self, entry: Entry) -> None:
        """Make this batch count from now on, and remove earlier entries."""
        file = self._file(entry.batch)
        write_atomically(file, json.dumps(asdict(entry), separators=(",", ":")))
        for other in self._root.glob("*.json"):
            if other != file:
                other.unlink(missing_ok=True)

    def _file(self, batch: int) -> Path:
        return self._root / f"{batch}.json"
