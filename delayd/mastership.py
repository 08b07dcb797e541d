"""A mastership: takeover, and then step after step, under one grant of leadership.

The order of a takeover is the protocol's (docs/design/frontier.md, "Takeover"):

1. `init_transactions()`: every predecessor is fenced, what it left open is aborted;
2. read the last committed frontier; its partition's last stable offset must equal its high
   watermark, because nobody else can have a transaction open there;
3. wait until the own wheel has reached O;
4. the first step writes the next term and moves nothing; its delivery report gives B.

Any producer error or time-out ends the mastership. What became of its last transaction is not
guessed: the next one reads it from the frontier.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from delayd.bus import Ack, Bus, TransactionalProducer
from delayd.clock import Clock
from delayd.errors import DelaydError, FrontierError, NotInitialisedError, ProducerError
from delayd.frontier_log import FrontierLog, SeenFrontier
from delayd.pace import Pace
from delayd.replica import Replica, StepContent
from delayd.step import FLUSH_TIMEOUT_MS, Fate, StepWriter
from delayd.suspects import Suspects
from delayd.targets import Targets
from delayd.topics import transactional_id
from replication.agenda import Plan
from replication.frontier import Frontier, begin_term, stand_still
from replication.now import BrokerBound, bounded_now_ms, drift_ms
from replication.rank import lane_of
from replication.record import FrontierRecord, StepCounts, encode, record_key

log = structlog.get_logger()

INIT_TIMEOUT_MS = 10_000
COMMIT_TIMEOUT_MS = 5_000
READ_TIMEOUT_MS = 5_000
STABLE_TIMEOUT_MS = 5_000
"""How long the frontier's last stable offset may stay behind its high watermark."""

WAIT_MAX_MS = 250
"""Longest wait without a sign of life."""

HELD_WAIT_MS = 5
"""How soon a step looks again at what is due but held back."""

GIVE_WAY_MS = 10_000
"""A master that has committed nothing for so long lets another node try."""

WATCH_INTERVAL_MS = 1_000
"""How often a master looks for a later term, which also keeps its reader near the end, and for
targets that are well again."""


class ClockDriftError(DelaydError):
    """The broker's clock and this node's are too far apart to deliver by."""

    code = "clock-drift"


class HigherTermError(DelaydError):
    """Another master has begun a later term."""

    code = "higher-term"


class BehindError(DelaydError):
    """This node has not ingested what the frontier took into account, and lets others try."""

    code = "behind"


class Grant:
    """Leadership as the delivery thread sees it; the control loop extends or withdraws it."""

    def __init__(self, owner: str, deadline_ms: int) -> None:
        self.owner = owner
        self.deadline_ms = deadline_ms
        """Monotonic time past which the master stops by itself."""
        self.withdrawn = False

    def is_valid(self, monotonic_ms: int) -> bool:
        """May the master begin another step?"""
        return not self.withdrawn and self.is_live(monotonic_ms)

    def is_live(self, monotonic_ms: int) -> bool:
        """May the master finish the step that it is in?"""
        return monotonic_ms < self.deadline_ms


