"""Whether a node repairs its wheel, and what came of it. Pure.

    suspected          wrong about a message or a kill, by the log, by a replay or by the majority,
                       or one of those of whom nobody knows who is wrong
    may begin          suspected; it has not repaired within a day, nor failed; another node could
                       take over, and none is away
    repaired           compared as far as it had to be, and no more suspected
    failed             compared, and still suspected, twice

Source: docs/design/repairing.md.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from delayd.node.comparing.findings import Finding
from delayd.node.comparing.judging import By
from delayd.node.comparing.side import KILL
from delayd.wheel import FrameKind
from delayd.wheel.aside import RepairNote, RepairState
from delayd.wheel.comparing.common_cut import CommonCut
from delayd.wheel.layout import hour_of
from replication.rank import slot_of

AGAIN_MS: Final = 24 * 3_600_000
"""After a repair: what differs again so soon has a cause that a repair does not remove."""
HOURS_MAX: Final = 24
"""Hours that a note names: those that are due first."""
SOURCES_MAX: Final = 1_000
NAMED_MAX: Final = 20
LASTING: Final = frozenset({int(FrameKind.MESSAGE), KILL})
"""What a repair is for. A pending reply or a cancel marker is passed by a step long before another
wheel is built; and a reply that a node made before it was upgraded may be worded otherwise."""


class Came(Enum):
    """What came of a repair, by one look."""

    UNKNOWN = "unknown"
    """The new wheel has not come as far as what differed, or not everything was compared."""
    LIKE_OTHERS = "like the others"
    DIFFERENT = "different"


def suspected(findings: Sequence[Finding], node: str) -> list[Finding]:
    """Return what this node may be wrong about, of what lasts, by due time."""
    may_be = [f for f in findings if node in f.judgement.wrong or f.judgement.by is By.NOBODY]
    lasting = [f for f in may_be if f.differing.source.kind in LASTING]
    return sorted(lasting, key=lambda finding: finding.differing.due_ms)


def why_not(
    note: RepairNote | None, ready: Sequence[str], away: Sequence[str], now_ms: int
) -> str | None:
    """Return why a suspected node does not repair now; None if it may."""
    if note is not None and note.state is RepairState.FAILED:
        return note.problem or "the last repair failed"
    if note is not None and 0 <= now_ms - note.at_ms < AGAIN_MS:
        return "it was repaired less than a day ago"
    if not ready:
        return "no other node could take over"
    if away:
        return f"{', '.join(sorted(away))} could not take over"
    return None


def after_others(findings: Sequence[Finding], *, is_master: bool) -> str | None:
    """Return why a node that may lead on had better not be the first to repair; None if it may.

    If it is right, and ends, those that lead meanwhile may lack what it holds.
    """
    if is_master and all(each.judgement.by is By.NOBODY for each in findings):
        return "nobody knows who is wrong, and this node is the master: others repair before it"
    return None


def hours_of(findings: Sequence[Finding]) -> tuple[int, ...]:
    """Return the hours in which any node holds these messages, the earliest ones."""
    dues_ms = {
        value.due_ms for each in findings for held in each.holdings.values() for value in held
    }
    return tuple(sorted({hour_of(slot_of(due_ms)) for due_ms in dues_ms})[:HOURS_MAX])


def sources_of(findings: Sequence[Finding]) -> tuple[tuple[int, int], ...]:
    """Return the records of these messages, those that are due first."""
    found = dict.fromkeys(tuple(each.differing.source[1:]) for each in findings)
    return tuple((partition, offset) for partition, offset in found)[:SOURCES_MAX]


def came_of(note: RepairNote, cut: CommonCut, findings: Sequence[Finding], node: str) -> Came:
    """Return what one look says at the new wheel of a node, in the hours of its note."""
    if any(offset >= cut.offsets[partition] for partition, offset in note.sources):
        return Came.UNKNOWN
    return Came.DIFFERENT if suspected(findings, node) else Came.LIKE_OTHERS
