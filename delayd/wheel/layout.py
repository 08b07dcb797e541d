"""Every path of a wheel, built and parsed here and nowhere else.

    DIR/format.json             format version and partition count; written last, when DIR is new
    DIR/catalogue/              LevelDB
    DIR/slots/HOUR/SLOT.GEN     the frames of one slot; HOUR = SLOT // 3600, all in decimal
    DIR/reserve                 holds room and nothing else (`reserve.py`); no part of the wheel
    DIR/audits/                 reports of audits; no part of the wheel
    DIR/slots/HOUR/hour.GEN     the *hour file*: frames of an hour that is far, not yet split

A slot that is forgotten and then gets a frame again starts a new file of the next generation,
while the old one waits to be unlinked. The catalogue names the generation, so neither can be taken
for the other after a crash. The same holds for hours. One folder per hour keeps folders small and
makes a delivered hour one folder to remove.

Upgrade rule: `format.json` holds the version that wrote the directory. A version in UPGRADABLE is
read as it is and becomes FORMAT_VERSION when it is opened to write; any other version is refused.
Format 4 had no hour files and no totals; all else means the same in 5.

Paths are strings: the hot path builds thousands a second.
"""

from typing import NamedTuple

from replication.rank import SLOT_MS

FORMAT_VERSION = 5
"""Version of this layout and of the catalogue's grammar. Frames carry their own version."""
UPGRADABLE = frozenset({4})
"""Older versions that this one takes over."""
HOUR_SLOTS = 3600
HOUR_MS = HOUR_SLOTS * SLOT_MS
_HOUR_NAME = "hour"


class Layout:
    """The paths below one data directory."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.format = f"{root}/format.json"
        self.format_draft = f"{root}/format.json.new"
        self.discarded = f"{root}/format.json.discarded"
        """The former `format` of a wheel that is being removed."""
        self.catalogue = f"{root}/catalogue"
        self.lock = f"{root}/catalogue/LOCK"
        """LevelDB locks it."""
        self.slots = f"{root}/slots"
        self.draft = f"{root}/fetch"
        """Where a wheel is copied to before it takes the place of this one (`draft.py`)."""
        self.replaced = f"{root}/replaced"
        """The wheel whose place it took, while there is room; no part of the wheel."""
        self.damage = f"{root}/damage.json"
        """Says what damage a node has met."""
        self.repair = f"{root}/repair.json"
        """Says how far the repair of a wheel that differed has come (`aside.py`)."""
        self.scratch = f"{root}/repair"
        """Where a repair remembers ids while it reads the buffer; no part of the wheel."""

    def hour_folder(self, hour: int) -> str:
        return f"{self.root}/slots/{hour}"

    def segment_file(self, name: "SegmentName") -> str:
        """Return the path of the file of a slot or of an hour."""
        file = _HOUR_NAME if name.is_hour else name.number
        return f"{self.root}/slots/{name.hour}/{file}.{name.generation}"


class SegmentName(NamedTuple):
    """A file of frames: of a slot, or of an hour that is far."""

    is_hour: bool
    number: int
    """Slot, or hour."""
    generation: int

    @property
    def hour(self) -> int:
        """The hour in whose folder it lies."""
        return self.number if self.is_hour else hour_of(self.number)

    def holds(self, slot: int) -> bool:
        """Return whether a frame of this slot may lie in it."""
        return self.number == (hour_of(slot) if self.is_hour else slot)

    def __str__(self) -> str:
        return f"{'hour' if self.is_hour else 'slot'} {self.number}"


def is_leveldb_data(name: str) -> bool:
    """Return whether LevelDB reads data from a file of this name."""
    return name == "CURRENT" or name.startswith("MANIFEST-") or name.endswith((".ldb", ".log"))


def is_leveldb_log(name: str) -> bool:
    """Return whether it is a log, whose last record may be torn."""
    return name.startswith("MANIFEST-") or name.endswith(".log")


def hour_of(slot: int) -> int:
    """Return the hour (hours since 1970) of a slot."""
    return slot // HOUR_SLOTS


def parse_hour(name: str) -> int | None:
    """Return the hour of a folder below `slots`, None if its name is foreign."""
    return _canonical(name)


def parse_segment_file(name: str, hour: int) -> SegmentName | None:
    """Return the slot or hour of a file in the folder of `hour`, None if its name is foreign."""
    left, _, right = name.partition(".")
    generation = _canonical(right)
    if generation is None:
        return None
    if left == _HOUR_NAME:
        return SegmentName(True, hour, generation)
    slot = _canonical(left)
    if slot is None or hour_of(slot) != hour:
        return None
    return SegmentName(False, slot, generation)


def _canonical(digits: str) -> int | None:
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(digits)
    return number if str(number) == digits else None
