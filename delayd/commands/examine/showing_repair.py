"""The result of a repair, as text and as JSON. Pure."""

from collections.abc import Iterator

from delayd.commands.examine.repairing import Repair
from delayd.commands.examine.showing import DAMAGE_SHOWN, Json
from delayd.wheel.layout import SegmentName


def repair_json(outcome: Repair) -> Json:
    """Return the result of a repair as JSON."""
    return {
        "directory": outcome.findings.directory,
        "whole": outcome.is_whole,
        "damaged": outcome.findings.damaged_slots,
        "repaired": [_named(name) for name in outcome.repaired],
        "frames": outcome.frames,
        "from_buffer": outcome.from_buffer,
        "failed": outcome.failed,
    }


def repair_lines(outcome: Repair) -> Iterator[str]:
    """Yield the result of a repair as lines of text."""
    yield f"wheel       {outcome.findings.directory}"
    if outcome.findings.is_whole:
        yield "whole: there was nothing to repair"
        return
    for name in outcome.repaired[:DAMAGE_SHOWN]:
        yield f"repaired    {name}"
    if len(outcome.repaired) > DAMAGE_SHOWN:
        yield f"repaired    and {len(outcome.repaired) - DAMAGE_SHOWN:,} more"
    for problem in outcome.failed[:DAMAGE_SHOWN]:
        yield f"DAMAGED     {problem}"
    if outcome.repaired:
        yield (
            f"{len(outcome.repaired):,} files with {outcome.frames:,} frames were written once "
            f"more, {outcome.from_buffer:,} of the frames from the buffer"
        )
    if outcome.is_whole:
        yield "repaired: run `delayd wheel verify` to see it, then start the node"
        return
    yield (
        f"{len(outcome.failed):,} cannot be repaired: leave the node stopped and empty this "
        "directory, on a healthy volume: at the next start the wheel is rebuilt from the buffer"
    )


def _named(name: SegmentName) -> Json:
    return {"hour" if name.is_hour else "slot": name.number, "generation": name.generation}