class Mastership:
    """One attempt at being master. Made, run and closed by the delivery thread."""

    def __init__(
        self,
        bus: Bus,
        replica: Replica,
        frontier_log: FrontierLog,
        targets: Targets,
        suspects: Suspects,
        clock: Clock,
        grant: Grant,
        pace: Pace,
        on_progress: Callable[[], None],
        *,
        idle_interval_ms: int,
        clock_drift_max_ms: int,
    ) -> None:
        self._replica = replica
        self._settings = replica.settings
        self._log = frontier_log
        self._targets = targets
        self._suspects = suspects
        self._clock = clock
        self._grant = grant
        self._pace = pace
        self._idle_interval_ms = idle_interval_ms
        self._clock_drift_max_ms = clock_drift_max_ms
        self.on_progress = on_progress
        """Called at every turn of the loop."""
        self._producer: TransactionalProducer = bus.transactional_producer(
            transactional_id(replica.settings.cluster, 0)
        )
        self._bound = BrokerBound(0, 0)
        self._last_step_ms = 0
        self.has_stepped = False
        """Has a step been committed, beside the one that begins the term?"""
        self.has_learnt = False
        """Did the failure that ended it say what to send less of, so that the next one differs?"""
        self._watched_ms = 0
        self._ack: Ack | None = None
        self._ack_monotonic_ms = 0
        self.term = 0
        self.delivered_count = 0
        self.is_delivering = False

    def run(self) -> None:
        """Take over, then deliver until the grant ends; raises what ended it otherwise."""
        if self.take_over():
            while self.advance():
                pass

    def advance(self) -> bool:
        """One step, or one wait for something to do; False if the grant has ended."""
        if not self._is_valid():
            return False
        self.on_progress()
        self._watch()
        self._step()
        return True

    def close(self) -> None:
        """Discard the producer and the agenda."""
        self.is_delivering = False
        self._producer.close()
        self._replica.close_agenda()

    def _is_valid(self) -> bool:
        return self._grant.is_valid(self._clock.monotonic_ms())

    def take_over(self) -> bool:
        """Steps 1 to 4 at the top of this file; False if the grant ended on the way."""
        started_ms = self._clock.monotonic_ms()
        known = self._replica.newest
        # A node that is behind fences nobody.
        if known is not None and not self._reach(known.record.frontier):
            return False
        if not self._is_valid():
            return False
        self._producer.init_transactions(INIT_TIMEOUT_MS)
        self.on_progress()
        seen = self._last_frontier()
        if not self._reach(seen.record.frontier):
            return False
        self._replica.open_agenda(seen.record.frontier)
        self._write_term(seen)
        self.is_delivering = True
        log.info(
            "mastership_begun",
            term=self.term,
            takeover_ms=self._clock.monotonic_ms() - started_ms,
            cursor_ms=seen.record.frontier.lowest_cursor.due_ms,
        )
        return True

    def _reach(self, frontier: Frontier) -> bool:
        """Wait until the own wheel has reached O; False if the grant ended meanwhile."""
        started_ms = self._clock.monotonic_ms()
        while not self._replica.wait_ingested(frontier, WAIT_MAX_MS):
            self.on_progress()
            if not self._is_valid():
                return False
            if self._clock.monotonic_ms() - started_ms > GIVE_WAY_MS:
                raise BehindError(
                    "the wheel has not reached the frontier's offsets: another node may try"
                )
        return True

    def _last_frontier(self) -> SeenFrontier:
        """The last committed frontier, now that nobody else can write one."""
        deadline_ms = self._clock.monotonic_ms() + STABLE_TIMEOUT_MS
        while True:
            stable = self._log.stable_end(READ_TIMEOUT_MS)
            written = self._log.high_watermark(READ_TIMEOUT_MS)
            if stable == written:
                break
            if self._clock.monotonic_ms() > deadline_ms:
                raise FrontierError(
                    f"{self._settings.frontier.name}: the last stable offset {stable} stays behind "
                    f"the high watermark {written}, though no transaction can be open there: a "
                    "commit marker was lost",
                    remedy="see docs/operations.md, 'A lost commit marker'; delivering now could "
                    "double messages",
                )
            self.on_progress()
        self._log.catch_up(stable, READ_TIMEOUT_MS)
        seen = self._log.newest
        if seen is None:
            raise NotInitialisedError(
                f"{self._settings.frontier.name} holds no frontier record",
                remedy="run `delayd topics create` if the cluster is new; otherwise see "
                "docs/operations.md",
            )
        self._replica.observe(seen)
        return seen

    def _write_term(self, seen: SeenFrontier) -> None:
        """The first step: the next term, and nothing else."""
        frontier = begin_term(seen.record.frontier)
        self.term = frontier.term
        self._write_bare(frontier, seen.record.now_ms)

    def _write_bare(self, frontier: Frontier, now_ms: int) -> None:
        """A step that delivers nothing and moves no bound."""
        plan = Plan(
            before=self._replica.planned_frontier,
            frontier=frontier,
            deliveries=(),
            answers=(),
            late=0,
            now_ms=now_ms,
            taken={},
            passed_over=(),
        )
        with self._replica.changed:
            self._replica.begin(plan)
        self._carry_out(plan, StepContent([], 0, [], [], []), self._writer(plan))

    def _step(self) -> None:
        """Wait until something is due, then deliver it."""
        monotonic_ms = self._clock.monotonic_ms()
        now_ms = bounded_now_ms(self._clock.wall_ms(), monotonic_ms, self._bound)
        if self._bound.is_stale(monotonic_ms):
            self._write_bare(stand_still(self._replica.planned_frontier), now_ms)
            return
        idle_ms = monotonic_ms - self._last_step_ms
        with self._replica.changed:
            lanes_max = self._lane_limits(monotonic_ms)
            plan = self._replica.plan(now_ms, replace(self._pace.limits, lanes_max=lanes_max))
            if plan.is_empty and idle_ms < self._idle_interval_ms:
                due_ms = self._replica.next_due_ms(now_ms)
                # What is due and yet not in the plan waits for the ingest thread, which notifies.
                until_due_ms = WAIT_MAX_MS if due_ms is None else due_ms - now_ms
                wait_ms = min(
                    WAIT_MAX_MS,
                    self._idle_interval_ms - idle_ms,
                    until_due_ms if until_due_ms > 0 else HELD_WAIT_MS,
                )
                self._replica.changed.wait(wait_ms / 1000)
                return
            content = self._replica.begin(plan)
        begun_ms = self._clock.monotonic_ms()
        writer = self._writer(plan)
        try:
            self._targets.look_up(frame.body[0] for frame in content.messages)
            self._carry_out(plan, content, writer)
        except DelaydError as error:
            if isinstance(error, ProducerError):
                self._suspects.note_failed(writer.tried)
                self._note_refusals(error, writer)
            if not self.has_learnt:
                self._pace.failed()
            raise
        self.has_stepped = True
        self._suspects.note_committed(self._clock.monotonic_ms(), writer.sent)
        for topic, (problem, count) in writer.turned_away.items():
            self._targets.turned_away(topic, problem, count)
        self._pace.succeeded(self._clock.monotonic_ms() - begun_ms, len(content.messages))

    def _lane_limits(self, now_ms: int) -> dict[int, int]:
        """By lane how many records a step may take, for those that must not take all."""
        limits = dict(self._suspects.lane_limits(now_ms))
        for topic, records in self._targets.record_limits.items():
            lane = lane_of(topic, self._settings.lanes)
            limits[lane] = min(records, limits.get(lane, records))
        return limits

    def _writer(self, plan: Plan) -> StepWriter:
        return StepWriter(
            self._producer,
            self._settings,
            self._replica.limits,
            self._targets,
            self._suspects,
            self._clock,
            self.on_progress,
            now_ms=plan.now_ms,
            own_writes=plan.frontier.own_writes,
        )

    def _note_refusals(self, error: ProducerError, writer: StepWriter) -> None:
        """Brokers refused what the checks had let pass: send less there, or no more."""
        refusals = {topic: code for topic, code in error.refusals.items() if topic in writer.sent}
        if refusals:
            now_ms = self._clock.monotonic_ms()
            self._suspects.note_refused(now_ms, refusals, str(error), writer.sent)
            self.has_learnt = True

    def _watch(self) -> None:
        """Read the frontier topic as it grows; HigherTermError if another master writes there.

        And ask now and then for targets that fail.
        """
        monotonic_ms = self._clock.monotonic_ms()
        if monotonic_ms - self._watched_ms < WATCH_INTERVAL_MS:
            return
        self._watched_ms = monotonic_ms
        self._targets.look_up(())  # Failing ones may be well again, though no message asks.
        for seen in self._log.poll(0):
            if seen.record.frontier.term > self.term:
                raise HigherTermError(
                    f"{seen.record.owner} has begun term {seen.record.frontier.term}, this "
                    f"master's is {self.term}"
                )

    def _carry_out(self, plan: Plan, content: StepContent, writer: StepWriter) -> None:
        """One transaction: deliveries, answers, retries, the frontier; then it is committed."""
        producer = self._producer
        producer.begin()
        writer.write(content)
        fates = writer.fates
        frontier = plan.frontier
        if writer.own_writes != frontier.own_writes:
            frontier = replace(frontier, own_writes=writer.own_writes)
            self._replica.wrote(frontier.own_writes)
        record = FrontierRecord(
            frontier=frontier,
            owner=self._grant.owner,
            now_ms=plan.now_ms,
            counts=StepCounts(
                delivered=fates[Fate.DELIVERED],
                late=plan.late,
                killed=content.killed_count,
                retried=fates[Fate.RETRIED] + fates[Fate.DEFERRED],
                dead=fates[Fate.DEAD],
                answers=len(content.answers) + len(content.judged),
            ),
            digest=writer.digest,
            settings=self._settings,
        )
        self._ack = None
        sent_wall_ms = self._clock.wall_ms()
        producer.send(
            self._settings.frontier.name,
            key=record_key(frontier.shard),
            value=encode(record),
            headers=[],
            partition=frontier.shard,
            on_ack=self._on_frontier_ack,
        )
        producer.flush(FLUSH_TIMEOUT_MS)
        ack = self._ack
        if ack is None:
            raise ProducerError("the frontier record was flushed without a delivery report")
        self._check_clock(ack, sent_wall_ms)
        if not self._grant.is_live(self._clock.monotonic_ms()):
            raise ProducerError("the lease ran out before the commit")
        producer.commit(COMMIT_TIMEOUT_MS)
        self._bound = BrokerBound(ack.append_ms, self._ack_monotonic_ms)
        self._last_step_ms = self._clock.monotonic_ms()
        self.delivered_count += fates[Fate.DELIVERED]
        self._replica.observe(SeenFrontier(record, ack.offset, ack.append_ms))

    def _on_frontier_ack(self, ack: Ack) -> None:
        self._ack = ack
        self._ack_monotonic_ms = self._clock.monotonic_ms()

    def _check_clock(self, ack: Ack, sent_wall_ms: int) -> None:
        drift = drift_ms(ack.append_ms, sent_wall_ms, self._clock.wall_ms())
        if abs(drift) > self._clock_drift_max_ms:
            raise ClockDriftError(
                f"the broker's clock is {drift} ms from this node's, more than clock_drift_max_ms "
                f"= {self._clock_drift_max_ms}",
                remedy="synchronise the clocks of this node and the brokers (NTP)",
            )
