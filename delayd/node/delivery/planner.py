"""What a master plans from its wheel: a delivery queue, what its steps hold, and their verdicts.

A planner is made at takeover from a committed frontier that the wheel has reached, is told of all
that arrives, and is thrown away with the mastership. Not here: when a step is due and how it is
carried out (`delayd.node.delivery.mastership`), which messages it takes
(`replication.delivery_queue`).

Not thread safe: every call is made under the replica's lock, unless its docstring says that it
takes the lock.
Source: docs/design/frontier.md, "Step" and "Verdicts".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from delayd.node.delivery.slot_opener import OPEN_AHEAD_MS, SlotOpener
from delayd.node.replica.cancel_marks import Judged, Moved, cancel_marker_of, last_markers
from delayd.node.replica.replica import Replica
from delayd.node.replica.request_rates import RequestRates
from delayd.node.replica.splitting import split_before
from delayd.request import id_of
from delayd.runtime import native
from delayd.runtime.native.unpacking import Frames
from delayd.wheel import Entry, Frame, FrameKind
from delayd.wheel.id_memory import id_name
from delayd.wheel.storage import Wheel
from replication.delivery_queue import (
    NOT_STOPPED,
    OPEN_LIMITS,
    DeliveryQueue,
    OpenLimits,
    Plan,
    StepLimits,
)
from replication.frontier import Frontier, stand_still
from replication.ids import KilledMessage, Settlement
from replication.quotas import Gate, Quotas
from replication.rank import SLOT_MS, Rank, lane_of, slot_of
from replication.rules import Rules, is_steady
from replication.settings import Settings
from replication.shards import lowest_cursors
from replication.verdict import CancelMarker, judge

FOREVER = Rank(1 << 63, 0, 0)
"""Beyond any due time."""
PIECE_FRAMES = 1_000
"""Messages of a step that are read at once. While the next are read, the producer's own threads and
the brokers are busy with those before."""


class Piece(NamedTuple):
    """Messages of a step that are read together."""

    messages: Sequence[Frame]
    """Those that are not killed, in the plan's order."""
    killed_count: int


class FlatPiece(NamedTuple):
    """Messages of a step whose frames were read natively, and not looked at."""

    entries: Sequence[Entry]
    """In the plan's order, and so are the frames."""
    frames: Frames
    read: Callable[[Sequence[Entry]], Piece]
    """Reads some of them in Python. Takes the lock."""


NO_MESSAGES = Piece((), 0)
PLAIN_RUN_MIN = 16
"""Fewer plain messages in a row are taken by Python: the calls take as long as ten of them do."""


@dataclass(frozen=True, slots=True)
class StepContent:
    """What a step has to produce."""

    pieces: Iterable[Piece | FlatPiece] = ()
    """To be delivered; each piece is read when it is asked for, once."""
    deferred: Piece = NO_MESSAGES
    """To be requeued for a moment."""
    replies: Sequence[Frame] = ()
    judged: Sequence[Judged] = ()


