"""What the start of a node does for a repair that was begun: before anybody opens the wheel."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from delayd.errors import CoordinationError, CorruptionError
from delayd.node.repairing.turn import Turn
from delayd.wheel.aside import (
    RepairNote,
    RepairState,
    forget_repair,
    give_back,
    note_repair,
    repair_note,
    room_lack,
    set_aside,
)
from delayd.wheel.draft import finish, noted_damage

log = structlog.get_logger()

_MOVING: Final = frozenset({RepairState.WANTED, RepairState.ASIDE})


def prepare_repair(
    directory: Path,
    turn: Turn,
    log_lack: Callable[[], str | None],
    spare_bytes: int,
    check_wheel: Callable[[], object],
) -> RepairNote | None:
    """Set the wheel aside, or back, as far as a repair wants it; return what is noted of one then.

    `check_wheel` opens the wheel that is to be set aside, and raises if buffer and frontier are
    behind what it knows: another wheel, which knows nothing, could not tell. Raises what that and
    `log_lack` raise, and DiskError; the next start goes on.
    """
    if repair_note(directory) is None:
        return None
    finish(directory)  # A copy that takes the place of the wheel takes the note away with it.
    note = repair_note(directory)
    if note is None:
        return None
    if note.state is RepairState.WANTED:
        if not _has_turn(turn, note) or noted_damage(directory) is not None:
            _give_up(
                directory, "the turn was lost, no other node is there, or the wheel is damaged"
            )
            return None
        if lack := room_lack(directory, spare_bytes) or log_lack():
            return failed(directory, note, lack)
        try:
            check_wheel()
        except CorruptionError as error:
            _give_up(directory, error.message)
            return None
    if note.state in _MOVING:
        note = set_aside(directory, note)
        log.warning("wheel_set_aside", directory=str(directory), messages=list(note.named))
    elif note.state is RepairState.BACK:
        note = give_back(directory, note)
        log.error("wheel_repair_failed", problem=note.problem, wheel="the old one is back")
    return note


def _give_up(directory: Path, why: str) -> None:
    log.warning("wheel_repair_given_up", why=why)
    forget_repair(directory)


def failed(directory: Path, note: RepairNote, problem: str) -> RepairNote:
    """Note that a repair has failed, and say so."""
    note = note.become(RepairState.FAILED, problem)
    note_repair(directory, note)
    log.error("wheel_repair_failed", problem=problem, messages=list(note.named))
    return note


def _has_turn(turn: Turn, note: RepairNote) -> bool:
    try:
        return turn.holds(note.lease) and turn.has_others()
    except CoordinationError:
        return False
