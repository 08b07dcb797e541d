"""A mastership: takeover, and then step after step, under one grant of leadership.

The first step after a takeover (`takeover_run.py`) writes the next term, and its delivery report
gives B.

Any producer error or time-out ends the mastership. What became of its last transaction is not
guessed: the next one reads it from the frontier.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import structlog

from delayd.cluster.frontier_log import SeenFrontier
from delayd.errors import DelaydError, ProducerError
from delayd.node.delivery.commits import StepCommit, Written
from delayd.node.delivery.commits.frontier_topic import READ_TIMEOUT_MS
from delayd.node.delivery.commits.transaction import TransactionCommit
from delayd.node.delivery.delivery_context import DeliveryContext
from delayd.node.delivery.fates import KILLED, Fate
from delayd.node.delivery.grant import Grant
from delayd.node.delivery.order_step import OrderStep
from delayd.node.delivery.planner import Planner, StepContent
from delayd.node.delivery.spans import TracedSends
from delayd.node.delivery.step_writer import StepWriter
from delayd.node.delivery.takeover_run import check_first, run_takeover
from delayd.node.replica.splitting import split_before
from replication.delivery_queue import Plan
from replication.frontier import Frontier, stand_still
from replication.now import MS_NS, BrokerBound, bounded_now_ms, drift_ms
from replication.pause import pause_ms
from replication.quotas import Gate, Quotas
from replication.rank import lane_of
from replication.record import FrontierRecord, StepCounts
from replication.resharding import Standstill
from replication.settings import AT_LEAST_ONCE, Settings
from replication.smoothing import Rate, Smoothing
from replication.takeover import BeginTerm, Takeover

log = structlog.get_logger()

WATCH_INTERVAL_MS = 1_000
"""How often a master looks for a later term, which also keeps its reader near the end, and for
targets that are well again."""


class ClockDriftError(DelaydError):
    """The broker's clock and this node's are too far apart to deliver by."""

    code = "clock-drift"


class HigherTermError(DelaydError):
    """Another master has begun a later term."""

    code = "higher-term"


class Mastership:
    """One attempt at being master. The delivery thread makes, runs and closes it."""

    def __init__(
        self, context: DeliveryContext, grant: Grant, commit: StepCommit | None = None
    ) -> None:
        """`commit`: how steps become true; as transactions if it is left out."""
        self._context = context
        self._options = context.options
        self._replica = context.replica
        self._settings = context.replica.settings
        self._written_settings = self._settings
        self._log = context.frontier_log
        self._targets = context.targets
        self._quarantine = context.quarantine
        self._sparing = context.sparing
        self._step_sizing = context.step_sizing
        self._counters = context.counters
        self._clock = context.clock
        self._grant = grant
        self._plans: Planner | None = None
        self._commit: StepCommit = commit or TransactionCommit(
            context.standby.take(), self._log, self._clock, context.renew
        )
        self._takeover = Takeover(is_fenced=self._commit.is_fenced)
        self.smoothing = self._smoothing_after(None)
        """What it has given of the targets' turns."""
        self._quotas = self._quotas_after(None)
        self._traced: TracedSends | None = None
        """What the step under way sends, if somebody traces."""
        self._stopped: Mapping[int, int] = {}
        """Lanes that stand still, and until when."""
        self._bound = BrokerBound(0, 0)
        self._standstill = Standstill(0, 1)
        self.last_step_ms = 0
        """Monotonic time of the last step that was committed."""
        self.has_stepped = False
        """Has a step been committed, beside the one that begins the term?"""
        self._has_delivered = False
        self.has_learnt = False
        """Did the failure that ended it say what to do otherwise, so that the next one differs?"""
        self._watched_ms = 0
        self.term = 0
        self.delivered_count = 0
        self.is_delivering = False
        self.since_ms = 0
        """Wall time when it began to deliver, Unix ms."""

    def run(self) -> None:
        """Take over, then deliver until the grant ends; raise any other cause of its end."""
        if self.take_over():
            while self.advance():
                pass

    def advance(self) -> bool:
        """Carry out one step, or wait for something to do; False if the grant has ended."""
        if not self._is_valid():
            return False
        self._context.note_progress()
        self._watch()
        self._step()
        return True

    def next_due_ms(self) -> int | None:
        """Return when something may be due next, Unix ms; None if nothing is known to be."""
        with self._replica.changed:
            return self._planner.next_due_ms(self._clock.wall_ms(), self._stopped)

    def close(self) -> None:
        """Discard the producer and the queue."""
        self.is_delivering = False
        self._commit.close()
        if self._plans is not None:
            self._replica.detach(self._plans)
        self._plans = None

    def _is_valid(self) -> bool:
        return self._grant.is_valid(self._clock.monotonic_ms())

    def take_over(self) -> bool:
        """Take over, up to the step that begins the term; False if the grant ended on the way."""
        begun_ms = self._clock.monotonic_ms()
        if self._grant.term and not self._grant.has_lease(begun_ms):
            # Another node may lead by now: then it must not be fenced.
            self._log.catch_up(self._log.stable_end(READ_TIMEOUT_MS), READ_TIMEOUT_MS)
            self._refuse_successor(None if self._log.newest is None else self._log.newest.record)
        order = run_takeover(
            self._takeover,
            self._commit,
            self._replica,
            self._log,
            self._clock,
            self._goes_on,
            self._context.shard,
        )
        if order is None or not self._begin_term(order):
            return False
        self.since_ms = self._clock.wall_ms()
        self.is_delivering = True
        log.info(
            "mastership_begun",
            term=self.term,
            takeover_ms=self._clock.monotonic_ms() - begun_ms,
            cursor_ms=self._planner.frontier.lowest_cursor.due_ms,
        )
        return True

    def _goes_on(self) -> bool:
        self._context.note_progress()
        return self._is_valid()

    def _begin_term(self, order: BeginTerm) -> bool:
        """Plan from the last frontier on, and write the first step; False if the grant ended."""
        last, first = order.last, order.first
        found = self._commit.last
        assert found is not None and found.frontier == last, "the log was not read on"
        self._refuse_successor(found)
        while not split_before(self._replica, last):
            if not self._goes_on():
                return False
        self._plans = Planner.of(self._replica, last)
        self.smoothing = self._smoothing_after(found)
        self._quotas = self._quotas_after(found)
        self._written_settings = self._settings_after(found.settings)
        self._standstill = Standstill(found.rest_ms, self._settings.shards)
        self.term = first.term
        self._write_bare(first, found.now_ms)
        self._grant.term = first.term
        return True

    def _refuse_successor(self, last: FrontierRecord | None) -> None:
        """Raise HigherTermError if another node has begun a term since the lease ran out."""
        if (
            last is not None
            and not self._grant.has_lease(self._clock.monotonic_ms())
            and self._grant.term < last.frontier.term
            and last.owner != self._grant.owner
        ):
            raise HigherTermError(
                f"{last.owner} has begun term {last.frontier.term} since this node's term "
                f"{self._grant.term}"
            )

    @property
    def _planner(self) -> Planner:
        assert self._plans is not None, "only a master plans"
        return self._plans

    def _settings_after(self, found: Settings) -> Settings:
        """Return the cluster's settings as this master writes them: with the key that it signs by.
        Clocks that are further apart than this end a mastership."""
        own = self._options.key_fingerprint or found.key_fingerprint
        return found.signed_by(own, self._clock.wall_ms() + 2 * self._options.clock_drift_max_ms)

    def _smoothing_after(self, found: FrontierRecord | None) -> Smoothing:
        queues, holds = ({}, {}) if found is None else (found.smoothing, found.holds)
        rates: Mapping[str, Rate] = self._options.rates
        if (shards := self._settings.shards) > 1:
            rates = {topic: Fraction(rate, shards) for topic, rate in rates.items()}
        return Smoothing(rates, queues, self._settings.max_delay_ms, holds)

    def _quotas_after(self, found: FrontierRecord | None) -> Quotas:
        quotas = {} if found is None else found.quotas
        repeats = self._settings.guarantee == AT_LEAST_ONCE
        return Quotas(quotas, shards=self._settings.shards, repeats=repeats)

    def _write_bare(self, frontier: Frontier, now_ms: int) -> None:
        """Write a step that delivers nothing and moves no bound."""
        plan = Plan(self._planner.frontier, frontier, now_ms)
        with self._replica.changed:
            self._planner.begin(plan)
        try:
            self._carry_out(plan, StepContent(), self._writer(plan))
        except DelaydError:
            self._counters.failed += 1
            raise

    def _step(self) -> None:
        """Wait until something is due, then deliver it."""
        monotonic_ns = self._clock.monotonic_ns()
        bounded_ms = bounded_now_ms(self._clock.wall_ms(), monotonic_ns, self._bound)
        now_ms = self._standstill.now_ms(bounded_ms)
        if self._bound.is_stale(monotonic_ns):
            self._write_bare(stand_still(self._planner.frontier), now_ms)
            return
        monotonic_ms = monotonic_ns // MS_NS
        idle_ms = monotonic_ms - self.last_step_ms
        with self._replica.changed:
            lanes_max = self._lane_limits(monotonic_ms)
            self._stopped = self.smoothing.stopped_lanes(self._settings.lanes, now_ms)
            limits = replace(
                self._step_sizing.limits,
                lanes_max=lanes_max,
                lanes_stopped=self._stopped,
                lanes_first=self.smoothing.lanes_first(self._settings.lanes, now_ms),
            )
            plan = self._planner.plan(now_ms, self._replica.ingested, limits)
            gates = self._planner.gates(self._quotas, plan)
            if plan.is_empty and not gates:
                due_ms = self._planner.next_due_ms(now_ms, self._stopped)
                # What is due and yet not in the plan waits for the ingest thread, which notifies.
                wait_ms = pause_ms(due_ms, now_ms, idle_ms, self._options.idle_interval_ms)
                if wait_ms:
                    self._replica.changed.wait(wait_ms / 1000)
                    return
            content = self._planner.begin(plan)
        begun_ms = self._clock.monotonic_ms()
        writer = self._writer(plan, gates)
        try:
            self._carry_out(plan, content, writer)
        except DelaydError as error:
            self._counters.failed += 1
            if isinstance(error, ProducerError):
                self._note_failure(error, writer)
            if not self.has_learnt:
                self._step_sizing.failed()
            raise
        self.has_stepped = True
        self._quarantine.note_committed(self._clock.monotonic_ms(), writer.sent)
        for topic, turned_away in writer.turned_away.items():
            self._targets.failures.turned_away(topic, writer.now_ms, turned_away)
        took_ms, delivered = self._clock.monotonic_ms() - begun_ms, writer.fates[Fate.DELIVERED]
        self._step_sizing.succeeded(took_ms, writer.message_count, delivered)

    def _lane_limits(self, now_ms: int) -> dict[int, int]:
        """Return by lane how many records a step may take, for the lanes that are limited."""
        limits = dict(self._quarantine.lane_limits(now_ms))
        for topic, records in self._targets.record_limits.items():
            lane = lane_of(topic, self._settings.lanes)
            limits[lane] = min(records, limits.get(lane, records))
        return limits

    def _writer(self, plan: Plan, gates: Sequence[Gate] = ()) -> StepWriter:
        limits, now_ms = self._replica.limits, plan.now_ms
        shard = self._context.shard
        orders = OrderStep(self.smoothing, self._quotas, gates, limits, now_ms, shard)
        sends = self._commit.producer
        if spans := self._options.spans:
            self._traced = TracedSends(sends, self._settings, spans)
        return StepWriter(self._context, self._traced or sends, plan, orders)

    def _note_failure(self, error: ProducerError, writer: StepWriter) -> None:
        """Send less, or nothing, to targets whose brokers refused what the checks had let pass, and
        to partitions whose leaders do not answer. If a broker is gone, nothing else was wrong."""
        if error.is_broker_gone:
            self.has_learnt = True
            return
        if error.silent and all(topic in writer.sent for topic, _ in error.silent):
            # delayd's own records were acknowledged, or none was waited for.
            sent = {topic for topic, (_, sources) in writer.sent.items() if sources}
            brokers = self._targets.suspected_leaders(error.silent, sent)
            self._sparing.note_silent(writer.now_ms, error.silent, brokers)
            log.warning(
                "targets_silent",
                partitions=sorted(map("{0[0]}/{0[1]}".format, error.silent)),
                brokers=sorted(set(brokers.values())),
            )
            self.has_learnt = True
            return
        self._quarantine.note_failed(writer.tried)
        refusals = {topic: code for topic, code in error.refusals.items() if topic in writer.sent}
        if refusals:
            now_ms = self._clock.monotonic_ms()
            self._quarantine.note_refused(now_ms, refusals, str(error), writer.sent)
            self.has_learnt = True

    def _watch(self) -> None:
        """Read the frontier topic as it grows; HigherTermError if another master writes there.

        Look up failing targets now and then, too.
        """
        monotonic_ms = self._clock.monotonic_ms()
        if monotonic_ms - self._watched_ms < WATCH_INTERVAL_MS:
            return
        self._watched_ms = monotonic_ms
        self._targets.look_up(())  # Failing ones may be well again, though no message asks.
        for seen in self._log.poll(0):
            # A superseded node then knows what to reach before it tries again.
            self._replica.observe(seen)
        newest = self._log.newest
        if newest is not None and newest.record.frontier.term > self.term:
            raise HigherTermError(
                f"{newest.record.owner} has begun term {newest.record.frontier.term}, this "
                f"master's is {self.term}"
            )

    def _carry_out(self, plan: Plan, content: StepContent, writer: StepWriter) -> None:
        """Write deliveries, replies and retries, then the frontier that covers them, and commit."""
        begun_ms = self._clock.monotonic_ms()
        self._commit.begin()
        writer.write(content)
        fates, frontier = writer.fates, plan.frontier
        own_writes = tuple(writer.own_writes)
        if own_writes != frontier.own_writes:
            frontier = replace(frontier, own_writes=own_writes)
            self._planner.wrote(frontier.own_writes)
        record = FrontierRecord(
            frontier=frontier,
            owner=self._grant.owner,
            now_ms=plan.now_ms,
            counts=StepCounts(
                delivered=fates[Fate.DELIVERED],
                late=plan.late,
                killed=writer.killed_count,
                retried=writer.requeued_count,
                dead=fates[Fate.DEAD] + fates[Fate.EXPIRED],
                answers=len(content.replies) + len(content.judged) - writer.orders.count,
            ),
            digest=writer.digest,
            settings=self._written_settings,
            smoothing=self.smoothing.queues(frontier, plan.now_ms),
            barriers=self._replica.rules.below(frontier.offsets),
            holds=self.smoothing.holds(plan.now_ms),
            quotas=self._quotas.after(),
            rest_ms=self._standstill.rest_ms,
        )
        written = self._commit.commit(record, self._check)
        ack = written.ack
        self._bound = BrokerBound(ack.append_ms, written.arrived_ns)
        self.last_step_ms = self._clock.monotonic_ms()
        self.delivered_count += fates[Fate.DELIVERED]
        self._replica.observe(SeenFrontier(record, ack.offset, ack.append_ms))
        self._counters.committed(
            took_ms=self.last_step_ms - begun_ms,
            messages={
                KILLED: writer.killed_count,
                **{fate.value: count for fate, count in fates.items()},
            },
            verdicts=writer.verdicts,
            letters=writer.letters,
        )
        # By the broker's clock: when the frontier was there, and the commit that followed.
        commit_ms = (self._clock.monotonic_ns() - written.arrived_ns) // MS_NS
        self._counters.delivered(writer.dues_ms, ack.append_ms + commit_ms)
        self._note_first(writer.dues_ms, ack.append_ms + commit_ms)
        self._counters.smoothed(writer.smoothed_ms, ack.append_ms + commit_ms)
        if self._traced is not None:
            self._traced.committed(plan.now_ms, ack.append_ms + commit_ms)

    def _note_first(self, dues_ms: Mapping[str, list[int]], at_ms: int) -> None:
        """Note how late the first messages were: what people felt of the failover before."""
        earliest = [times_ms[0] for times_ms in dues_ms.values() if times_ms]  # They are sorted.
        if earliest and not self._has_delivered:
            self._has_delivered = True
            failovers = self._replica.retention.failovers
            shard = self._context.shard
            with self._replica.changed:
                failovers.delivered_first(shard, self.term, at_ms - min(earliest), at_ms)

    def _check(self, written: Written) -> None:
        """Raise what ends the mastership, if the step must not be committed."""
        if not self.is_delivering:
            topic = self._settings.frontier.name
            check_first(self._takeover, written.ack.offset, topic, self._clock)
        self._check_clock(written)
        if not self._grant.is_live(self._clock.monotonic_ms()):
            raise ProducerError("the lease ran out before the commit")

    def _check_clock(self, written: Written) -> None:
        drift = drift_ms(written.ack.append_ms, written.sent_wall_ms, self._clock.wall_ms())
        self._counters.drift_ms = drift
        if abs(drift) > self._options.clock_drift_max_ms:
            raise ClockDriftError(
                f"the broker's clock is {drift} ms from this node's, more than clock_drift_max_ms "
                f"= {self._options.clock_drift_max_ms}",
                remedy="synchronise the clocks of this node and the brokers (NTP)",
            )
