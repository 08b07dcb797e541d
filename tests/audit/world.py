"""A cluster in plain Python: a correct history of all topics, and a cut, from what was sent.

It has one clock and no failures but those of targets. What becomes of a record is decided by the
nodes' own pure code (`delayd.request`, `replication`); around it stands the simplest master there
can be: every STEP_MS a step that takes all that was appended, delivers all that is due, puts back
what its target refuses, and answers. What is appended while a step is under way comes between what
the step took and what it puts back.

With `shards` there is such a master for each: that of shard 1 makes every second of these steps,
and so on. Their histories end CUT_APART_MS apart.

    world = World(receipts_written="verdicts")
    world.send(at_ms, key, value, headers)      in any order
    history = world.run()                       up to the end, with a cut at `cut_ms`

`History.rows` has the records of a role as the audit's reader hands them out; they may be changed
before that: this is how defects are planted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from types import SimpleNamespace
from typing import Any, Final
from zlib import crc32

from cluster_settings import SETTINGS as CLUSTER
from manual_clock import ManualClock
from record_rows import bounds_at
from written import LIMITS, PARTITIONS, History, Written

from delayd import request as wire
from delayd.audit.bounds import ShardCut
from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.node.delivery.local_step import LocalStep
from delayd.node.delivery.series_step import SeriesStep
from delayd.node.replica.asking import asked_of
from delayd.node.replica.cancel_marks import Judged, receipt_of
from delayd.node.replica.refusals import unmoved_of
from delayd.request import Op, Reason, Reject, Request, Turn, Verdict
from delayd.request.quotas import gate_record
from replication import ingest as rules
from replication.frontier import Frontier
from replication.holds import Order
from replication.ids import NOTHING, IdState, Settlement
from replication.ingest import Asked, Known, LogState, PendingReply, ingest
from replication.log_time import trail_ms_of
from replication.quotas import Full, Gate, QuotaOrder, Quotas, full_after
from replication.rank import Rank, lane_of, passed_by
from replication.record import FrontierRecord, StepCounts, encode, record_key
from replication.settings import RECEIPTS_ALL, Settings
from replication.shards import first_of_shard, joint_frontier, lowest_cursors, shard_of
from replication.smoothing import Smoothing
from replication.verdict import CancelMarker, Move, judge

START_MS: Final = 1_700_000_000_000
STEP_MS: Final = 100
CUT_APART_MS: Final = 1_500
"""How much earlier the history of each shard ends than that of the one before."""
UNDER_WAY_MS: Final = 5
"""How long a step takes: what is appended meanwhile is none of its business."""

TARGETS: Final[Mapping[str, int]] = {"orders": 4, "mails": 1, "late": 2}
"""Partitions of the targets. `late` does not exist at first, others never do."""

RETRY_DELAYS_MS: Final = (300, 700)
ID_MEMORY_MS: Final = 5_000
REFUSED: Final = {
    PendingReply.DUPLICATE: Verdict.DUPLICATE,
    PendingReply.CONFLICT: Verdict.CONFLICT,
}


@dataclass(slots=True)
class _Stored:
    """A message in the wheel."""

    rank: Rank
    lane: int
    request: Request
    killed_by: int | None = None
    is_refused: bool = False
    """Was a continuation of it refused because of the cancel marker?"""
    went_on: int | None = None
    """Offset of a continuation that is stored all the same."""


def _last_marks(passed: list[tuple[int, int, Any]]) -> dict[tuple[int, str], int]:
    """Return the last mark of each id, but for debounces that leave what a reschedule holds."""
    last: dict[tuple[int, str], int] = {}
    held: dict[tuple[int, str], set[int]] = {}
    for partition, offset, answer in passed:
        if not _is_mark(answer):
            continue
        mark, request = answer
        place, asked_at = (partition, request.id), {each.asked_at for each in mark.killed}
        if mark.is_debounce and asked_at.isdisjoint(held.get(place, asked_at or {-1})):
            continue
        if mark.move is not None:
            held[place] = asked_at
        last[place] = offset
    return last


def _is_mark(answer: Any) -> bool:
    return isinstance(answer[0], CancelMarker)


def _next_offset(log: list[Written]) -> int:
    """Offsets have gaps: transactions end with a record of their own."""
    return log[-1].offset + 1 + len(log) % 2 if log else 0


@dataclass
class World:
    """What is sent, and what comes of it."""

    receipts_written: str = "verdicts"
    id_memory_ms: int = ID_MEMORY_MS
    end_ms: int = START_MS + 20_000
    cut_ms: int = START_MS + 14_000
    late_exists_ms: int = START_MS + 3_000
    """From when the target `late` is there."""
    rates: Mapping[str, int] = field(default_factory=dict)
    """Of targets: `rate_max`."""
    shards: int = 1
    takeovers: Mapping[int, int] = field(default_factory=dict)
    """By shard: from when on (ms from the start) another node is its master."""
    _sent: list[tuple[int, int, Written]] = field(default_factory=list)
    _logs: dict[str, dict[int, list[Written]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    _states: list[LogState] = field(default_factory=lambda: [LogState(0, 0)] * PARTITIONS)
    _ids: dict[tuple[int, str], IdState] = field(default_factory=lambda: defaultdict(IdState))
    _redriven: dict[tuple[int, str], IdState] = field(default_factory=lambda: defaultdict(IdState))
    _wheel: dict[tuple[int, int], _Stored] = field(default_factory=dict)
    _answers: list[tuple[int, int, Any]] = field(default_factory=list)
    """partition, offset, and what is to be answered"""
    _settled: dict[tuple[int, str], Settlement] = field(default_factory=dict)
    """By partition and id: what its last marker that came to anything came to."""
    _own_writes: list[int] = field(default_factory=lambda: [-1] * PARTITIONS)
    _turns: int = 0
    _smoothings: list[Smoothing] = field(init=False)
    """By shard."""
    _full: Full = field(default_factory=dict)
    _quotas_of: dict[int, Quotas] = field(init=False)
    """By shard."""
    _stands: dict[int, Frontier] = field(default_factory=dict)
    """By shard: where its last step has come to."""
    _asked: list[tuple[str, int]] = field(default_factory=list)
    """Target and second of each request that adds a message and is not refused."""

    def __post_init__(self) -> None:
        self._quotas_of = {shard: Quotas({}, shards=self.shards) for shard in range(self.shards)}
        self._smoothings = [
            Smoothing(self.rates, {}, LIMITS.max_delay_ms) for _ in range(self.shards)
        ]

    @property
    def settings(self) -> Settings:
        """Of the cluster."""
        return replace(
            CLUSTER,
            cluster=LIMITS.cluster,
            partitions=PARTITIONS,
            lanes=8,
            max_delay_ms=LIMITS.max_delay_ms,
            record_bytes_max=LIMITS.record_bytes_max,
            id_memory_ms=self.id_memory_ms,
            retry_delays_ms=RETRY_DELAYS_MS,
            receipts_written=self.receipts_written,
            shards=self.shards,
        )

    def send(
        self,
        at_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
    ) -> Written:
        """A record for the buffer, appended at START_MS + `at_ms`; it gets its offset later."""
        number = len(self._sent)
        if partition is None:
            partition = number % PARTITIONS if key is None else partition_of(key, PARTITIONS)
        topic = self.settings.buffer.name
        at_ms += START_MS
        written = Written("buffer", topic, partition, -1, at_ms, key, value, [*headers])
        self._sent.append((at_ms, number, written))
        return written

    def run(self) -> History:
        """What the topics hold at the end."""
        waiting = sorted(self._sent, key=lambda each: each[:2])
        frontiers = [self._first(shard) for shard in range(self.shards)]
        parts, cuts = [*frontiers], [ShardCut(0, START_MS)] * self.shards
        for now_ms, shard in product(range(START_MS, self.end_ms, STEP_MS), range(self.shards)):
            if (now_ms - START_MS) // STEP_MS % (1 + shard):
                continue
            while waiting and waiting[0][0] <= now_ms:
                self._append(waiting.pop(0)[2])
            offsets = tuple(
                state.next_offset if shard_of(p, self.shards) == shard else 0
                for p, state in enumerate(self._states)
            )
            while waiting and waiting[0][0] <= now_ms + UNDER_WAY_MS:
                self._append(waiting.pop(0)[2])
            frontiers[shard] = self._step(frontiers[shard], offsets, now_ms)
            if now_ms <= self.cut_ms - shard * CUT_APART_MS:
                parts[shard] = frontiers[shard]
                cuts[shard] = ShardCut(self._logs["frontier"][shard][-1].offset, now_ms)
        ends = tuple(state.next_offset for state in self._states)
        bounds = bounds_at(self.settings, joint_frontier(parts), *cuts[0], ends, TARGETS)
        bounds = replace(bounds, cuts=tuple(cuts))
        targets = [each for topic in TARGETS for each in self._all(topic)]
        receipts, dead = self._all("receipts"), self._all("dead")
        return History(self._all("buffer"), targets, receipts, dead, self._all("frontier"), bounds)

    def _first(self, shard: int) -> Frontier:
        first = first_of_shard(shard, self.shards, PARTITIONS, self.settings.lanes)
        return replace(first, term=1 + shard, step=1)

    def _all(self, name: str) -> list[Written]:
        return [each for _, log in sorted(self._logs[name].items()) for each in log]

    def _write(self, topic: str, at_ms: int, *content: Any, partition: int | None = None) -> None:
        """Write a record (key, value, headers) to a target, or to delayd's topic of this role."""
        key, value, headers = content
        if partition is None:
            count = TARGETS.get(topic, PARTITIONS)
            self._turns += key is None
            partition = self._turns % count if key is None else partition_of(key, count)
        log = self._logs[topic][partition]
        role = "target" if topic in TARGETS else topic
        name = topic if topic in TARGETS else getattr(self.settings, role).name
        offset = _next_offset(log)
        log.append(Written(role, name, partition, offset, at_ms, key, value, [*headers]))

    # --- Ingest

    def _append(self, written: Written) -> None:
        """A record reaches the buffer, and is ingested."""
        partition, log = written.partition, self._logs["buffer"][written.partition]
        written.offset = _next_offset(log)
        log.append(written)
        offset, append_ms = written.offset, written.timestamp_ms
        record = Record(
            partition, offset, -1, append_ms, written.key, written.value, written.headers
        )
        request = wire.parse(record, replace(LIMITS, shards=self.shards, full=self._full))
        state = self._states[partition]
        order: Order | QuotaOrder | Gate | None = None
        if not isinstance(request, Reject):
            order = request.order or request.quota
        if not isinstance(request, Reject) and request.gate is not None:
            self._full = full_after(self._full, partition, request.gate)
            order = request.gate
        if isinstance(request, Reject) or order is not None:
            asked = Asked(rules.Op.REJECT if order is None else rules.Op.SWITCH, 0)
            self._states[partition] = ingest(
                state,
                partition,
                offset,
                append_ms,
                asked,
                Known(),
                self.id_memory_ms,
                trail_ms_of(self.settings, self.settings.rules_version),
            ).state
        if isinstance(request, Reject):
            told = wire.reject_receipt(request, source=wire.source_of(partition, offset))
            self._answers.append((partition, offset, (wire.reject_body(record, request), told)))
        elif isinstance(order, (Order, QuotaOrder)):
            self._answers.append((partition, offset, (order, None)))
        elif order is not None:
            pass  # a gate
        else:
            if request.topic is not None and request.op is not Op.CONTINUE:
                self._asked.append((request.topic, append_ms // 1000))
            self._ingest(record, request)
        written.log_ms = self._states[partition].as_of_ms(append_ms)

    def _ingest(self, record: Record, request: Request) -> None:
        partition, offset = record.partition, record.offset
        lane = 0 if request.topic is None else lane_of(request.topic, self.settings.lanes)
        continued = None
        if request.continues is not None:
            continued = self._wheel[partition, request.continues[1]]
        asked = asked_of(request, self.settings.lanes)
        if request.continues is not None:
            due_ms, at = request.continues
            origin = wire.offset_of(request.origin)
            asked = asked._replace(continued_offset=at, origin=origin, continued_due_ms=due_ms)
        known = Known(
            NOTHING if request.id is None else self._ids[partition, request.id],
            NOTHING if request.redrive is None else self._redriven[partition, request.redrive],
            None if continued is None else continued.killed_by,
        )
        decision = ingest(
            *(self._states[partition], partition, offset, record.append_ms),
            *(
                asked,
                known,
                self.id_memory_ms,
                trail_ms_of(self.settings, self.settings.rules_version),
            ),
        )
        self._states[partition] = decision.state
        if request.op is Op.DEBOUNCE and decision.rank is not None:
            request = request._replace(asked_due_ms=decision.rank.due_ms)
        if continued is not None and decision.is_refused:
            continued.is_refused = True
        if continued is not None and (decision.is_held or decision.is_escaped):
            continued.went_on = offset
        for killed in decision.killed:
            if self._wheel[partition, killed.offset].killed_by is None:
                self._wheel[partition, killed.offset].killed_by = offset
        if decision.id is not None and request.id is not None:
            self._ids[partition, request.id] = decision.id
        if decision.redriven is not None and request.redrive is not None:
            self._redriven[partition, request.redrive] = decision.redriven
        if decision.rank is not None:
            self._wheel[partition, offset] = _Stored(decision.rank, lane, request)
            if decision.is_held:
                self._wheel[partition, offset].killed_by = -1
        self._note_answer(record, request, decision, known.id)

    def _note_answer(
        self, record: Record, request: Request, decision: rules.Decision, before: IdState
    ) -> None:
        partition, offset = record.partition, record.offset
        is_all = self.receipts_written == RECEIPTS_ALL and request.id is not None
        is_told = (is_all or request.is_told) and request.op is Op.SCHEDULE
        is_debounce = request.op is Op.DEBOUNCE
        wants_all = is_all or request.is_told
        if decision.reply is PendingReply.CANCEL_MARKER or (is_debounce and wants_all):
            mark = CancelMarker(
                *(request.op in (Op.REPLACE, Op.DEBOUNCE), partition, offset),
                decision.state.as_of_ms(record.append_ms),
                *(decision.killed, before.killed, decision.repeats),
                is_debounce=is_debounce,
            )
            if request.op in (Op.RESCHEDULE, Op.FIRE):
                mark = mark._replace(move=Move(request.op is Op.FIRE, decision.dues_ms))
            self._answers.append((partition, offset, (mark, request)))
            return
        if decision.reply is PendingReply.NONE and not is_told:
            return
        if decision.reply in (PendingReply.UNMOVABLE, PendingReply.TOO_FAR):
            reject = unmoved_of(request, decision.reply, self.settings.max_delay_ms)
            told = wire.reject_receipt(reject, source=wire.source_of(partition, offset))
            self._answers.append((partition, offset, (wire.reject_body(record, reject), told)))
            return
        verdict = REFUSED.get(decision.reply, Verdict.SCHEDULED)
        is_conflict = verdict is Verdict.CONFLICT
        dead = wire.conflict_body(record, "taken") if is_conflict else None
        told = wire.receipt(
            id=request.id or request.redrive or wire.source_of(partition, offset),
            verdict=verdict,
            op=request.op,
            source=wire.source_of(partition, offset),
            due_ms=request.asked_due_ms,
        )
        self._answers.append((partition, offset, (dead, told)))

    # --- Steps

    def _step(self, before: Frontier, offsets: tuple[int, ...], now_ms: int) -> Frontier:
        shard, smoothing = before.shard, self._smoothings[before.shard]
        taken_ms = self.takeovers.get(shard)
        is_taken = taken_ms is not None and now_ms >= START_MS + taken_ms
        stopped = smoothing.stopped_lanes(len(before.cursors), now_ms)
        after = replace(
            before,
            cursors=tuple(
                cursor if lane in stopped else passed_by(now_ms)
                for lane, cursor in enumerate(before.cursors)
            ),
            offsets=offsets,
            term=self._first(shard).term + is_taken,
            step=before.step + 1,
        )
        counts: dict[str, int] = defaultdict(int)
        digest = 0
        # Of partitions of other shards it passes nothing.
        passed = [each for each in self._answers if each[1] < offsets[each[0]]]
        self._answers = [each for each in self._answers if each[1] >= offsets[each[0]]]
        orders = [each for each in passed if isinstance(each[2][0], (Order, QuotaOrder))]
        passed = [each for each in passed if each not in orders]
        quotas = self._quotas_of[shard]
        pending, taken = self._pending(after, quotas.topics), self._taken(now_ms, quotas.rated)
        gates = quotas.count(pending, taken, now_ms)
        for _, offset, (order, _) in orders:
            if isinstance(order, Order):
                smoothing.obey(order, offset, now_ms)
            else:
                gates += quotas.obey(order, offset, now_ms)
        smoothing.begin_step(after, now_ms)
        # Marks are judged by what the steps before have done.
        last = _last_marks(passed)
        judged = [self._judged(answer, before, now_ms, last) for _, _, answer in passed]
        due = [
            stored
            for stored in self._wheel.values()
            if after.covers(stored.lane, stored.rank)
            and not before.covers(stored.lane, stored.rank)
        ]
        for stored in sorted(due, key=lambda each: each.rank):
            marked = stored.killed_by
            is_killed = marked is not None and marked < offsets[stored.rank.partition]
            cursor_ms = before.cursors[stored.lane].due_ms
            fate = "killed" if is_killed else self._come_to(stored, now_ms, cursor_ms)
            counts[fate] += 1
            if fate == "delivered":
                digest += crc32(wire.source_of(*stored.rank[1:]).encode())
        for (partition, offset, _), (dead, told) in zip(passed, judged, strict=True):
            if dead is not None:
                letter = wire.dead_letter(dead, source=wire.source_of(partition, offset))
                self._write("dead", now_ms + 2, *letter)
            if told is not None:
                self._write("receipts", now_ms + 2, *wire.receipt_record(told, at_ms=now_ms))
        for gate in gates:
            for partition in range(shard, PARTITIONS, self.shards):
                self._write_own(partition, gate_record(partition, gate, LIMITS), now_ms)
        own_writes = (
            last if after.owns(partition) else -1 for partition, last in enumerate(self._own_writes)
        )
        after = replace(after, own_writes=tuple(own_writes))
        record = FrontierRecord(
            frontier=after,
            owner=f"node-{1 + shard + self.shards * is_taken}/n",
            now_ms=now_ms,
            counts=StepCounts(**counts, answers=len(passed)),
            digest=digest,
            settings=self.settings,
            smoothing=smoothing.queues(after, now_ms),
            holds=smoothing.holds(now_ms),
            quotas=quotas.after(),
        )
        key, value = record_key(shard), encode(record)
        self._write("frontier", now_ms + 3, key, value, [], partition=shard)
        self._stands[shard] = after
        return after

    def _pending(self, after: Frontier, topics: Iterable[str]) -> dict[str, int]:
        """What a master counts: what is stored and not killed, in seconds that some shard has not
        passed."""
        parts = [self._stands.get(n, self._first(n)) for n in range(self.shards)]
        cursors = lowest_cursors(after, joint_frontier(parts))
        return {
            topic: sum(
                each.request.topic == topic
                and each.killed_by is None
                and each.rank.due_ms // 1000 >= cursors[each.lane].due_ms // 1000
                for each in self._wheel.values()
            )
            for topic in topics
        }

    def _taken(self, now_ms: int, topics: Iterable[str]) -> dict[str, int]:
        """What a master counts: what was appended in ten seconds, the last one that of the step,
        and in the next one."""
        first = now_ms // 1000 - 9
        asked = [topic for topic, second in self._asked if first <= second < first + 11]
        return {topic: asked.count(topic) for topic in topics}

    def _judged(
        self, answer: Any, before: Frontier, now_ms: int, last: dict[tuple[int, str], int]
    ) -> tuple[Any, Any]:
        mark, request = answer
        if not _is_mark(answer):
            return mark, request
        members = [*mark.killed, *mark.killed_before]
        stored = {killed.offset: self._wheel[mark.partition, killed.offset] for killed in members}
        refused = {offset for offset, each in stored.items() if each.is_refused}
        escaped = {offset for offset, each in stored.items() if each.went_on is not None} - refused
        settled = self._settled.get((mark.partition, request.id))
        judgement = judge(mark, before, refused, self.id_memory_ms, settled, escaped)
        if mark.move is not None:
            is_last = last[mark.partition, request.id] == mark.offset
            for killed, (_, due_ms) in zip(mark.killed, mark.move.dues_ms, strict=True):
                if killed in judgement.killed and is_last:
                    self._move(mark, killed.offset, due_ms, now_ms)
        if (settlement := judgement.settlement(mark, now_ms)) is not None:
            if not settlement.names_nothing:
                self._settled[mark.partition, request.id] = settlement
            self._settle(mark.partition, request.id, settlement, now_ms)
        due_ms = request.asked_due_ms if mark.is_replace else None
        return None, receipt_of(Judged(mark, request.id, due_ms, judgement))

    def _move(self, mark: CancelMarker, offset: int, due_ms: int, now_ms: int) -> None:
        """Write what a reschedule moves, unless a later marker has refused to go on with it."""
        stored = self._wheel[mark.partition, offset]
        while stored.is_refused:
            if stored.went_on is None:
                return
            stored = self._wheel[mark.partition, stored.went_on]
        again = wire.continuation(
            wire.moved_body(wire.message_body(stored.request), due_ms),
            partition=mark.partition,
            offset=stored.rank.offset,
            rank_due_ms=stored.rank.due_ms,
            next_due_ms=due_ms,
            limits=LIMITS,
            is_retry=False,
            moved_by=mark.offset,
        )
        self._write_own(mark.partition, again, now_ms)

    def _come_to(self, stored: _Stored, now_ms: int, cursor_ms: int) -> str:
        """Deliver a message, unless its series is not so far; write what follows it."""
        series, (due_ms, partition, offset) = stored.request.series, stored.rank
        local = stored.request.local
        if series is None and local is None:
            return self._deliver(stored, now_ms, cursor_ms)
        body = wire.message_body(stored.request)
        frame: Any = SimpleNamespace(body=body, due_ms=due_ms, partition=partition, offset=offset)
        origin = wire.origin_of(body, partition, offset)
        step: SeriesStep | LocalStep = LocalStep(LIMITS, now_ms)
        if series is not None:
            step = SeriesStep(LIMITS, now_ms, ManualClock(now_ms))
        if step.problem_of(frame) is not None:
            source = wire.source_of(partition, offset)
            self._die(body, source, origin, Reason.NO_OCCURRENCE, now_ms)
            return "dead"
        again = step.in_place_of(frame)
        if again is not None:
            self._write_own(partition, again, now_ms)
            return "retried"
        fate = self._deliver(stored, now_ms, cursor_ms)
        if series is None or not isinstance(step, SeriesStep) or fate == "retried":
            return fate
        if series.goes_on:
            step.follow(frame, series)
            step.hand_over(lambda record: self._write_own(partition, record, now_ms))
        else:
            self._tell(body, origin, Verdict.ENDED, now_ms)
        return fate

    def _deliver(self, stored: _Stored, now_ms: int, cursor_ms: int) -> str:
        partition, offset = stored.rank.partition, stored.rank.offset
        source, body = wire.source_of(partition, offset), wire.message_body(stored.request)
        topic, target_partition, *content = wire.delivered(body, fired_ms=now_ms, source=source)
        origin = wire.origin_of(body, partition, offset)
        until_ms = wire.worth_until_ms_of(body, partition, offset)
        if until_ms is not None and now_ms > until_ms:
            self._die(body, source, origin, Reason.EXPIRED, now_ms)
            return "dead"
        smoothing = self._smoothings[shard_of(partition, self.shards)]
        if smoothing.limits(topic):
            turn = stored.request.turn
            deferral = smoothing.decide(
                *(topic, stored.rank.due_ms, partition, turn and turn.turn_ms),
                cursor_ms=cursor_ms,
                now_ms=now_ms,
            )
            if deferral is not None:
                assert deferral.turn_ms is not None, "no queue is so long"
                since_ms = turn.since_ms if turn else stored.rank.due_ms
                given = Turn(deferral.turn_ms, since_ms)
                return self._requeued(stored, deferral.due_ms, now_ms, given)
        if topic in TARGETS and (topic != "late" or now_ms >= self.late_exists_ms):
            self._write(topic, now_ms + 2, *content, partition=target_partition)
            if self.receipts_written == RECEIPTS_ALL or stored.request.is_told:
                self._tell(body, origin, Verdict.DELIVERED, now_ms)
            return "delivered"
        attempts = wire.attempt_of(body) + 1
        if attempts > len(RETRY_DELAYS_MS):
            self._die(body, source, origin, Reason.DEAD, now_ms)
            return "dead"
        next_due_ms = now_ms + RETRY_DELAYS_MS[attempts - 1]
        if until_ms is not None:
            next_due_ms = min(next_due_ms, until_ms + 1)
        return self._requeued(stored, next_due_ms, now_ms)

    def _die(self, body: Any, source: str, origin: str, reason: Reason, now_ms: int) -> None:
        attempts = wire.attempt_of(body) + (reason is Reason.DEAD)
        dead = wire.dead_body(body, reason=reason, detail="x", origin=origin, attempts=attempts)
        self._write("dead", now_ms + 2, *wire.dead_letter(dead, source=source))
        is_over = reason is Reason.NO_OCCURRENCE
        self._tell(body, origin, Verdict.DEAD if is_over else Verdict(reason.slug), now_ms)

    def _requeued(self, stored: _Stored, due_ms: int, now_ms: int, turn: Turn | None = None) -> str:
        partition = stored.rank.partition
        again = wire.continuation(
            wire.message_body(stored.request),
            partition=partition,
            offset=stored.rank.offset,
            rank_due_ms=stored.rank.due_ms,
            next_due_ms=due_ms,
            limits=LIMITS,
            is_retry=turn is None,
            turn=turn,
        )
        self._write_own(partition, again, now_ms)
        return "retried"

    def _write_own(self, partition: int, again: wire.BufferRecord, now_ms: int) -> None:
        name, at_ms = self.settings.buffer.name, now_ms + UNDER_WAY_MS
        written = Written(
            "buffer", name, partition, -1, at_ms, again.key, again.value, again.headers
        )
        self._append(written)
        self._own_writes[partition] = max(self._own_writes[partition], written.offset)

    def _settle(self, partition: int, id: str, settlement: Settlement, now_ms: int) -> None:
        for each in wire.settlement_records(partition, [(id, settlement)], LIMITS):
            name, at_ms = self.settings.buffer.name, now_ms + UNDER_WAY_MS
            fields = (each.key, each.value, each.headers)
            written = Written("buffer", name, partition, -1, at_ms, *fields)
            self._append(written)
            self._own_writes[partition] = max(self._own_writes[partition], written.offset)

    def _tell(self, body: Any, source: str, verdict: Verdict, now_ms: int) -> None:
        id = wire.id_of(body) or (source if wire.wishes_of(body).is_told else None)
        if id is not None:
            due_ms = wire.asked_due_of(body)
            told = wire.receipt(
                id=id, verdict=verdict, op=Op.SCHEDULE, source=source, due_ms=due_ms
            )
            self._write("receipts", now_ms + 2, *wire.receipt_record(told, at_ms=now_ms))
