"""The delivery thread: follows the frontier, and delivers while this node holds a grant.

It reports to the control loop in past-tense facts and never decides which node is master.
`replication.leadership_session` decides what it does with a grant.
"""

from collections.abc import Callable, Mapping

import structlog

from delayd.bus import Bus
from delayd.cluster.frontier_log import FrontierLog
from delayd.errors import (
    CoordinationError,
    FencedError,
    KafkaUnreachableError,
    ProducerError,
)
from delayd.node.delivery.commits import StepCommit, SupersededError
from delayd.node.delivery.counters import StepCounters
from delayd.node.delivery.delivery_context import DeliveryContext, DeliveryOptions
from delayd.node.delivery.flat_step import NEVER, FlatStep
from delayd.node.delivery.grant import Grant
from delayd.node.delivery.mastership import (
    ClockDriftError,
    HigherTermError,
    Mastership,
)
from delayd.node.delivery.standby import Standby
from delayd.node.delivery.step_sizing import StepSizing
from delayd.node.delivery.takeover_run import BehindError, StaleReadError
from delayd.node.replica.replica import Replica
from delayd.node.targets.checks import Targets
from delayd.node.targets.failures import FailingTarget
from delayd.node.targets.sparing import SparedPartition, Sparing
from delayd.runtime.clock import Clock
from delayd.runtime.threads import SystemThreads, Threads
from replication.election_facts import Ended
from replication.leadership_session import (
    BeMaster,
    Failure,
    GrantGiven,
    GrantOver,
    LeadershipSession,
    MastershipFailed,
    Rest,
    Wait,
    Waited,
)
from replication.leadership_session import Fact as LeadershipSessionFact

log = structlog.get_logger()

FOLLOW_POLL_MS = 10
FOLLOW_POLL_MAX_MS = 40
FOLLOW_PAUSE_MS = 20
"""A follower reads the records of this time at once: to wake up for each step costs more than to
read its record."""
METADATA_TIMEOUT_MS = 5_000


def follow_poll_ms(shards: int) -> int:
    """Return how long one follower's wait for records is, at brokers and here: as many shards as a
    cluster has, each node waits that often."""
    return min(FOLLOW_POLL_MS * shards, FOLLOW_POLL_MAX_MS)