class Planner:
    """One mastership's plans."""

    def __init__(
        self,
        wheel: Wheel,
        settings: Settings,
        frontier: Frontier,
        limits: OpenLimits = OPEN_LIMITS,
        lock: AbstractContextManager[object] | None = None,
        rules: Callable[[], Rules] | None = None,
        taken: Callable[[Iterable[str], int], dict[str, int]] | None = None,
        joint: Callable[[], Frontier | None] = lambda: None,
    ) -> None:
        """`frontier`: committed, and reached by what is in the wheel. `lock`: the replica's.
        `rules`: what is known of their versions, if the cluster was switched. `taken`: as
        `RequestRates.taken`. `joint`: the newest frontier of all shards, if it is known."""
        self._joint = joint
        self._taken = taken or RequestRates().taken
        self._rules = rules or (lambda: Rules(settings.rules_version))
        self._lock = lock or nullcontext()
        self._wheel = wheel
        self._settings = settings
        self._owned = [frontier.owns(partition) for partition in range(settings.partitions)]
        self._has_all = all(self._owned)
        replies = self._own(wheel.pending_replies(frontier.offsets))
        kinds = (FrameKind.CANCEL_MARKER,)
        self._queue = DeliveryQueue(frontier, replies, limits, marker_kinds=kinds)
        own = None if self._has_all else {n for n, is_own in enumerate(self._owned) if is_own}
        self._slot_opener = SlotOpener(wheel, self._queue, own)
        self._settled: dict[tuple[int, str], Settlement] = {}
        """By partition and id: settlements of its steps that it may not have ingested yet."""
        self._settled_before: dict[tuple[int, str], Settlement] = {}
        """Older ones, which are needed until all up to `_settled_to` is ingested."""
        self._settled_to = frontier.own_writes

    def _own(self, entries: Iterable[Entry]) -> Iterable[Entry]:
        """Return those of the shard's own partitions."""
        if self._has_all:
            return entries
        return [entry for entry in entries if self._owned[entry.partition]]

    @classmethod
    def of(cls, replica: Replica, frontier: Frontier) -> "Planner":
        """Return a planner that is told of all that the replica stores. Takes the lock."""
        while not split_before(replica, frontier):
            pass
        with replica.changed:
            planner = cls(
                replica.wheel,
                replica.settings,
                frontier,
                lock=replica.changed,
                rules=lambda: replica.rules,
                taken=replica.arrivals.rates.taken,
                joint=lambda: replica.newest and replica.newest.record.frontier,
            )
            replica.attach(planner)
        return planner

    @property
    def frontier(self) -> Frontier:
        """Return the frontier of the step last begun."""
        return self._queue.frontier

    @property
    def told_ms(self) -> int:
        """Return the last due time of messages whose arrival it must be told."""
        return self._queue.told_ms

    def arrived(self, entries: Iterable[Entry]) -> None:
        """Note that these were stored."""
        for entry in self._own(entries):
            if entry.kind == FrameKind.MESSAGE:
                self._queue.arrived(entry)
            else:
                self._queue.reply_arrived(entry)

    def plan(self, now_ms: int, ingested: tuple[int, ...], limits: StepLimits) -> Plan:
        """Return the next step at `now_ms`; nothing changes until it is begun."""
        if not self._has_all:
            ingested = tuple(n if own else 0 for n, own in zip(ingested, self._owned, strict=True))
        self._slot_opener.turn(now_ms)
        if self._settled or self._settled_before:
            self._forget_settled(ingested)
        if not self._slot_opener.has_found_late:
            # It is not known yet what O may pass: a step that moves nothing.
            return Plan(self.frontier, stand_still(self.frontier), now_ms)
        return self._queue.plan(now_ms, ingested, limits)

    def begin(self, plan: Plan) -> StepContent:
        """Put the step under way and return what it has to produce; of many messages only the first
        piece is read at once. The caller asks for the pieces without the lock."""
        self._queue.begin(plan)
        first = self._piece(plan.deliveries[:PIECE_FRAMES], plan)
        deferred = self._read(plan.deferred, plan)
        replies: list[Frame] = []
        markers: list[Frame] = []
        for frame in self._wheel.read(plan.replies):
            (markers if frame.kind == FrameKind.CANCEL_MARKER else replies).append(frame)
        last = last_markers(markers)
        judged = [
            self._judge(frame, plan, last[frame.partition, frame.body[1]]) for frame in markers
        ]
        pieces = self._under_lock(self._pieces(first, plan))
        return StepContent(pieces, deferred, replies, judged)

    def _pieces(self, first: Piece | FlatPiece, plan: Plan) -> Iterator[Piece | FlatPiece]:
        """Read the other pieces one by one. A cancel marker that arrives meanwhile lies beyond O',
        so it kills nothing of this step; the delivery queue knows of it."""
        yield first
        for at in range(PIECE_FRAMES, len(plan.deliveries), PIECE_FRAMES):
            yield self._piece(plan.deliveries[at : at + PIECE_FRAMES], plan)

    def _under_lock(self, pieces: Iterator[Piece | FlatPiece]) -> Iterator[Piece | FlatPiece]:
        while True:
            with self._lock:
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def _piece(self, entries: Sequence[Entry], plan: Plan) -> Piece | FlatPiece:
        """Read a piece, natively if all of it lies in files."""
        frames = None
        if native.library is not None and len(entries) >= PLAIN_RUN_MIN:
            frames = self._wheel.gather(entries)
        if frames is None:
            return self._read(entries, plan)
        return FlatPiece(entries, frames, lambda some: self._read_later(some, plan))

    def _read_later(self, entries: Sequence[Entry], plan: Plan) -> Piece:
        with self._lock:
            return self._read(entries, plan)

    def _read(self, entries: Sequence[Entry], plan: Plan) -> Piece:
        frames = self._wheel.read(entries)
        left = [
            frame
            for frame in frames
            if id_of(frame.body) is None or not self._is_killed(frame, plan.frontier)
        ]
        return Piece(left, len(frames) - len(left))

    def gates(self, quotas: Quotas, plan: Plan) -> list[Gate]:
        """Count what is pending for the topics that have a quota, in the seconds that their lanes
        have not passed after the planned step, in any shard, and what was taken for them; return
        the gates that the step writes."""
        topics = quotas.topics
        if not topics:
            return []
        cursors, lanes = lowest_cursors(plan.frontier, self._joint()), self._settings.lanes
        slots = {topic: slot_of(cursors[lane_of(topic, lanes)].due_ms) for topic in topics}
        pending = self._wheel.counts.pending_from(slots, self._wheel.ids.kills_between)
        taken = self._taken(quotas.rated, plan.now_ms)
        return quotas.count(pending, taken, plan.now_ms)

    def wrote(self, own_writes: tuple[int, ...]) -> None:
        """Note R: the step under way has re-buffered messages. Takes the lock."""
        with self._lock:
            self._queue.wrote(own_writes)

    def next_due_ms(self, now_ms: int, stopped: Mapping[int, int] = NOT_STOPPED) -> int | None:
        """Return when something may be due next; None if nothing is known to be. `stopped`: as
        `StepLimits` has it."""
        if self._slot_opener.is_busy:
            return now_ms
        known = self._queue.next_due_ms(stopped)
        wanted = self._queue.wanted(FOREVER)
        slot = None if wanted is None else self._wheel.next_slot(slot_of(wanted.since.due_ms))
        # What lies in the file of an hour may be due from the beginning of that hour on.
        slot = min((s for s in (slot, self._wheel.whole_below) if s is not None), default=None)
        unopened = None if slot is None else max(slot * SLOT_MS - OPEN_AHEAD_MS, now_ms)
        return min((due for due in (known, unopened) if due is not None), default=None)

    def _is_killed(self, frame: Frame, after: Frontier) -> bool:
        """True if a cancel marker below O' kills the message. Only a message with an id can be
        killed."""
        rank = Rank(frame.due_ms, frame.partition, frame.offset)
        kill = self._wheel.ids.kill(rank)
        if kill is None:
            return False
        if kill.marker_offset < after.offsets[frame.partition]:
            return True
        self._queue.postpone_verdict(frame.partition, kill.marker_offset)
        return False

    def _judge(self, frame: Frame, plan: Plan, last_offset: int) -> Judged:
        """Judge a marker; `last_offset` is of the last one of its id in this step."""
        marker, id, due_ms = cancel_marker_of(frame)
        refused, escaped = set(), set()
        for message in (*marker.killed, *marker.killed_before):
            kill = self._wheel.ids.kill(Rank(message.due_ms, marker.partition, message.offset))
            if kill is not None and kill.is_refused:
                refused.add(message.offset)
            elif kill is not None and kill.went_on is not None:
                escaped.add(message.offset)
        settled = self._last_settled(marker.partition, id)
        keep_ms = self._settings.id_memory_ms
        judgement = judge(marker, plan.before, refused, keep_ms, settled, escaped)
        moved: tuple[Moved, ...] = ()
        if marker.move is not None and judgement.killed:
            is_last = last_offset == marker.offset
            moved = tuple(self._moved(marker, id, judgement.killed, is_last=is_last))
        settlement = None
        if is_steady(self._rules().version_at(marker.partition, marker.offset)):
            settlement = judgement.settlement(marker, plan.now_ms)
        if settlement is not None and not settlement.names_nothing:
            self._settled[marker.partition, id] = settlement
        return Judged(marker, id, due_ms, judgement, settlement, moved)

    def _moved(
        self,
        marker: CancelMarker,
        id: str,
        killed: tuple[KilledMessage, ...],
        *,
        is_last: bool,
    ) -> Iterator[Moved]:
        """Yield what the step writes for a reschedule that has killed these. What a later marker
        took over in the same step is that one's. One beyond O' waits for what is written now."""
        assert marker.move is not None, "only a reschedule moves"
        partition = marker.partition
        state = self._wheel.ids.state(partition, id_name(id))
        is_holding = state.reserved is not None and state.reserved.marker_offset == marker.offset
        is_taken = state.killed_by > marker.offset
        if is_taken and is_last:
            self._queue.postpone_verdicts(partition)
        for message, (_, due_ms) in zip(marker.killed, marker.move.dues_ms, strict=True):
            if message not in killed or not (is_holding or (is_taken and is_last)):
                continue
            rank = self._went_on(Rank(message.due_ms, partition, message.offset))
            if rank is not None:
                frame = self._wheel.finder.find(message.lane, rank)
                assert frame is not None, f"{rank} is pending, and not in the wheel"
                yield Moved(frame, due_ms)

    def _went_on(self, rank: Rank) -> Rank | None:
        """Return the rank of the record that stands for a killed message; None if none does: a
        cancel or replace that came later refused it."""
        while (kill := self._wheel.ids.kill(rank)) is not None and kill.is_refused:
            if kill.went_on is None:
                return None
            due_ms, offset = kill.went_on
            rank = Rank(due_ms, rank.partition, offset)
        return rank

    def _last_settled(self, partition: int, id: str) -> Settlement | None:
        """Return the last settlement of an id: of an own step, or as the log has it."""
        place = (partition, id)
        own = self._settled.get(place) or self._settled_before.get(place)
        return own or self._wheel.ids.state(partition, id_name(id)).settled

    def _forget_settled(self, ingested: tuple[int, ...]) -> None:
        """Forget what this node has read in the log by now."""
        if all(own < reached for own, reached in zip(self._settled_to, ingested, strict=True)):
            self._settled_before, self._settled = self._settled, {}
            self._settled_to = self.frontier.own_writes
