"""The findings of a verification: damage, and bytes that are not of the checkpoint."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

DAMAGE_MAX = 1_000
"""Damaged ranges that are listed; further ones are counted."""
FOREIGN_MAX = 20
"""Names that are listed; further ones are counted."""


class Damage(NamedTuple):
    """Bytes that were not written so, or a missing file."""

    file: str
    """Path within the data directory."""
    why: str
    slot: int | None = None
    """None: of an hour's file, or of the wheel as a whole."""
    first_byte: int | None = None
    """None: of the file as a whole."""
    end_byte: int | None = None
    hour: int | None = None
    """Of an hour's file."""


@dataclass(slots=True)
class Findings:
    """The findings, which grow while a wheel is verified."""

    directory: str
    format: int | None = None
    """Format version of the directory."""
    partitions: int | None = None
    damage: list[Damage] = field(default_factory=list)
    damage_count: int = 0
    damaged_slots: int = 0
    frames_lost: int = 0
    """Frames that the catalogue counts and the files lack."""
    frames_suspect: int = 0
    """Whole frames in files that differ from the catalogue: they may be wrong ones."""
    is_complete: bool = False
    """Whether all of it was read. Without its catalogue a wheel cannot be."""
    slots: int = 0
    hours: int = 0
    """Hour files."""
    messages: int = 0
    pending_replies: int = 0
    slot_bytes: int = 0
    lines: Counter[bytes] = field(default_factory=Counter)
    """Lines of the catalogue, by kind."""
    behind_files: int = 0
    """Files with bytes after the last checkpoint."""
    behind_bytes: int = 0
    """Bytes after the last checkpoint: the next start cuts them off, and reads them again."""
    torn_log_bytes: int = 0
    """Bytes of LevelDB's logs that were being written when the node ended."""
    forgotten_files: int = 0
    """Files still to be removed, of slots that a checkpoint has forgotten or written again."""
    forgotten_bytes: int = 0
    foreign: list[str] = field(default_factory=list)
    """Foreign names, which are left alone."""
    foreign_count: int = 0

    @property
    def is_whole(self) -> bool:
        """Return whether everything is as the last checkpoint left it."""
        return self.is_complete and self.damage_count == 0

    def add(self, damage: Damage) -> None:
        """Note a damage."""
        self.damage_count += 1
        if len(self.damage) < DAMAGE_MAX:
            self.damage.append(damage)

    def add_foreign(self, name: str) -> None:
        """Note a foreign name."""
        self.foreign_count += 1
        if len(self.foreign) < FOREIGN_MAX:
            self.foreign.append(name)
