"""What a running node does about a wheel of its own that differs: it ends, so that its next start
builds another one from the log, and compares that.

    1. suspected in a look of now        2. room for both wheels, and a log that is enough
    3. the turn, which another node may have     4. the note, durable     5. the node ends in order:
       a master has finished its step and resigned, so that another node leads
    next life: 6. compare what differed     7. repaired, or failed; the turn is another node's

Used by the comparer's thread. Source: docs/design/repairing.md.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from delayd.errors import CoordinationError, WheelDiffersError
from delayd.node.comparing.findings import Finding, named
from delayd.node.comparing.ports import Looks
from delayd.node.repairing.deciding import (
    NAMED_MAX,
    Came,
    after_others,
    came_of,
    hours_of,
    sources_of,
    suspected,
    why_not,
)
from delayd.node.repairing.starting import failed
from delayd.node.repairing.turn import Turn
from delayd.runtime.clock import Clock
from delayd.wheel.aside import RepairNote, RepairState, note_repair, repair_note, room_lack

log = structlog.get_logger()


class WheelRepairer:
    """The repairer of one life of a node."""

    def __init__(
        self,
        directory: Path,
        turn: Turn,
        clock: Clock,
        *,
        node: str,
        spare_bytes: int,
        log_lack: Callable[[], str | None],
        end: Callable[[WheelDiffersError], object],
        is_master: Callable[[], bool],
        may_begin: bool = True,
    ) -> None:
        """`spare_bytes`: `disk_free_min_bytes`; `log_lack` returns why the log is not enough; `end`
        ends the node in order; `may_begin`: no repair begins without, one that was begun goes
        on."""
        self._directory = directory
        self._turn = turn
        self._clock = clock
        self._node = node
        self._spare_bytes = spare_bytes
        self._log_lack = log_lack
        self._end = end
        self._is_master = is_master
        self._may_begin = may_begin
        self._note: RepairNote | None = repair_note(directory)
        self._problem: str | None = None
        """Why it does not repair, though it is suspected."""
        self._differed = 0
        """Looks in a row that found the new wheel different."""
        self._counts: Counter[str] = Counter()

    @property
    def replayed(self) -> Sequence[tuple[int, int]]:
        """See `Repairer`."""
        note = self._note
        return note.sources if note is not None and note.is_from_log else ()

    @property
    def is_under_way(self) -> bool:
        """See `Repairer`."""
        return self._note is not None and self._note.is_under_way

    @property
    def has_failed(self) -> bool:
        """See `Repairer`."""
        return self._note is not None and self._note.state is RepairState.FAILED

    @property
    def counts(self) -> Counter[str]:
        """See `Repairer`."""
        return self._counts

    def tend(self, comparer: Looks) -> None:
        """See `Repairer`. Raises ComparisonError: the next call goes on."""
        note = self._note
        if note is not None and note.state is RepairState.COMPARING:
            self._compare(note, comparer)
        elif note is None or not note.is_under_way:
            self._give_up_turn()
            if note is not None and note.state is RepairState.FAILED:
                self._look_whether_alike(note, comparer)
            self._consider(comparer)

    # To begin.

    def _consider(self, comparer: Looks) -> None:
        self._problem = None
        known = suspected(comparer.view.findings, self._node)
        if not known or not self._may_begin:
            return
        problem = why_not(self._note, comparer.ready(), comparer.away(), self._clock.wall_ms())
        if problem is None:
            # What is known may be old: since then others may have been rebuilt, and tell more.
            _, found = comparer.look_over(hours_of(known))
            if not (known := suspected(found, self._node)):
                return
            problem = after_others(known, is_master=self._is_master())
        if problem is None:
            problem = room_lack(self._directory, self._spare_bytes) or self._log_lack()
        if problem is not None:
            self._problem = problem
            log.warning("wheel_not_repaired", problem=problem)
            return
        self._begin(known)

    def _begin(self, findings: Sequence[Finding]) -> None:
        try:
            lease = self._turn.take()
        except CoordinationError as error:
            self._problem = str(error)
            return
        if lease is None:
            self._problem = "another node has the turn to repair"
            return
        told = named(findings)
        note = RepairNote(
            state=RepairState.WANTED,
            at_ms=self._clock.wall_ms(),
            lease=lease,
            hours=hours_of(findings),
            sources=sources_of(findings),
            named=tuple(told["named"][:NAMED_MAX]),
        )
        note_repair(self._directory, note)
        self._note = note
        log.warning("wheel_repair_begun", **told)
        self._end(
            WheelDiffersError(
                f"this node's wheel differs from the others' in {len(findings)} messages, among "
                f"them {told['named'][0]}",
                remedy="start the node again: it sets its wheel aside and builds another one from "
                "the log; see docs/operations.md, 'Wheels that differ'",
            )
        )

    # What came of it.

    def _compare(self, note: RepairNote, comparer: Looks) -> None:
        looked, found = comparer.look_over(note.hours)
        came = came_of(note, looked.cut, found, self._node)
        self._differed = self._differed + 1 if came is Came.DIFFERENT else 0
        if came is Came.LIKE_OTHERS:
            self._become(note.become(RepairState.REPAIRED))
            log.warning("wheel_repaired", messages=list(note.named), others_wrong=_wrong_in(found))
            self._counts["repaired"] += 1
        elif self._differed == 2:
            problem = f"the wheel that was built from the log differs, too: {named(found)['named']}"
            self._note = failed(self._directory, note, problem)
            self._counts["failed"] += 1

    def _look_whether_alike(self, note: RepairNote, comparer: Looks) -> None:
        if not note.hours:
            return  # An illegible note: a person removes it.
        looked, found = comparer.look_over(note.hours)
        if came_of(note, looked.cut, found, self._node) is Came.LIKE_OTHERS:
            log.info("wheel_differs_no_more", messages=list(note.named))
            self._become(note.become(RepairState.REPAIRED))

    def _become(self, note: RepairNote) -> None:
        note_repair(self._directory, note)
        self._note = note
        self._give_up_turn()

    def _give_up_turn(self) -> None:
        # Each time: an etcd that is not to be trusted may have said that there is none.
        with suppress(CoordinationError):  # the next call tries again
            self._turn.end()

    def shown(self) -> dict[str, Any] | None:
        """See `Repairer`."""
        note = self._note
        if note is None and self._problem is None:
            return None
        return {
            "state": None if note is None else note.state.value,
            "since_ms": None if note is None else note.at_ms,
            "messages": [] if note is None else list(note.named),
            "problem": self._problem or (note.problem if note is not None else None),
        }


def _wrong_in(findings: Sequence[Finding]) -> list[str]:
    return sorted({node for finding in findings for node in finding.judgement.wrong})
