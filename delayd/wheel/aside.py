"""Setting a wheel aside, so that its node builds another one from the log; and the note about it.

    DIR/repair.json     the note: what is to be done, what was done, and because of which messages
    DIR/replaced/       the wheel that was set aside, while there is room

    1. note WANTED       the node ends; it is its next start that does the rest
    2. remove what was replaced before   3. note ASIDE   4. rename the wheel to `replaced`
    5. note COMPARING    from here on a wheel in DIR is the new one
    6. note REPAIRED or FAILED, once the node has compared its new wheel

If the log turns out not to be enough, the old wheel comes back in place of 6: note BACK, remove
what is in DIR, rename, note FAILED.

Each step can be repeated: a start that finds ASIDE goes on with step 4, when only the old wheel can
lie in DIR. A copy of another node's wheel that takes the place of this one takes the note away with
it (`draft.py`).
"""

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from delayd.wheel.disk import SystemDisk
from delayd.wheel.draft_files import PARTS, Room, remove, sync, translated, write_durably
from delayd.wheel.layout import Layout
from delayd.wheel.stopped import locked


class RepairState(Enum):
    """How far a repair has come."""

    WANTED = "wanted"
    ASIDE = "aside"
    COMPARING = "comparing"
    """The node reads the log; then it compares itself."""
    BACK = "back"
    REPAIRED = "repaired"
    FAILED = "failed"
    """It repairs nothing more, until it is like the others."""


@dataclass(frozen=True, slots=True)
class RepairNote:
    """What `repair.json` says."""

    state: RepairState
    at_ms: int
    """When it was wanted, Unix ms."""
    lease: int
    """Of this node's turn to repair."""
    hours: tuple[int, ...]
    """Hours of the messages."""
    sources: tuple[tuple[int, int], ...]
    """Partition and offset of the messages about which it differed, some of them if many."""
    named: tuple[str, ...]
    """They for people, fewer."""
    problem: str | None = None
    """Why it failed."""
    is_from_log: bool = False
    """Whether the wheel in place was built from the log because of it."""

    @property
    def is_under_way(self) -> bool:
        """Return whether the repair has neither succeeded nor failed."""
        return self.state not in (RepairState.REPAIRED, RepairState.FAILED)

    def become(self, state: RepairState, problem: str | None = None) -> "RepairNote":
        """Return the note in another state."""
        return replace(self, state=state, problem=problem)

    @classmethod
    def read(cls, fields: dict[str, Any]) -> "RepairNote":
        """Return what was written. ValueError, TypeError, KeyError if it was something else."""
        state = RepairState(fields.pop("state"))
        hours, named = (tuple(fields.pop(name)) for name in ("hours", "named"))
        sources = tuple((int(p), int(offset)) for p, offset in fields.pop("sources"))
        return cls(state=state, hours=hours, sources=sources, named=named, **fields)


ILLEGIBLE = RepairNote(
    RepairState.FAILED, 0, 0, (), (), (), problem="what was noted of a repair is illegible"
)


def repair_note(directory: Path) -> RepairNote | None:
    """Return what is noted of a repair; None if nothing is. An illegible note says FAILED."""
    try:
        return RepairNote.read(json.loads(_path(directory).read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ILLEGIBLE


def note_repair(directory: Path, note: RepairNote) -> None:
    """Write the note, durably. DiskError."""
    write_durably(_path(directory), json.dumps({**asdict(note), "state": note.state.value}))


def forget_repair(directory: Path) -> None:
    """Remove the note. DiskError."""
    with translated(_path(directory)):
        _path(directory).unlink(missing_ok=True)
        sync(directory)


def room_lack(directory: Path, spare_bytes: int) -> str | None:
    """Return why there is no room for another wheel beside the one that is kept; None if there is.
    What was replaced earlier gives way. DiskError."""
    home = Layout(str(directory.absolute()))
    wheel = sum((Room.of(Path(home.root, name)) for name in PARTS), Room(0, 0))
    former = Room.of(Path(home.replaced)) if Path(home.replaced).exists() else Room(0, 0)
    free_bytes = SystemDisk().free_bytes_with(home.root, former.bytes, former.inodes)
    # Below twice the limit a start would soon remove what is kept.
    needed_bytes = wheel.bytes + 2 * spare_bytes
    if free_bytes >= needed_bytes:
        return None
    return (
        f"to keep the wheel that differs beside another one takes {needed_bytes} free bytes, and "
        f"{free_bytes} are free in {home.root}"
    )


def set_aside(directory: Path, note: RepairNote) -> RepairNote:
    """Move the wheel, which no process has open, to `replaced`; return the note as it is then.

    Raises DiskError, also if another process has the wheel open; the next call goes on.
    """
    root, kept = directory.absolute(), Path(Layout(str(directory.absolute())).replaced)
    if note.state is RepairState.WANTED:
        with locked(root):  # DiskError if a node runs on it.
            pass
        with translated(root):
            remove(kept)
        note = note.become(RepairState.ASIDE)
        note_repair(root, note)
    if note.state is RepairState.ASIDE:
        with translated(root):
            kept.mkdir(exist_ok=True)
            for name in PARTS:
                if (root / name).exists():
                    (root / name).rename(kept / name)
            sync(root, kept)
        note = replace(note.become(RepairState.COMPARING), is_from_log=True)
        note_repair(root, note)
    return note


def may_give_back(directory: Path) -> bool:
    """Return whether the wheel in place is being built, and the one that was set aside is there."""
    note, home = repair_note(directory), Layout(str(directory.absolute()))
    is_kept = Path(home.replaced, "format.json").exists()
    return note is not None and note.state is RepairState.COMPARING and is_kept


def want_back(directory: Path, problem: str) -> None:
    """Have the next start give the old wheel back, because of this problem. DiskError."""
    note = repair_note(directory)
    assert note is not None, "only a repair sets a wheel aside"
    note_repair(directory, note.become(RepairState.BACK, problem))


def give_back(directory: Path, note: RepairNote) -> RepairNote:
    """Put the old wheel back in its place; return the note as it is then. No process has a wheel
    open there. DiskError; the next call goes on."""
    root, kept = directory.absolute(), Path(Layout(str(directory.absolute())).replaced)
    if any((root / name).exists() for name in PARTS):
        with locked(root):  # DiskError if the node that wants it back has not ended yet.
            pass
    with translated(root):
        # What is not in `replaced` any more is back.
        for name in PARTS:
            if (kept / name).exists():
                remove(root / name)
                (kept / name).rename(root / name)
        sync(root, *([kept] if kept.exists() else []))
        remove(kept)
    note = replace(note.become(RepairState.FAILED, note.problem), is_from_log=False)
    note_repair(root, note)
    return note


def _path(directory: Path) -> Path:
    return Path(Layout(str(directory.absolute())).repair)
