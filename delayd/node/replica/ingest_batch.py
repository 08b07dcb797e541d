"""One batch of buffer records on its way into the wheel: parsed requests in, frames out.

It carries the ingest rules (`replication.ingest`) to what the wheel remembers of ids, and keeps its
changes to itself until the whole batch is in the wheel: both change together, or neither.

Source: docs/design/frontier.md, "Ingest" and "Ids".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from delayd.bus import Record
from delayd.node.replica.cancel_marks import cancel_marker_body
from delayd.request import (
    Op,
    Reject,
    Request,
    Verdict,
    conflict_body,
    message_body,
    offset_of,
    pending_reply_body,
    receipt,
    reject_body,
    reject_receipt,
    source_of,
)
from delayd.wheel import Frame, FrameKind
from delayd.wheel.id_memory import (
    NO_TOPICS,
    IdMemory,
    Remembered,
    continued_name,
    id_name,
    redrive_name,
)
from delayd.wheel.kills import Kill
from delayd.wheel.packed import PackedFrame
from replication import ingest as rules
from replication.frontier import Frontier
from replication.ids import NOTHING, REDRIVES_MAX, IdState
from replication.ingest import (
    REDRIVE_MEMORY_MS,
    REPEAT_MEMORY_MS,
    Asked,
    Decision,
    Known,
    LogState,
    PendingReply,
    ingest,
    ingest_plain,
)
from replication.rank import Rank, lane_of
from replication.settings import AT_LEAST_ONCE, RECEIPTS_ALL, Settings
from replication.verdict import CancelMarker

_REJECT = Asked(rules.Op.REJECT, 0)
# See `delayd.request.parser`: members of enums and named tuples, without what they cost.
_SCHEDULE = Op.SCHEDULE
_MESSAGE = FrameKind.MESSAGE
_made = tuple.__new__
_OPS = {
    Op.SCHEDULE: rules.Op.SCHEDULE,
    Op.CANCEL: rules.Op.CANCEL,
    Op.REPLACE: rules.Op.REPLACE,
    Op.CONTINUE: rules.Op.CONTINUE,
    Op.REDRIVE: rules.Op.REDRIVE,
}


class IngestBatch:
    """Decides records one after the other. Made, filled and applied under the replica's lock."""

    def __init__(
        self,
        ids: IdMemory,
        settings: Settings,
        states: Sequence[LogState],
        covered: Frontier | None,
    ) -> None:
        self._ids = ids
        self._settings = settings
        self._covered = covered
        """A frontier so old that what it covers is not stored any more."""
        self.states = list(states)
        self.frames: list[Frame | PackedFrame] = []
        """In the order of the records."""
        self._changed: dict[tuple[int, bytes], tuple[IdState, int]] = {}
        self._remembered: dict[tuple[int, bytes], Remembered] = {}
        """What was known before the batch, as far as it was asked for."""
        self._topics: dict[tuple[int, bytes], dict[int, str]] = {}
        """Targets of the live messages of what has changed, by offset."""
        self._kills: dict[Rank, Kill] = {}

    def add_all(
        self,
        records: Sequence[Record],
        frames: Sequence[PackedFrame | None],
        others: Mapping[int, Request | Reject],
    ) -> None:
        """Apply the rules to records in their order: to those that are packed, and to the others,
        which are given by their place among the records.

        A packed frame is of a schedule without an id: what `ingest_plain` decides of it is decided
        here, for a run of them in one partition at once.
        """
        states, covered, keep = self.states, self._covered, self.frames.append
        running, next_offset, log_ms = -1, 0, 0
        for place, frame in enumerate(frames):
            if frame is None:
                if running >= 0:
                    states[running] = LogState(next_offset, log_ms)
                    running = -1
                self.add(records[place], others[place])
                continue
            due_ms, partition, offset, lane, _, append_ms, _, _, _ = frame
            if partition != running:
                if running >= 0:
                    states[running] = LogState(next_offset, log_ms)
                running = partition
                next_offset, log_ms = states[partition]
            assert offset >= next_offset, (
                f"partition {partition}: offset {offset} came after {next_offset - 1}"
            )
            next_offset = offset + 1
            if append_ms > log_ms:
                log_ms = append_ms
            if covered is None or not covered.covers(lane, Rank(due_ms, partition, offset)):
                keep(frame)
        if running >= 0:
            states[running] = LogState(next_offset, log_ms)

    def add(self, record: Record, request: Request | Reject) -> None:
        """Apply the rules to one record."""
        partition, offset = record.partition, record.offset
        if isinstance(request, Reject):
            self._rule(record, _REJECT, Known())
            told = reject_receipt(request, source=source_of(partition, offset))
            body = pending_reply_body(dead=reject_body(record, request), receipt=told)
            self._answer(record, body)
            return
        lane = 0 if request.topic is None else lane_of(request.topic, self._settings.lanes)
        if request.op is _SCHEDULE and request.id is None:
            rank, self.states[partition] = ingest_plain(
                self.states[partition], partition, offset, record.append_ms, request.due_ms
            )
            self._message(record, request, lane, rank)
            return
        continues = request.continues
        asked = Asked(
            _OPS[request.op],
            request.due_ms,
            lane,
            request.id is not None,
            request.digest,
            -1 if continues is None else continues[1],
            -1 if continues is None else offset_of(request.origin),
        )
        if request.id is None and request.op is Op.CONTINUE:
            known = Known(continued=self._continued(partition, request))
        else:
            known = self._known(partition, request)
        decision = self._rule(record, asked, known)
        if decision.is_refused:
            assert continues is not None, "only a continuation is refused"
            rank = Rank(continues[0], partition, continues[1])
            kill = self._kill(rank)
            assert kill is not None, "refused, though nobody killed what it continues"
            self._kills[rank] = kill._replace(is_refused=True)
            return
        before = NOTHING
        if request.id is not None:
            before = self._state(partition, id_name(request.id))
        if decision.id is not None:
            assert request.id is not None, "only an id has a state"
            self._note_id(record, request, id_name(request.id), decision)
        if decision.redriven is not None:
            assert request.redrive is not None, "only a redrive has a source"
            change = (decision.redriven, REDRIVE_MEMORY_MS)
            self._changed[partition, redrive_name(request.redrive)] = change
        if decision.continued is not None:
            assert continues is not None, "only a continuation continues"
            name = continued_name(continues[1])
            self._changed[partition, name] = (decision.continued, REPEAT_MEMORY_MS)
        if decision.rank is not None:
            self._message(record, request, lane, decision.rank)
        if decision.reply is PendingReply.CANCEL_MARKER:
            self._mark(record, request, decision, before)
        elif decision.reply is PendingReply.SCHEDULED:
            self._scheduled(record, request)
        elif decision.reply is not PendingReply.NONE:
            self._answer(record, self._refusal(record, request, decision, before))

    def apply(self) -> None:
        """The frames are in the wheel: so is what is remembered of ids now."""
        for (partition, name), (state, keep_ms) in self._changed.items():
            topics = self._topics.get((partition, name), NO_TOPICS)
            self._ids.remember(partition, name, state, keep_ms, topics)
        for rank, kill in self._kills.items():
            self._ids.note_kill(rank, kill)

    def _note_id(self, record: Record, request: Request, name: bytes, decision: Decision) -> None:
        partition, offset = record.partition, record.offset
        assert decision.id is not None, "called for changes of an id"
        topics = self._topics.get((partition, name))
        if topics is None:
            topics = self._recall(partition, name).topics
        for killed in decision.killed:
            rank = Rank(killed.due_ms, partition, killed.offset)
            self._kills[rank] = Kill(offset, topic=topics.get(killed.offset, ""))
        if request.topic is not None:
            topics = {**topics, offset: request.topic}
        live = {message.offset for message in decision.id.live}
        self._topics[partition, name] = {at: topics[at] for at in topics if at in live}
        self._changed[partition, name] = (decision.id, self._settings.id_memory_ms)

    def _rule(self, record: Record, asked: Asked, known: Known) -> Decision:
        decision = ingest(
            self.states[record.partition],
            record.partition,
            record.offset,
            record.append_ms,
            asked,
            known,
            self._settings.id_memory_ms,
        )
        self.states[record.partition] = decision.state
        return decision

    def _known(self, partition: int, request: Request) -> Known:
        id = redriven = NOTHING
        killed_by = None
        if request.id is not None:
            id = self._state(partition, id_name(request.id))
        if request.redrive is not None:
            redriven = self._state(partition, redrive_name(request.redrive))
        if request.continues is not None:
            due_ms, offset = request.continues
            kill = self._kill(Rank(due_ms, partition, offset))
            killed_by = None if kill is None else kill.marker_offset
        return Known(id, redriven, killed_by, self._continued(partition, request))

    def _continued(self, partition: int, request: Request) -> IdState | None:
        """What is known of the message that goes on, where another master may have written that."""
        if request.continues is None or self._settings.guarantee != AT_LEAST_ONCE:
            return None
        return self._state(partition, continued_name(request.continues[1]))

    def _state(self, partition: int, name: bytes) -> IdState:
        changed = self._changed.get((partition, name))
        return self._recall(partition, name).state if changed is None else changed[0]

    def _recall(self, partition: int, name: bytes) -> Remembered:
        """As it was before this batch; a request asks for it several times."""
        found = self._remembered.get((partition, name))
        if found is None:
            found = self._remembered[partition, name] = self._ids.recall(partition, name)
        return found

    def _kill(self, rank: Rank) -> Kill | None:
        return self._kills.get(rank) or self._ids.kill(rank)

    def _message(self, record: Record, request: Request, lane: int, rank: Rank) -> None:
        if self._covered is None or not self._covered.covers(lane, rank):
            due_ms, partition, offset = rank
            body = message_body(request)
            frame = (due_ms, partition, offset, lane, _MESSAGE, record.append_ms, body)
            self.frames.append(_made(Frame, frame))
        if self._settings.receipts_written != RECEIPTS_ALL or request.id is None:
            return
        if request.op is Op.SCHEDULE:
            self._scheduled(record, request)

    def _scheduled(self, record: Record, request: Request) -> None:
        """Tell that the message is stored."""
        told = receipt(
            id=_told(request),
            verdict=Verdict.SCHEDULED,
            op=request.op,
            source=source_of(record.partition, record.offset),
            due_ms=request.asked_due_ms,
        )
        self._answer(record, pending_reply_body(dead=None, receipt=told))

    def _mark(self, record: Record, request: Request, decision: Decision, before: IdState) -> None:
        due_ms = request.asked_due_ms if request.op is Op.REPLACE else None
        mark = CancelMarker(
            request.op is Op.REPLACE,
            record.partition,
            record.offset,
            decision.state.log_ms,
            decision.killed,
            before.killed,
        )
        assert request.id is not None, "a mark is about an id"
        body = cancel_marker_body(mark, request.id, due_ms)
        self._file(record, FrameKind.CANCEL_MARKER, body)

    def _refusal(
        self, record: Record, request: Request, decision: Decision, before: IdState
    ) -> tuple[Any, ...]:
        """The answer to a request that is not stored."""
        dead = None
        if request.op is Op.REDRIVE and decision.reply is PendingReply.CONFLICT:
            verdict = Verdict.CONFLICT
            detail = (
                f"{REDRIVES_MAX} messages or more are pending under the id: wait until they are "
                "delivered, or cancel them, and redrive then"
            )
            dead = conflict_body(record, detail)
        elif request.op is Op.REDRIVE:
            verdict = Verdict.DUPLICATE
            detail = f"the dead letter {request.redrive} was redriven before: nothing is sent twice"
        else:
            pending = [m for m in before.live if m.due_ms > decision.state.log_ms]
            same = [m for m in pending if m.digest == request.digest]
            taken = (same or pending)[0]
            holder = source_of(record.partition, taken.asked_at)
            if decision.reply is PendingReply.DUPLICATE:
                verdict = Verdict.DUPLICATE
                detail = f"the same request is scheduled as {holder}, due at {taken.due_ms}"
            else:
                verdict = Verdict.CONFLICT
                detail = (
                    f"the id is taken by {holder}, due at {taken.due_ms}, which asks for something "
                    "else: send delayd-op replace to have this one instead, or use another id"
                )
                dead = conflict_body(record, detail)
        told = receipt(
            id=_told(request),
            verdict=verdict,
            op=request.op,
            source=source_of(record.partition, record.offset),
            due_ms=request.asked_due_ms,
            detail=detail,
        )
        return pending_reply_body(dead=dead, receipt=told)

    def _answer(self, record: Record, body: tuple[Any, ...]) -> None:
        self._file(record, FrameKind.PENDING_REPLY, body)

    def _file(self, record: Record, kind: FrameKind, body: tuple[Any, ...]) -> None:
        """Keep an answer for the step that passes it, unless an old frontier has passed it."""
        covered = self._covered
        if covered is not None and record.offset < covered.offsets[record.partition]:
            return
        self.frames.append(
            Frame(
                record.append_ms,
                record.partition,
                record.offset,
                0,
                kind,
                record.append_ms,
                body,
            )
        )


def _told(request: Request) -> str:
    """Whom a receipt tells: the id, or of a redrive without one the source that it redrives."""
    id = request.redrive if request.id is None else request.id
    assert id is not None, "nothing else is ever answered here"
    return id