class DeliveryLoop:
    """A shard's delivery thread. `give` and `stop` may be called from other threads."""

    def __init__(
        self,
        bus: Bus,
        replica: Replica,
        frontier_log: FrontierLog,
        clock: Clock,
        options: DeliveryOptions,
        on_end: Callable[[Grant, Ended], object],
        on_failure: Callable[[BaseException], object],
        *,
        commit_for: Callable[[Grant], StepCommit] | None = None,
        threads: Threads | None = None,
        on_spared: Callable[[], object] = lambda: None,
        counters: StepCounters | None = None,
    ) -> None:
        """`on_end` is called once nothing more is written under a grant, `on_failure` with an error
        that the node must not survive. `commit_for`: how steps become true under a grant; as
        transactions if it is left out. `on_spared`: when there are spared partitions to probe.
        `counters`: of all loops of the process."""
        threads = threads or SystemThreads()
        self._replica = replica
        self._log = frontier_log
        self._clock = clock
        self._on_end = on_end
        self._on_failure = on_failure
        self._bus = bus
        self._cluster = bus.cluster()
        self._targets = Targets(
            self._cluster,
            clock,
            METADATA_TIMEOUT_MS,
            anchor=replica.settings.buffer.name,
            unreplicated=options.unreplicated_targets,
        )
        limits = options.step_limits
        self._context = DeliveryContext(
            standby=Standby(bus, replica.settings, clock, frontier_log.shard),
            replica=replica,
            frontier_log=frontier_log,
            clock=clock,
            options=options,
            targets=self._targets,
            step_sizing=StepSizing(limits.records_max, limits.bytes_max),
            note_progress=self._note_progress,
            renew=self._renew,
            sparing=Sparing(on_spared),
            flat_step=FlatStep() if options.spans is None else FlatStep(run_min=NEVER),
            counters=counters or StepCounters(),
            shard=frontier_log.shard,
        )
        self.counters = self._context.counters
        self._commit_for = commit_for
        self._grant: Grant | None = None
        self._stopping = threads.event()
        self._delivered_before = 0
        self._mastership: Mastership | None = None
        self.progressed_ms = clock.monotonic_ms()
        """Monotonic time of the last sign of life."""
        name = "delivery" if replica.settings.shards == 1 else f"delivery-{frontier_log.shard}"
        self._thread = threads.thread(name, self._run)

    @property
    def is_delivering(self) -> bool:
        """True if this node has taken over and its mastership has not ended since."""
        mastership = self._mastership
        return mastership is not None and mastership.is_delivering

    @property
    def leads_since_ms(self) -> int | None:
        """Wall time, Unix ms, when this node took over; None if it does not deliver."""
        mastership = self._mastership
        return mastership.since_ms if mastership is not None and self.is_delivering else None

    @property
    def stepped_ms(self) -> int:
        """Monotonic time of the last step of the present mastership; 0 without one."""
        mastership = self._mastership
        return 0 if mastership is None else mastership.last_step_ms

    @property
    def delivered_count(self) -> int:
        """Messages delivered by this process."""
        mastership = self._mastership
        return self._delivered_before + (mastership.delivered_count if mastership else 0)

    @property
    def failing_targets(self) -> list[FailingTarget]:
        """Targets that refused messages and are not known to be well again."""
        return self._targets.failures.report()

    @property
    def spared_partitions(self) -> tuple[SparedPartition, ...]:
        """Partitions of targets whose leaders do not answer, so that the master spares them; none
        on a follower."""
        return self._context.sparing.report

    def probe_answered(self, spared: SparedPartition) -> None:
        """Note that the leader of a partition that is spared answers."""
        self._context.sparing.answered(spared)

    @property
    def frontier_strays(self) -> int:
        """Records in the frontier topic that no master wrote, and that were skipped."""
        return self._log.strays_count

    @property
    def smoothing_ms(self) -> Mapping[str, int]:
        """By target with a rate, how far its last deferral is ahead; nothing on a follower."""
        mastership = self._mastership
        if mastership is None or not mastership.is_delivering:
            return {}
        return mastership.smoothing.delays_ms(self._clock.wall_ms())

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def give(self, grant: Grant) -> None:
        """Be master under this grant, as soon as the last one has ended."""
        self._grant = grant

    def wake(self) -> None:
        """Look at the grant again."""
        with self._replica.changed:
            self._replica.changed.notify_all()

    def ask_to_stop(self) -> None:
        """Let the thread end soon; it finishes or abandons its step."""
        self._stopping.set()
        if (grant := self._grant) is not None:
            grant.withdrawn = True
        self.wake()

    def stop(self, timeout_s: float) -> None:
        """End the thread; it finishes or abandons its step."""
        self.ask_to_stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        if self._replica.settings.shards > 1:
            structlog.contextvars.bind_contextvars(shard=self._log.shard)
        try:
            while not self._stopping.is_set():
                self._note_progress()
                grant = self._grant
                if grant is None:
                    self._follow(follow_poll_ms(self._replica.settings.shards))
                    continue
                ended = self._deliver(grant)
                self._context.sparing.end()
                self._grant = None
                self._on_end(grant, ended)
        except BaseException as error:
            self._on_failure(error)
        finally:
            self._context.standby.close()
            self._log.close()
            self._cluster.close()

    def _follow(self, timeout_ms: int) -> None:
        if self._commit_for is None:
            self._context.standby.keep()
        found = self._log.poll(timeout_ms)
        for seen in found:
            self._replica.observe(seen)
        if found and self._grant is None:
            self._stopping.wait(FOLLOW_PAUSE_MS / 1000)

    def _deliver(self, grant: Grant) -> Ended:
        """Carry out the orders of a leadership session, until it orders to rest."""
        session = LeadershipSession()
        order = session.handle(GrantGiven(self._clock.monotonic_ms()))
        while not isinstance(order, Rest):
            order = session.handle(self._obey(order, grant))
        return order.ended

    def _obey(self, order: BeMaster | Wait, grant: Grant) -> LeadershipSessionFact:
        """Carry out one order, unless the grant is over; return the fact that answers it."""
        if self._stopping.is_set() or not grant.is_valid(self._clock.monotonic_ms()):
            return GrantOver(self._clock.monotonic_ms())
        if isinstance(order, Wait):
            self._stopping.wait(order.wait_ms / 1000)
            return Waited(self._clock.monotonic_ms())
        commit = None if self._commit_for is None else self._commit_for(grant)
        mastership = self._mastership = Mastership(self._context, grant, commit)
        is_away = False
        try:
            mastership.run()
            return GrantOver(self._clock.monotonic_ms())
        except FencedError as error:
            failure = Failure.FENCED
            log.warning("mastership_fenced", error=str(error))
        except HigherTermError as error:
            failure = Failure.SUPERSEDED
            log.warning("mastership_superseded", error=str(error))
        except SupersededError as error:
            failure = Failure.LEADERSHIP_LOST
            log.warning("mastership_superseded", error=str(error))
        except ClockDriftError as error:
            failure = Failure.CLOCK_DRIFT
            log.error("mastership_refused", code=error.code, error=str(error))
        except BehindError as error:
            failure = Failure.BEHIND
            log.warning("mastership_given_way", code=error.code, error=str(error))
        except StaleReadError as error:
            failure = Failure.STALE_READ
            self.counters.stale_reads += 1
            log.warning("takeover_stale", code=error.code, error=str(error))
        except (ProducerError, KafkaUnreachableError, CoordinationError) as error:
            failure = Failure.STEP_FAILED
            log.warning("step_failed", code=error.code, error=str(error))
            is_away = isinstance(error, KafkaUnreachableError) or (
                isinstance(error, ProducerError) and error.is_broker_gone
            )
        finally:
            self._end_mastership()
        if failure is Failure.STALE_READ or is_away:
            self._renew()
        self._targets.forget()
        self._note_progress()
        now_ms = self._clock.monotonic_ms()
        return MastershipFailed(
            now_ms,
            failure,
            mastership.has_stepped,
            mastership.has_learnt,
            is_alone=not grant.has_lease(now_ms),
        )

    def _renew(self) -> None:
        """Ask over new connections from now on: brokers tell new clients who leads now."""
        self._log.renew()
        self._cluster.close()
        self._cluster = self._bus.cluster()
        self._targets.renew(self._cluster)

    def _end_mastership(self) -> None:
        mastership = self._mastership
        assert mastership is not None, "a mastership ends once"
        self._delivered_before += mastership.delivered_count
        self._mastership = None
        mastership.close()

    def _note_progress(self) -> None:
        self.progressed_ms = self._clock.monotonic_ms()
