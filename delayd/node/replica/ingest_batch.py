"""One batch of buffer records on its way into the wheel: parsed requests in, frames out.

It carries the ingest rules (`replication.ingest`) to what the wheel remembers of ids, and keeps its
changes to itself until the whole batch is in the wheel: both change together, or neither.

Source: docs/design/frontier.md, "Ingest" and "Ids".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from delayd.bus import Record
from delayd.node.replica.asking import CONTROLS, REJECT, SETTLE, SWITCH, asked_of
from delayd.node.replica.cancel_marks import cancel_marker_body, packed_cancel
from delayd.node.replica.debouncing import debounce_body_of, in_doubt
from delayd.node.replica.noted_kills import NotedKills
from delayd.node.replica.refusals import refusal_of, unmoved_of
from delayd.node.replica.replies import Replies
from delayd.node.replica.rescheduling import WRITES_MESSAGES, in_part, marker_body_of
from delayd.node.replica.unknown_past import WHOLE_PAST, Past, stores_first
from delayd.request import Op, Reject, Request, message_body, offset_of
from delayd.wheel import Frame, FrameKind
from delayd.wheel.frame import PackedFrame
from delayd.wheel.id_memory import (
    NO_TOPICS,
    UNKNOWN,
    First,
    IdMemory,
    Remembered,
    continued_name,
    id_name,
    redrive_name,
)
from replication.frontier import Frontier
from replication.ids import NOTHING, IdState, kill_all, settle
from replication.ingest import (
    REDRIVE_MEMORY_MS,
    REPEAT_MEMORY_MS,
    Asked,
    Decision,
    Known,
    LogState,
    PendingReply,
    first_of_id,
    ingest,
    ingest_plain,
)
from replication.log_time import log_time_after, trail_ms_of
from replication.rank import Rank, due_of, lane_of
from replication.rules import Rules
from replication.settings import AT_LEAST_ONCE, DEBOUNCE_RULES, RECEIPTS_ALL, Settings
from replication.trimmed import with_maybe
from replication.verdict import CancelMarker

_Body = tuple[Any, ...]
# See `delayd.request.parser`: members of enums and named tuples, without what they cost.
_SCHEDULE, _REPLACE, _CANCEL_OP = Op.SCHEDULE, Op.REPLACE, Op.CANCEL
_MESSAGE, _MARKER = FrameKind.MESSAGE, FrameKind.CANCEL_MARKER
_made = tuple.__new__


class IngestBatch:
    """Decides records one after the other. The replica makes, fills and applies it under its
    lock."""

    def __init__(
        self,
        ids: IdMemory,
        settings: Settings,
        states: Sequence[LogState],
        covered: Frontier | None,
        rules: Rules,
        past: Past = WHOLE_PAST,
    ) -> None:
        """`covered`: a frontier so old that what it covers is not stored any more. `rules` knows
        the barriers of the batch itself. `past`: what was trimmed before the replica began."""
        self._ids = ids
        self._past = past
        self._settings = settings
        self._rules = rules
        self.covered = covered
        self.states = list(states)
        self.frames: list[Frame | PackedFrame] = []
        """In the order of the records."""
        self._replies = Replies(self.frames, covered, rules)
        self._changed: dict[tuple[int, bytes], tuple[IdState, int]] = {}
        self._remembered: dict[tuple[int, bytes], Remembered] = {}
        """What was known before the batch, as far as it was asked for."""
        self._firsts: dict[tuple[int, bytes], First] = {}
        """Of ids of which nothing was known before, and the batch has brought nothing else."""
        self._topics: dict[tuple[int, bytes], Mapping[int, str]] = {}
        """Targets of the live messages of what has changed, by offset."""
        self._kills = NotedKills(ids, covered)

    def add_all(
        self,
        frames: Iterable[PackedFrame | None],
        other: Callable[[int], tuple[Record, Request | Reject]],
    ) -> None:
        """Apply the rules to records in their order, of which each has a frame, or none: `other`
        returns that record, by its place, and what it asks for.

        A frame of a message is of a schedule that is stored: what `ingest_plain` decides of it is
        decided here, for a run of them in one partition at once. A frame of a cancel marker stands
        for a cancel, whose id was looked up; its data is the name of that id.
        """
        states, covered, keep = self.states, self.covered, self.frames.append
        running, next_offset, log_ms, leap_ms, trail_ms = -1, 0, 0, 0, 0
        for place, frame in enumerate(frames):
            if frame is None:
                if running >= 0:
                    states[running] = LogState(next_offset, log_ms, leap_ms)
                    running = -1
                self.add(*other(place))
                continue
            due_ms, partition, offset, lane, kind, append_ms, _, data, _ = frame
            if partition != running:
                if running >= 0:
                    states[running] = LogState(next_offset, log_ms, leap_ms)
                running = partition
                next_offset, log_ms, leap_ms = states[partition]
                trail_ms = self.trail_ms(partition, offset)  # a barrier would end the run
            assert offset >= next_offset, (
                f"partition {partition}: offset {offset} came after {next_offset - 1}"
            )
            next_offset = offset + 1
            if leap_ms or append_ms - trail_ms > log_ms:
                log_ms, leap_ms = log_time_after(log_ms, leap_ms, append_ms, trail_ms)
            if kind:
                as_of_ms = append_ms if append_ms > log_ms else log_ms
                frame = self._cancel(partition, offset, append_ms, as_of_ms, data)
                if covered is None or offset >= covered.offsets[partition]:
                    keep(frame)
            elif covered is None or not covered.covers(lane, Rank(due_ms, partition, offset)):
                keep(frame)
        if running >= 0:
            states[running] = LogState(next_offset, log_ms, leap_ms)

    def add(self, record: Record, request: Request | Reject) -> None:
        """Apply the rules to one record."""
        self._know_firsts()
        if isinstance(request, Reject):
            self._reject(record, request)
        elif request.op is _SCHEDULE:
            if request.id is None:
                self._schedule_without_id(record, request)
            else:
                self._schedule(record, request, request.id)
        elif request.op is _CANCEL_OP:
            self._cancel_or_replace(record, request)
        elif request.op is Op.CONTINUE:
            self._continue(record, request)
        elif request.op is Op.RESCHEDULE or request.op is Op.FIRE:
            self._reschedule(record, request)
        elif request.op is Op.DEBOUNCE:
            self._debounce(record, request)
        elif request.op is Op.REDRIVE:
            self._redrive(record, request)
        elif request.op in CONTROLS:
            self._decide(record, SWITCH, Known())
            self._replies.keep_order(record, request)
        elif request.op is Op.SETTLE:
            self._settle(record, request)
        else:
            self._cancel_or_replace(record, request)

    def apply(self) -> None:
        """Remember of ids what the batch has changed: its frames are in the wheel."""
        for key, (state, keep_ms) in self._changed.items():
            topics, before = self._topics.get(key, NO_TOPICS), self._remembered.get(key, UNKNOWN)
            self._ids.remember(*key, state, keep_ms, topics, before.forget_ms)
        self._ids.remember_firsts(self._firsts, self._settings.id_memory_ms)
        self._kills.apply()

    # For what the native library has read (`row_ingest.py`).

    @property
    def knows_past(self) -> bool:
        """True if nothing was trimmed: each decision is believed."""
        return self._past is WHOLE_PAST

    @property
    def stores_first(self) -> bool:
        """See `stores_first`."""
        return stores_first(self._past, self._settings)

    def recall_each(self, keys: Sequence[tuple[int, bytes]]) -> None:
        """Look up what is remembered of ids, by partition and name, all at once."""
        self._remembered.update(zip(keys, self._ids.recall_each(keys), strict=True))

    def takes_first(self, key: tuple[int, bytes], first: First) -> bool:
        """Note a message that is the first of its id, and so stored; False if it is not."""
        if key in self._firsts or key in self._changed or self._remembered[key] is not UNKNOWN:
            return False
        self._firsts[key] = first
        return True

    def _know_firsts(self) -> None:
        """Make of first messages what rules look at: what comes may be under one of their ids."""
        for key, first in self._firsts.items():
            self._topics[key] = {first.offset: first.topic}
            self._changed[key] = first_of_id(*first[:4]), self._settings.id_memory_ms
        self._firsts.clear()

    # One method for each kind of record.

    def _reject(self, record: Record, reject: Reject) -> None:
        self._decide(record, REJECT, Known())
        self._replies.reject(record, reject)

    def _schedule_without_id(self, record: Record, request: Request) -> None:
        partition = record.partition
        rank, self.states[partition] = ingest_plain(
            self.states[partition],
            partition,
            record.offset,
            record.append_ms,
            request.due_ms,
            self.trail_ms(partition, record.offset),
        )
        assert request.topic is not None, "a schedule has a target"
        self._store(record, request, lane_of(request.topic, self._settings.lanes), rank)
        if request.is_told:
            self._replies.confirm(record, request)

    def _schedule(self, record: Record, request: Request, id: str) -> None:
        before = self._state(record.partition, id_name(id))
        asked = asked_of(request, self._settings.lanes)
        decision = self._decide(record, asked, Known(before))
        due_ms = due_of(asked.due_ms, record.append_ms)
        if self._past.hides_schedule(record, due_ms, decision, before, self.covered):
            self._note_maybe(record, id, asked.lane, due_ms)
            return
        if decision.rank is None:
            self._refuse(record, request, decision, before)
            return
        self._note_id(record, request, decision)
        self._store(record, request, asked.lane, decision.rank)
        if request.is_told or self._settings.receipts_written == RECEIPTS_ALL:
            self._replies.confirm(record, request)

    def _cancel_or_replace(self, record: Record, request: Request) -> None:
        assert request.id is not None, "a cancel marker is about an id"
        before = self._state(record.partition, id_name(request.id))
        asked = asked_of(request, self._settings.lanes)
        decision = self._decide(record, asked, Known(before))
        self._past.check_marker(record, asked, decision, before, self.covered)
        self._note_id(record, request, decision)
        if decision.rank is not None:
            self._store(record, request, asked.lane, decision.rank)
        is_replace = request.op is _REPLACE
        as_of_ms = decision.state.as_of_ms(record.append_ms)
        killed = decision.killed, before.killed, decision.repeats, None, False
        marker = (is_replace, record.partition, record.offset, as_of_ms, *killed)
        due_ms = request.asked_due_ms if is_replace else None
        self._replies.file(
            record, _MARKER, cancel_marker_body(_made(CancelMarker, marker), request.id, due_ms)
        )

    def _reschedule(self, record: Record, request: Request) -> None:
        before = self._state(record.partition, id_name(request.id or ""))
        decision = self._decide(record, asked := asked_of(request, 0), Known(before))
        if decision.reply is not PendingReply.CANCEL_MARKER:
            reject = unmoved_of(request, decision.reply, self._settings.max_delay_ms)
            self._replies.reject(record, reject)
            return
        body = marker_body_of(record, request, asked, decision, before)
        if self._past.hides_held(record, asked, decision, before, self.covered):
            decision = in_part(decision, record.offset)
        self._note_id(record, request, decision)
        self._replies.file(record, _MARKER, body, WRITES_MESSAGES)

    def _debounce(self, record: Record, request: Request) -> None:
        before = self._state(record.partition, id_name(request.id or ""))
        asked = asked_of(request, self._settings.lanes)
        decision = self._decide(record, asked, Known(before))
        rank = decision.rank
        assert rank is not None, "a debounce is stored"
        request = request._replace(asked_due_ms=rank.due_ms)
        due_ms = due_of(asked.due_ms, record.append_ms)
        if self._past.hides_debounce(record, due_ms, decision, before, self.covered):
            decision = in_doubt(decision, record.offset)
        self._note_id(record, request, decision)
        self._store(record, request, asked.lane, rank)
        is_told = request.is_told or self._settings.receipts_written == RECEIPTS_ALL
        if is_told or decision.reply is PendingReply.CANCEL_MARKER:
            self._replies.file(record, _MARKER, debounce_body_of(record, request, decision, before))

    def _cancel(
        self, partition: int, offset: int, append_ms: int, as_of_ms: int, name: bytes
    ) -> PackedFrame:
        """Decide a cancel as `_cancel_or_replace` does, with fewer objects; return its marker."""
        key, keep_ms = (partition, name), self._settings.id_memory_ms
        if key in self._firsts:
            self._know_firsts()
        before, topics = self._state(partition, name), self._topics.get(key)
        after, killed = kill_all(before, offset, as_of_ms, keep_ms)
        if killed:
            known = self._remembered[key].topics if topics is None else topics
            self._kills.note(partition, offset, killed, known, before.reserved)
        self._topics[key], self._changed[key] = NO_TOPICS, (after, keep_ms)
        id = name[1:].decode()
        return packed_cancel(partition, offset, append_ms, id, as_of_ms, killed, before.killed)

    def _continue(self, record: Record, request: Request) -> None:
        assert request.continues is not None, "a continuation names what it continues"
        partition = record.partition
        due_ms, offset = request.continues
        rank = Rank(due_ms, partition, offset)
        id, kill = NOTHING, None
        if request.id is not None:  # else nothing can have killed the message
            id = self._state(partition, id_name(request.id))
            kill = self._kills.get(rank)
        killed_by = None if kill is None else kill.marker_offset
        known = Known(id=id, killed_by=killed_by, continued=self._continued(partition, offset))
        asked = asked_of(request, self._settings.lanes)._replace(
            continued_offset=offset, origin=offset_of(request.origin), continued_due_ms=due_ms
        )
        if self._rules.version_at(partition, record.offset) < DEBOUNCE_RULES:
            asked = asked._replace(waits=False)  # older releases read what is stored
        decision = self._decide(record, asked, known)
        next_ms = due_of(asked.due_ms, record.append_ms)
        if request.id is not None and self._past.hides_continuation(
            record, request.continues, next_ms, decision, id, self.covered, request.moved_by
        ):
            self._note_maybe(record, request.id, asked.lane, next_ms, instead_of=offset)
            return
        if kill is not None:
            self._kills.note_went_on(rank, kill, decision, asked.lane, request.topic or "")
        if decision.is_refused and not decision.is_held:
            return
        if decision.id is not None:
            self._note_id(record, request, decision)
        if decision.continued is not None:
            name = continued_name(offset)
            self._changed[partition, name] = (decision.continued, REPEAT_MEMORY_MS)
        if decision.rank is not None:
            self._store(record, request, asked.lane, decision.rank)

    def _redrive(self, record: Record, request: Request) -> None:
        assert request.redrive is not None, "a redrive names a source"
        partition, name = record.partition, redrive_name(request.redrive)
        before = NOTHING if request.id is None else self._state(partition, id_name(request.id))
        known = Known(before, self._state(partition, name))
        asked = asked_of(request, self._settings.lanes)
        decision = self._decide(record, asked, known)
        due_ms = due_of(asked.due_ms, record.append_ms)
        both = before, known.redriven
        if self._past.hides_redrive(record, due_ms, decision, both, self.covered):
            if request.id is not None:
                self._note_maybe(record, request.id, asked.lane, due_ms)
            as_of_ms = decision.state.as_of_ms(record.append_ms)
            maybe = with_maybe(NOTHING, as_of_ms, record.offset, asked.lane)
            self._changed[partition, name] = (maybe, REDRIVE_MEMORY_MS)
            return
        if decision.rank is None:
            self._refuse(record, request, decision, before)
            return
        if decision.id is not None:
            self._note_id(record, request, decision)
        assert decision.redriven is not None, "a redrive that is stored is remembered"
        self._changed[partition, name] = (decision.redriven, REDRIVE_MEMORY_MS)
        self._store(record, request, asked.lane, decision.rank)
        self._replies.confirm(record, request)

    def _settle(self, record: Record, request: Request) -> None:
        self._decide(record, SETTLE, Known())
        keep_ms = self._settings.id_memory_ms
        for id, settlement in request.settled:
            key = record.partition, id_name(id)
            self._topics.setdefault(key, self._recall(*key).topics)
            self._changed[key] = settle(self._state(*key), settlement), keep_ms

    # What they have in common.

    def trail_ms(self, partition: int, offset: int) -> int:
        """Return by how much log time trails where this record is."""
        return trail_ms_of(self._settings, self._rules.version_at(partition, offset))

    def _decide(self, record: Record, asked: Asked, known: Known) -> Decision:
        decision = ingest(
            self.states[record.partition],
            record.partition,
            record.offset,
            record.append_ms,
            asked,
            known,
            self._settings.id_memory_ms,
            self.trail_ms(record.partition, record.offset),
        )
        self.states[record.partition] = decision.state
        return decision

    def _note_id(self, record: Record, request: Request, decision: Decision) -> None:
        assert request.id is not None and decision.id is not None, "called for changes of an id"
        partition, offset, name = record.partition, record.offset, id_name(request.id)
        topics = self._topics.get((partition, name))
        if topics is None:
            topics = self._recall(partition, name).topics
        reserved = self._state(partition, name).reserved
        self._kills.note(partition, offset, decision.killed, topics, reserved)
        if request.topic is not None:
            topics = {**topics, offset: request.topic}
        live = {message.offset for message in decision.id.live}
        left = {at: topics[at] for at in topics if at in live} if live else NO_TOPICS
        self._topics[partition, name] = left
        self._changed[partition, name] = (decision.id, self._settings.id_memory_ms)

    def _note_maybe(
        self, record: Record, id: str, lane: int, due_ms: int, instead_of: int = -1
    ) -> None:
        """Note a message that may be live, and is done if it was."""
        key = record.partition, id_name(id)
        self._topics.setdefault(key, self._recall(*key).topics)
        state = with_maybe(self._state(*key), due_ms, record.offset, lane, instead_of)
        self._changed[key] = (state, self._settings.id_memory_ms)

    def _continued(self, partition: int, offset: int) -> IdState | None:
        """Return what is known of a continuation by another master; None if there can be none."""
        if self._settings.guarantee != AT_LEAST_ONCE:
            return None
        return self._state(partition, continued_name(offset))

    def _state(self, partition: int, name: bytes) -> IdState:
        changed = self._changed.get((partition, name))
        return self._recall(partition, name).state if changed is None else changed[0]

    def _recall(self, partition: int, name: bytes) -> Remembered:
        """Return what was remembered before this batch; a request asks for it several times."""
        found = self._remembered.get((partition, name))
        if found is None:
            found = self._remembered[partition, name] = self._ids.recall(partition, name)
        return found

    def _store(self, record: Record, request: Request, lane: int, rank: Rank) -> None:
        if self._kills.is_stored(lane, rank):
            due_ms, partition, offset = rank
            body = message_body(request)
            frame = (due_ms, partition, offset, lane, _MESSAGE, record.append_ms, body)
            self.frames.append(_made(Frame, frame))

    def _refuse(
        self, record: Record, request: Request, decision: Decision, before: IdState
    ) -> None:
        name = redrive_name(request.redrive or "")
        redriven = NOTHING if request.redrive is None else self._state(record.partition, name)
        keep_ms = self._settings.id_memory_ms
        told, dead = refusal_of(record, request, decision, before, redriven, keep_ms)
        self._replies.reply(record, told, dead)
