"""What a master plans from its wheel: an agenda, what steps of it hold, and the verdicts in them.

Made at takeover from a committed frontier that the wheel has reached, told of all that arrives, and
thrown away with the mastership. Not here: when a step is due, and how it is carried out
(`delayd.mastership`); what is planned (`replication.agenda`).

Not thread safe: part of the replica, under its lock.
Source: docs/design/frontier.md, "Step" and "Verdicts".
"""

from collections.abc import Iterable
from typing import NamedTuple

from delayd.marks import Judged, mark_of
from delayd.opening import OPEN_AHEAD_MS, Opening
from delayd.request import id_of
from delayd.wheel import Entry, Frame, FrameKind
from delayd.wheel.storage import Wheel
from replication.agenda import OPEN_LIMITS, Agenda, OpenLimits, Plan, StepLimits
from replication.frontier import Frontier, stand_still
from replication.rank import SLOT_MS, Rank, slot_of
from replication.settings import Settings
from replication.verdict import judge

FOREVER = Rank(1 << 63, 0, 0)
"""Beyond any due time."""


class StepContent(NamedTuple):
    """What a step has to produce."""

    messages: list[Frame]
    """Those that are not killed, in the plan's order."""
    killed_count: int
    answers: list[Frame]
    judged: list[Judged]
    deferred: list[Frame]
    """Messages to be put back for a moment."""


class Planning:
    """One mastership's plans."""

    def __init__(
        self,
        wheel: Wheel,
        settings: Settings,
        frontier: Frontier,
        limits: OpenLimits = OPEN_LIMITS,
    ) -> None:
        """`frontier`: committed, and reached by what is in the wheel."""
        self._wheel = wheel
        self._settings = settings
        answers = wheel.answers(frontier.offsets)
        self._agenda = Agenda(frontier, answers, limits, mark_kinds=(FrameKind.MARK,))
        self._opening = Opening(wheel, self._agenda)

    @property
    def frontier(self) -> Frontier:
        """Of the step last begun."""
        return self._agenda.frontier

    def arrived(self, entries: Iterable[Entry]) -> None:
        """These were stored."""
        for entry in entries:
            if entry.kind == FrameKind.MESSAGE:
                self._agenda.arrived(entry)
            else:
                self._agenda.answer_arrived(entry)

    def plan(self, now_ms: int, ingested: tuple[int, ...], limits: StepLimits) -> Plan:
        """The next step at `now_ms`; nothing changes until it is begun."""
        self._opening.turn(now_ms)
        if not self._opening.has_found_late:
            return self._wait(now_ms)
        return self._agenda.plan(now_ms, ingested, limits)

    def begin(self, plan: Plan) -> StepContent:
        """Put the step under way: what it has to produce, read back."""
        self._agenda.begin(plan)
        planned = self._wheel.read(plan.deliveries)
        messages = [frame for frame in planned if not self._is_killed(frame, plan.frontier)]
        crowded = self._wheel.read(plan.deferred)
        deferred = [frame for frame in crowded if not self._is_killed(frame, plan.frontier)]
        killed_count = len(planned) + len(crowded) - len(messages) - len(deferred)
        answers: list[Frame] = []
        judged: list[Judged] = []
        for frame in self._wheel.read(plan.answers):
            if frame.kind == FrameKind.MARK:
                judged.append(self._judge(frame, plan.before))
            else:
                answers.append(frame)
        return StepContent(messages, killed_count, answers, judged, deferred)

    def wrote(self, own_writes: tuple[int, ...]) -> None:
        """The step under way has re-buffered messages: R."""
        self._agenda.wrote(own_writes)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When something may be due next; None if nothing is known to be."""
        if self._opening.is_busy:
            return now_ms
        known = self._agenda.next_due_ms()
        wanted = self._agenda.wanted(FOREVER)
        slot = None if wanted is None else self._wheel.next_slot(slot_of(wanted.since.due_ms))
        # What lies in the file of an hour may be due from the beginning of that hour on.
        slot = min((s for s in (slot, self._wheel.whole_below) if s is not None), default=None)
        unopened = None if slot is None else max(slot * SLOT_MS - OPEN_AHEAD_MS, now_ms)
        return min((due for due in (known, unopened) if due is not None), default=None)

    def _wait(self, now_ms: int) -> Plan:
        """A step that moves nothing: it is not known yet what O may pass."""
        before = self._agenda.frontier
        return Plan(before, stand_still(before), (), (), 0, now_ms, {}, ())

    def _is_killed(self, frame: Frame, after: Frontier) -> bool:
        """Does a mark below O' kill the message? Nothing without an id can be killed."""
        if id_of(frame.body) is None:
            return False
        rank = Rank(frame.due_ms, frame.partition, frame.offset)
        kill = self._wheel.ids.kill(rank)
        if kill is None:
            return False
        if kill.mark_offset < after.offsets[frame.partition]:
            return True
        self._agenda.postpone_verdict(frame.partition, kill.mark_offset)
        return False

    def _judge(self, frame: Frame, before: Frontier) -> Judged:
        mark, id, due_ms = mark_of(frame)
        refused = set()
        for message in (*mark.killed, *mark.killed_before):
            kill = self._wheel.ids.kill(Rank(message.due_ms, mark.partition, message.offset))
            if kill is not None and kill.is_refused:
                refused.add(message.offset)
        judgement = judge(mark, before, refused, self._settings.id_memory_ms)
        return Judged(mark, id, due_ms, judgement)
