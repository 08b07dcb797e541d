"""What a verification found: damage, and what is no damage though it is not in the checkpoint."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

DAMAGE_MAX = 1_000
"""Damaged ranges that are listed; further ones are counted."""
FOREIGN_MAX = 20
"""Names that are listed; further ones are counted."""


class Damage(NamedTuple):
    """Bytes that are not what was written, or a file that is not there."""

    file: str
    """Within the data directory."""
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
    """Grows while a wheel is verified."""

    directory: str
    format: int | None = None
    """Of the directory."""
    partitions: int | None = None
    damage: list[Damage] = field(default_factory=list)
    damage_count: int = 0
    damaged_slots: int = 0
    frames_lost: int = 0
    """Frames that are in the catalogue, and not in their files."""
    frames_suspect: int = 0
    """Whole frames in files that are not what the catalogue says: they may be wrong ones."""
    is_complete: bool = False
    """Was all of it read? Without its catalogue a wheel cannot be."""
    slots: int = 0
    hours: int = 0
    """Hour files."""
    messages: int = 0
    pending_replies: int = 0
    slot_bytes: int = 0
    lines: Counter[bytes] = field(default_factory=Counter)
    """Of the catalogue, by kind."""
    behind_files: int = 0
    """Files with something behind the last checkpoint."""
    behind_bytes: int = 0
    """Bytes behind the last checkpoint: the next start cuts them off, and reads them again."""
    torn_log_bytes: int = 0
    """Bytes of LevelDB's logs that were being written when the node ended."""
    forgotten_files: int = 0
    """Of slots that a checkpoint has forgotten, or written once more, still to be removed."""
    forgotten_bytes: int = 0
    foreign: list[str] = field(default_factory=list)
    """Names that no wheel makes; they are left alone."""
    foreign_count: int = 0

    @property
    def is_whole(self) -> bool:
        """Is everything as the last checkpoint left it?"""
        return self.is_complete and self.damage_count == 0

    def add(self, damage: Damage) -> None:
        """Note a damage."""
        self.damage_count += 1
        if len(self.damage) < DAMAGE_MAX:
            self.damage.append(damage)

    def add_foreign(self, name: str) -> None:
        """Note a name that is not ours."""
        self.foreign_count += 1
        if len(self.foreign) < FOREIGN_MAX:
            self.foreign.append(name)
