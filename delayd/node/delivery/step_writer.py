"""One step's records, written into the transaction that makes them true.

A message whose target is known to refuse it is not sent there: it is requeued for a later retry, or
dead-lettered after the last one. A message whose target has used up its rate is requeued to its
turn (`replication.smoothing`). All records of a step (deliveries, retries, dead letters, receipts)
are written here, except the frontier record, which comes last (`delayd.node.delivery.mastership`).

Not here: what a step holds (`replication.delivery_queue`), commit, abort, what failures teach.
Source: docs/design/frontier.md, "Step" and "Targets".
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from zlib import crc32

from delayd.bus import Ack, Producer
from delayd.node.delivery.chunks import Chunks
from delayd.node.delivery.commits import FLUSH_TIMEOUT_MS
from delayd.node.delivery.delivery_context import DeliveryContext
from delayd.node.delivery.fast_step import FastTarget, Sources, write_fast
from delayd.node.delivery.fates import REQUEUED, Fate
from delayd.node.delivery.flat_step import Run, send_run
from delayd.node.delivery.forecast import Forecasts
from delayd.node.delivery.local_step import LocalStep
from delayd.node.delivery.order_step import OrderStep
from delayd.node.delivery.planner import FlatPiece, Piece, StepContent
from delayd.node.delivery.rescheduling import moved_records
from delayd.node.delivery.series_step import SeriesStep, is_first_attempt
from delayd.node.replica.cancel_marks import Judged, receipt_of
from delayd.node.targets.failures import TurnedAway
from delayd.node.targets.quarantine import DEFER_MS, DEFER_MS_MAX
from delayd.request import (
    INTERNAL_MARGIN_BYTES,
    Body,
    BufferRecord,
    Forecast,
    Op,
    Reason,
    Series,
    Settled,
    Turn,
    Verdict,
    asked_due_of,
    attempt_of,
    continuation,
    dead_body,
    dead_letter,
    delivered,
    is_requeued,
    local_of,
    origin_of,
    reason_of,
    receipt,
    receipt_record,
    series_of,
    settlement_records,
    size_of,
    source_of,
    told_id_of,
    turn_of,
    verdict_of,
    wishes_of,
    worth_until_ms_of,
)
from delayd.wheel import Frame
from replication.delivery_queue import Plan
from replication.settings import AT_LEAST_ONCE, RECEIPTS_ALL


class StepWriter:
    """Writes one step; made for it, and thrown away with it. Used by one thread.

    What it has counted becomes true with the commit. Raises ProducerError when the producer does;
    the transaction is then lost, and so is this.
    """

    def __init__(
        self, context: DeliveryContext, producer: Producer, plan: Plan, orders: OrderStep
    ) -> None:
        self._producer = producer
        self._settings = context.replica.settings
        self._limits = context.replica.limits
        self._targets = context.targets
        self._targets.begin_step()
        self._quarantine = context.quarantine
        self._sparing = context.sparing
        self._sparing.turn(plan.now_ms)
        self._smoothing = orders.smoothing
        self._clock = context.clock
        self._flat_step = context.flat_step
        self._series = SeriesStep(self._limits, plan.now_ms, self._clock)
        self._forecasts = Forecasts(context, plan.now_ms)
        self._local = LocalStep(self._limits, plan.now_ms)
        self.now_ms = plan.now_ms
        self._cursors = plan.before.cursors
        self._chunks = Chunks(context.targets, producer, context.note_progress)
        self._after, self._ending = plan.frontier, frozenset[str]()
        self._kept_back: list[Frame] = []
        """What goes behind all else, because the pause of its topic ends with this step."""
        self.orders = orders
        self.tried: set[str] = set()
        """Unproven targets that records were sent to, as far as that is limited."""
        self.sent: dict[str, tuple[int, Sources]] = {}
        """By target: its lane, and the sources that were sent there, if any."""
        self.own_writes = list(plan.frontier.own_writes)
        """R: the last record in each partition of the buffer that was acknowledged to the shard."""
        self.fates: Counter[Fate] = Counter()
        self.message_count = 0
        """Messages that were due, without those that were deferred before they were read."""
        self.killed_count = 0
        self.moved_count = 0
        """Messages that were given another due time."""
        self.digest = 0
        """Of what was delivered: the sum of the CRC-32 of the sources."""
        self.turned_away: dict[str, TurnedAway] = {}
        """By target: what was not sent there, and why."""
        self.dues_ms: defaultdict[str, list[int]] = defaultdict(list)
        """By target: due times of what was sent there, without what the target had delayed."""
        self.smoothed_ms: defaultdict[str, list[int]] = defaultdict(list)
        """By target: when those were due at first that smoothing had deferred."""
        self.verdicts: Counter[str] = Counter()
        """Receipts."""
        self.letters: Counter[str] = Counter()
        """Dead letters, by reason."""

    @property
    def requeued_count(self) -> int:
        """Return how many messages were written back into the buffer."""
        return sum(self.fates[fate] for fate in REQUEUED)

    def write(self, content: StepContent) -> None:
        """Produce all of it; requeued messages are acknowledged when this returns."""
        self.orders.obey(content.replies)
        self._ending = self._smoothing.begin_step(self._after, self.now_ms)
        self.killed_count = content.deferred.killed_count
        for piece in content.pieces:
            if isinstance(piece, Piece):
                self._write_piece(piece)
                continue
            for part in self._flat_step.runs(piece, self.now_ms):
                if isinstance(part, Piece):
                    self._write_piece(part)
                else:
                    self._write_run(part, piece)
        self._ending = frozenset()
        for frame in self._kept_back:
            self._write_one(frame)
        for frame in content.deferred.messages:
            self.fates[self._defer(frame)] += 1
        for frame in content.replies:
            dead, told, *_ = frame.body
            if dead is not None:
                self._dead_letter(dead, source_of(frame.partition, frame.offset))
            if told is not None:
                self._receipt(told, self._forecasts.of(frame.body))
        for judged in content.judged:
            self._receipt(receipt_of(judged))
            for moved in moved_records(judged, self._limits):
                self.moved_count += 1
                self._write_own(moved)
        if self._series.followers and self._settings.guarantee == AT_LEAST_ONCE:
            self._producer.flush(FLUSH_TIMEOUT_MS)
        self._series.hand_over(self._write_own)
        gates = [*self.orders.gate_records()]
        for record in gates:
            self._write_own(record)
        own = self.requeued_count + len(self._series.followers) + self.moved_count + len(gates)
        if self._settle(content.judged) or own:
            # R is part of the frontier record, so it must be known before that is written.
            self._producer.flush(FLUSH_TIMEOUT_MS)

    def _write_piece(self, piece: Piece) -> None:
        messages, killed = piece
        self.message_count += len(messages)
        self.killed_count += killed
        lanes = {frame.body[0]: frame.lane for frame in messages}
        count, digest = write_fast(
            messages, self._looked_up(lanes), self.now_ms, self._producer, self._write_one
        )
        self.fates[Fate.DELIVERED] += count
        self.digest += digest

    def _write_run(self, run: Run, piece: FlatPiece) -> None:
        count, digest = send_run(
            run,
            self._looked_up(run.lanes),
            self._producer,
            lambda entries: self._write_piece(piece.read(entries)),
        )
        self.message_count += count
        self.fates[Fate.DELIVERED] += count
        self.digest += digest

    def _looked_up(self, lanes: Mapping[str, int]) -> dict[str, FastTarget]:
        """Look these targets up; return those that need not be asked about each message."""
        self._targets.look_up(lanes)
        for broker in self._sparing.hung_since_ms:
            for topic in lanes:
                led = self._targets.led_by(topic, (broker,))
                self._sparing.suspect(self.now_ms, broker, topic, led)
        return self._fast_targets(lanes)

    def _fast_targets(self, lanes: Mapping[str, int]) -> dict[str, FastTarget]:
        """Return those of these targets, with their lanes, that need not be asked about each
        message."""
        if self._settings.receipts_written == RECEIPTS_ALL or not self._quarantine.is_empty:
            return {}
        bytes_max = self._limits.record_bytes_max + INTERNAL_MARGIN_BYTES
        found: dict[str, FastTarget] = {}
        for topic, lane in lanes.items():
            if self._sparing.partitions_of(topic):
                continue
            partition_count = self._targets.partitions_for_all(topic, bytes_max)
            if partition_count is not None and not self._smoothing.limits(topic):
                sources = self.sent.setdefault(topic, (lane, Sources()))[1]
                found[topic] = FastTarget(partition_count, sources, self.dues_ms[topic])
        return found

    def _write_one(self, frame: Frame) -> None:
        """Write a message that the fast path leaves."""
        if self._ending and frame.body[0] in self._ending and turn_of(frame.body) is None:
            self._kept_back.append(frame)
            return
        source = source_of(frame.partition, frame.offset)
        series = series_of(frame.body)
        fate = None
        if series is not None:
            fate = self._come_to(frame, self._series, source)
        elif local_of(frame.body) is not None:
            fate = self._come_to(frame, self._local, source)
        if fate is None:
            fate = self._deliver(frame, source)
            if series is not None and fate in (Fate.DELIVERED, Fate.DEAD, Fate.EXPIRED):
                self._go_on(frame, series)
        self.fates[fate] += 1
        if fate is Fate.DELIVERED:
            self.digest += crc32(source.encode())

    def _come_to(self, frame: Frame, step: SeriesStep | LocalStep, source: str) -> Fate | None:
        """Write down when the message, or which occurrence, is due next; give it up if there is no
        such time. None if it is to be delivered."""
        if step.must_wait(frame):
            return self._defer(frame, DEFER_MS_MAX)
        if (problem := step.problem_of(frame)) is not None:
            dead = dead_body(
                frame.body,
                reason=Reason.NO_OCCURRENCE,
                detail=problem,
                origin=origin_of(frame.body, frame.partition, frame.offset),
                attempts=0,
            )
            self._dead_letter(dead, source)
            self._tell(frame, Verdict.DEAD, problem)
            return Fate.DEAD
        again = step.in_place_of(frame)
        if again is None:
            return None
        self._write_own(again)
        return Fate.RESOLVED

    def _go_on(self, frame: Frame, series: Series) -> None:
        """Write the next occurrence into the buffer, or say that this was the last one."""
        if series.goes_on:
            self._series.follow(frame, series)
        else:
            self._tell(frame, Verdict.ENDED, f"occurrence {series.occurrence} was the last one")

    def _deliver(self, frame: Frame, source: str) -> Fate:
        """Produce a message to its target; requeue it if the target would refuse it."""
        until_ms = worth_until_ms_of(frame.body, frame.partition, frame.offset)
        if until_ms is not None and self.now_ms > until_ms:
            return self._expire(frame, source, until_ms)
        if self._smoothing.is_held(frame.body[0], self.now_ms):
            assert self._wait(frame, frame.body[0], is_held=True), "it is paused, and all wait"
            return Fate.HELD
        topic, partition, key, value, headers = delivered(
            frame.body, fired_ms=self.now_ms, source=source
        )
        size_bytes = size_of(key, value, headers)
        if self._targets.is_unasked(topic):
            return self._defer(frame, DEFER_MS_MAX)
        problem = self._targets.problem_of(topic, partition, key, size_bytes)
        if problem is None:
            problem = self._quarantine.problem(self._clock.monotonic_ms(), topic, source)
        if problem is not None:
            self._note_turned_away(topic, frame, problem)
            return self._retry(frame, source, problem)
        defer_ms = self._quarantine.defer_ms(self._clock.monotonic_ms(), topic, self.tried)
        if defer_ms:
            return self._defer(frame, defer_ms)
        spared = self._sparing.partitions_of(topic)
        if spared:
            number = self._targets.spared_one(topic, partition, key, spared)
            if number is not None:
                is_back = is_requeued(frame.body) and not is_first_attempt(frame)
                wait_ms = self._sparing.defer_ms(self.now_ms, topic, number, is_back=is_back)
                return self._defer(frame, wait_ms)
        turn = None
        if self._smoothing.limits(topic):
            turn = turn_of(frame.body)
            if self._wait(frame, topic, is_held=False):
                return Fate.SMOOTHED
        if not self._chunks.make_room(topic, size_bytes):
            return self._defer(frame)
        partition = self._targets.partition_for(topic, partition, key, spared)
        self.sent.setdefault(topic, (frame.lane, Sources()))[1].names.append(source)
        if turn is not None:
            self.smoothed_ms[topic].append(turn.since_ms)
        elif not is_requeued(frame.body) or is_first_attempt(frame):
            self.dues_ms[topic].append(frame.due_ms)
        self._producer.send(topic, key=key, value=value, headers=headers, partition=partition)
        if self._settings.receipts_written == RECEIPTS_ALL or wishes_of(frame.body).is_told:
            self._tell(frame, Verdict.DELIVERED, "")
        return Fate.DELIVERED

    def _note_turned_away(self, topic: str, frame: Frame, problem: str) -> None:
        """Count a message once: at its first attempt, or if it was requeued before its target
        began to fail by this master's count."""
        _, messages, attempts = self.turned_away.get(topic, ("", 0, 0))
        tried = attempt_of(frame.body)
        is_new = tried == 0
        if not is_new:
            requeued_ms = frame.due_ms - self._settings.retry_delays_ms[tried - 1]
            since_ms = self._targets.failures.since_ms(topic)
            is_new = since_ms is None or requeued_ms < since_ms
        self.turned_away[topic] = TurnedAway(problem, messages + is_new, attempts + 1)

    def _retry(self, frame: Frame, source: str, problem: str) -> Fate:
        """Requeue a message that cannot be delivered, or dead-letter it after the last retry."""
        attempts = attempt_of(frame.body) + 1
        delays_ms = self._settings.retry_delays_ms
        if attempts > len(delays_ms):
            origin = origin_of(frame.body, frame.partition, frame.offset)
            dead = dead_body(
                frame.body, reason=Reason.DEAD, detail=problem, origin=origin, attempts=attempts
            )
            self._dead_letter(dead, source)
            self._tell(frame, Verdict.DEAD, problem)
            return Fate.DEAD
        next_ms = self._told_in_time(frame, self.now_ms + delays_ms[attempts - 1])
        self._requeue(frame, next_ms, is_retry=True)
        return Fate.RETRIED

    def _expire(self, frame: Frame, source: str, until_ms: int) -> Fate:
        """Dead-letter a message that is not worth delivering any more."""
        detail = f"it was worth delivering until {until_ms}, the step that came to it is of "
        detail += f"{self.now_ms}: {self.now_ms - until_ms} ms too late"
        dead = dead_body(
            frame.body,
            reason=Reason.EXPIRED,
            detail=detail,
            origin=origin_of(frame.body, frame.partition, frame.offset),
            attempts=attempt_of(frame.body),
        )
        self._dead_letter(dead, source)
        self._tell(frame, Verdict.EXPIRED, detail)
        return Fate.EXPIRED

    def _defer(self, frame: Frame, by_ms: int = DEFER_MS) -> Fate:
        """Requeue a message that could be delivered, so that others need not wait for it."""
        self._requeue(frame, self.now_ms + by_ms, is_retry=False)
        return Fate.DEFERRED

    def _wait(self, frame: Frame, topic: str, *, is_held: bool) -> bool:
        """Requeue a message to its turn; False if it may go out. From now on that makes it late."""
        turn = turn_of(frame.body)
        deferral = self._smoothing.decide(
            topic,
            frame.due_ms,
            frame.partition,
            None if turn is None else turn.turn_ms,
            cursor_ms=self._cursors[frame.lane].due_ms,
            now_ms=self.now_ms,
        )
        if deferral is None:
            return False
        since_ms = frame.due_ms if turn is None else turn.since_ms
        given = None if deferral.turn_ms is None else Turn(deferral.turn_ms, since_ms)
        next_ms = self._told_in_time(frame, deferral.due_ms) if is_held else deferral.due_ms
        self._requeue(frame, next_ms, is_retry=False, turn=given)
        return True

    def _told_in_time(self, frame: Frame, next_ms: int) -> int:
        """Return that time, or when it is too late for the message, if that comes first."""
        until_ms = worth_until_ms_of(frame.body, frame.partition, frame.offset)
        return next_ms if until_ms is None else min(next_ms, until_ms + 1)

    def _requeue(
        self, frame: Frame, next_due_ms: int, *, is_retry: bool, turn: Turn | None = None
    ) -> None:
        again = continuation(
            frame.body,
            partition=frame.partition,
            offset=frame.offset,
            rank_due_ms=frame.due_ms,
            next_due_ms=next_due_ms,
            limits=self._limits,
            is_retry=is_retry,
            turn=turn,
        )
        self._write_own(again)

    def _tell(self, frame: Frame, verdict: Verdict, detail: str) -> None:
        """Send the receipt of a message with an id, or that wants it, under the source of its
        user's own request."""
        if (id := told_id_of(frame.body, frame.partition, frame.offset)) is None:
            return
        told = receipt(
            id=id,
            verdict=verdict,
            op=Op.SCHEDULE,
            source=origin_of(frame.body, frame.partition, frame.offset),
            due_ms=asked_due_of(frame.body),
            detail=detail,
        )
        self._receipt(told)

    def _receipt(self, told: Body, forecast: Forecast | None = None) -> None:
        self.verdicts[verdict_of(told)] += 1
        key, value, headers = receipt_record(told, at_ms=self.now_ms, forecast=forecast)
        self._producer.send(self._settings.receipts.name, key=key, value=value, headers=headers)

    def _settle(self, judged: Sequence[Judged]) -> bool:
        """Write into the log what these cancel markers came to; return whether there was any."""
        settled: defaultdict[int, list[Settled]] = defaultdict(list)
        for marker, id, _, _, settlement, _ in judged:
            if settlement is not None:
                settled[marker.partition].append((id, settlement))
        for partition, of_partition in settled.items():
            for record in settlement_records(partition, of_partition, self._limits):
                self._write_own(record)
        return bool(settled)

    def _write_own(self, record: BufferRecord) -> None:
        self._producer.send(
            self._settings.buffer.name,
            key=record.key,
            value=record.value,
            headers=record.headers,
            partition=record.partition,
            on_ack=self._on_own_write,
        )

    def _on_own_write(self, ack: Ack) -> None:
        self.own_writes[ack.partition] = max(self.own_writes[ack.partition], ack.offset)

    def _dead_letter(self, body: Body, source: str) -> None:
        self.letters[reason_of(body)] += 1
        key, value, headers = dead_letter(body, source=source)
        self._producer.send(self._settings.dead.name, key=key, value=value, headers=headers)
