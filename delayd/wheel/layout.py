"""Every path of a wheel, built and parsed here and nowhere else.

    DIR/format.json             format version and partition count; written last, when DIR is new
    DIR/catalogue/              LevelDB
    DIR/slots/HOUR/SLOT.GEN     the frames of one slot; HOUR = SLOT // 3600, all in decimal

A slot that is forgotten and then gets a frame again starts a new file of the next generation,
while the old one waits to be unlinked: the catalogue names the generation, so neither can be
taken for the other after a crash. One folder per hour keeps folders small and makes a delivered
hour one folder to remove.

Paths are strings: the hot path builds thousands a second.
"""

from dataclasses import dataclass

FORMAT_VERSION = 4
"""Of the directory: this layout and the catalogue's grammar. Frames carry their own."""
HOUR_SLOTS = 3600


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below one data directory."""

    root: str

    @property
    def format(self) -> str:
        return f"{self.root}/format.json"

    @property
    def format_draft(self) -> str:
        return f"{self.root}/format.json.new"

    @property
    def catalogue(self) -> str:
        return f"{self.root}/catalogue"

    @property
    def slots(self) -> str:
        return f"{self.root}/slots"

    @property
    def lock(self) -> str:
        """LevelDB's own name for what it locks."""
        return f"{self.root}/catalogue/LOCK"

    def hour_folder(self, hour: int) -> str:
        return f"{self.root}/slots/{hour}"

    def slot_file(self, slot: int, generation: int) -> str:
        return f"{self.root}/slots/{slot // HOUR_SLOTS}/{slot}.{generation}"


def is_leveldb_data(name: str) -> bool:
    """Is a file of this name in the catalogue's folder one that LevelDB reads its data from?"""
    return name == "CURRENT" or name.startswith("MANIFEST-") or name.endswith((".ldb", ".log"))


def is_leveldb_log(name: str) -> bool:
    """Is it one of records, of which the last may be torn?"""
    return name.startswith("MANIFEST-") or name.endswith(".log")


def hour_of(slot: int) -> int:
    """The hour (hours since 1970) that a slot lies in."""
    return slot // HOUR_SLOTS


def parse_hour(name: str) -> int | None:
    """The hour of a folder below `slots`, or None when we did not make it."""
    return _canonical(name)


def parse_slot_file(name: str, hour: int) -> tuple[int, int] | None:
    """Slot and generation of a file in the folder of `hour`, or None when we did not make it."""
    left, _, right = name.partition(".")
    slot, generation = _canonical(left), _canonical(right)
    if slot is None or generation is None or hour_of(slot) != hour:
        return None
    return slot, generation


def _canonical(digits: str) -> int | None:
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(digits)
    return number if str(number) == digits else None
