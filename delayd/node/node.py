"""A running node: where the adapters meet. It starts everything in order, and stops it in order.

start          1. check topics and settings   2. open the wheel (crash recovery)
               3. check positions against the buffer   4. start the threads, join the election
SIGTERM        1. finish the step   2. resign, revoke the lease   3. checkpoint   4. exit 0
fatal error    (disk, corruption, a broken frontier) stop, resign, log why, exit 1
"""

import asyncio
import secrets
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog

from delayd import __version__
from delayd.bus import Bus
from delayd.cluster.connect import open_bus, open_coordination
from delayd.cluster.frontier_log import FrontierLog, SeenFrontier
from delayd.cluster.member_proof import MemberCheck, MemberKeys
from delayd.cluster.topic_checks import RECORD_MARGIN_BYTES
from delayd.config.cluster_key import check_key, fingerprint, proof_key
from delayd.config.node import NodeConfig
from delayd.coordination import Coordination
from delayd.errors import (
    BufferTrimmedError,
    CorruptionError,
    DelaydError,
    DiskError,
    ExitCode,
    ShardsChangedError,
    TopicMismatchError,
)
from delayd.node.cancel_on.bridge import CancelBridge
from delayd.node.comparing.service import Comparisons
from delayd.node.delivery.commits import StepCommit
from delayd.node.delivery.commits.progress import ProgressCommit
from delayd.node.delivery.counters import StepCounters
from delayd.node.delivery.deliveries import Deliveries
from delayd.node.delivery.delivery_context import DeliveryOptions
from delayd.node.delivery.delivery_loop import DeliveryLoop, follow_poll_ms
from delayd.node.delivery.grant import Grant
from delayd.node.delivery.spans import DeliverySpans
from delayd.node.disk_opening import note_end_of_wheel, open_disk
from delayd.node.election.control_loop import ControlLoop
from delayd.node.election.election_context import ElectionContext
from delayd.node.election.elections import Elections
from delayd.node.election.etcd_calls import Identity
from delayd.node.election.etcd_health import EtcdHealth
from delayd.node.election.heartbeat import Heartbeat
from delayd.node.election.kafka_contact import KafkaContact
from delayd.node.election.leader_reads import LeaderReads
from delayd.node.election.membership import Membership
from delayd.node.election.pulse_line import HttpExchange
from delayd.node.fetcher import CopyIsFasterError, FetcherAtStart
from delayd.node.ingest_watch import IngestWatch
from delayd.node.kafka_health import KafkaHealth
from delayd.node.monitoring.api.services import services_of
from delayd.node.monitoring.http import AdminServer, build_app
from delayd.node.monitoring.node_view import NodeView
from delayd.node.repairing.log_proof import lack_now, log_lack_of
from delayd.node.repairing.repairer import WheelRepairer
from delayd.node.repairing.turn import Turn
from delayd.node.replica.ingest_loop import IngestLoop
from delayd.node.replica.room import RoomState
from delayd.node.settling import enter_settled
from delayd.node.snapshots.donor import Donor
from delayd.node.startup_checks import (
    check_guarantee,
    check_rates,
    heavy_batches_end,
    note_slow_brokers,
    takes_heavy_batches,
)
from delayd.node.surroundings import Surroundings
from delayd.node.target_probes import TargetProbes
from delayd.runtime import native
from delayd.runtime.clock import Clock, SystemClock
from delayd.runtime.gc_tuning import tune_collector
from delayd.runtime.threads import SystemThreads
from delayd.wheel.aside import may_give_back, want_back
from delayd.wheel.disk import SystemDisk
from delayd.wheel.reserve import Reserve
from delayd.wheel.storage import Wheel
from replication.delivery_queue import StepLimits
from replication.election import Election
from replication.election_facts import ResignReason
from replication.settings import AT_LEAST_ONCE, SHARDS_MAX

log = structlog.get_logger()

THREAD_STOP_S = 20
WORKERS = 2 * SHARDS_MAX
"""Threads for blocking calls, at most: one is started when all others are busy."""


async def run_node(config: NodeConfig, clock: Clock | None = None) -> ExitCode:
    """Run a node until SIGTERM, SIGINT or a fatal error. Raises DelaydError if it cannot start, and
    ShardsChangedError if the cluster gets other shards: begin anew then."""
    log.info("node_starting", node=config.node, version=__version__, path=native.described)
    tune_collector()
    # Each election makes calls of its own, and a lease does not wait for those of others.
    executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="worker")
    asyncio.get_running_loop().set_default_executor(executor)
    clock = clock or SystemClock()
    coordination = open_coordination(config.etcd, config.cluster, config.security)
    surroundings = Surroundings(
        clock=clock,
        coordination=coordination,
        open_bus=lambda largest: open_bus(
            config.bootstrap, config.security.properties(), largest, config.driver
        ),
        open_admin=partial(_open_admin, config, coordination),
        open_wheel=lambda folder, partitions: Wheel.open(folder, partitions=partitions),
        open_reserve=lambda folder, limit_bytes: Reserve(SystemDisk(), str(folder), limit_bytes),
        threads=SystemThreads(),
        new_nonce=lambda: secrets.token_hex(8),
        fetcher=FetcherAtStart(config, coordination, clock),
        exchange=HttpExchange(),
        watches_ingest=True,
        spans=DeliverySpans(config.node) if config.traces else None,
    )
    try:
        bus = surroundings.open_bus(None)
        await asyncio.to_thread(coordination.check_reachable, int(config.connect_timeout_s * 1000))
        return await run_node_in(surroundings, config, bus)
    finally:
        coordination.close()
        if surroundings.spans is not None:
            surroundings.spans.close()


def _open_admin(config: NodeConfig, coordination: Coordination, view: NodeView) -> AdminServer:
    """Return the admin port with the HTTP API. ConfigError for a file of tokens that is wrong."""
    bus = open_bus(config.bootstrap, config.security.properties())
    services = services_of(config, view, bus, coordination)
    token = None if config.export_token is None else config.export_token.get_secret_value()
    app = build_app(view, token, services)
    return AdminServer(app, *config.admin_listener, on_end=services.stop)


async def run_node_in(surroundings: Surroundings, config: NodeConfig, bus: Bus) -> ExitCode:
    """Run a node as `run_node` does, once etcd has answered."""
    seen = await asyncio.to_thread(enter_settled, bus, surroundings, config)
    check_key(config.cluster_key.get_secret_value(), seen.record.settings)
    check_guarantee(config, seen.record.settings)
    check_rates(config, seen.record)
    await asyncio.to_thread(note_slow_brokers, bus, int(config.connect_timeout_s * 1000))
    # What the cluster accepts decides what its producers must be able to write.
    largest = seen.record.settings.record_bytes_max + RECORD_MARGIN_BYTES
    bus = surroundings.open_bus(largest)
    fetcher = surroundings.fetcher
    try:
        node = Node(config, surroundings, bus, seen)
    except CopyIsFasterError as faster:
        assert fetcher is not None, "only a fetcher weighs"
        await fetcher.fetch_instead(bus, seen.record.settings, faster.choice)
        return await run_node_in(surroundings, config, bus)
    except (CorruptionError, BufferTrimmedError) as error:
        if may_give_back(config.data_dir):
            # A repair comes to nothing: the wheel that it was to replace is good but for a few.
            want_back(config.data_dir, error.message)
            return await run_node_in(surroundings, config, bus)
        if fetcher is None or config.on_damage == "stop":
            raise
        await fetcher.fetch(bus, seen.record.settings, error)
        # It may have taken hours.
        seen = await asyncio.to_thread(enter_settled, bus, surroundings, config)
        node = Node(config, surroundings, bus, seen)
    return await node.run()


class Node:
    """One running node."""

    def __init__(
        self, config: NodeConfig, surroundings: Surroundings, bus: Bus, seen: SeenFrontier
    ) -> None:
        clock = surroundings.clock
        self._config = config
        self._surroundings = surroundings
        self._clock = clock
        self._bus = bus
        self._settings = seen.record.settings
        self._shards = range(self._settings.shards)
        self._loop = asyncio.get_running_loop()
        self._failure: BaseException | None = None
        self._ending = asyncio.Event()
        self._is_told_to_end = False
        timeout_ms = int(config.connect_timeout_s * 1000)
        reads_carefully = takes_heavy_batches(bus, self._settings, timeout_ms)
        if reads_carefully:
            log.warning("buffer_read_carefully", topic=self._settings.buffer.name)
        self._replica, self._exporter = open_disk(config, surroundings, bus, seen, timeout_ms)
        self._ingestion = self._new_ingest_loop(reads_carefully, timeout_ms)
        self._delivery = self._new_deliveries(timeout_ms)
        self._probes = TargetProbes(bus, self._delivery)
        self._cancel_bridge = self._new_cancel_bridge()
        identity = Identity(config.node, surroundings.new_nonce(), config.admin_address)
        self._control = self._new_elections(identity)
        self._member_keys = MemberKeys(
            proof_key(config.cluster_key.get_secret_value()), self._settings.realm
        )
        self._donor = Donor(
            self._replica, clock, node=config.node, bytes_per_s=config.snapshot_bytes_per_s
        )
        self._comparisons = self._new_comparisons()
        self._kafka_health = KafkaHealth(bus, self._settings, clock, lambda: self._replica.reached)
        self._ingest_watch = IngestWatch(
            bus,
            self._settings.buffer.name,
            clock,
            lambda: self._ingestion.read_to,
            lambda: self._replica.room.state is RoomState.ENOUGH,
        )
        self._view = NodeView(
            config,
            clock,
            self._replica,
            self._ingestion,
            self._delivery,
            self._control,
            self._exporter,
            self._kafka_health,
            self._ingest_watch,
            self._donor,
            MemberCheck(self._member_keys, identity.nonce, clock),
            self._comparisons,
            self._cancel_bridge,
            surroundings.fetcher.told if surroundings.fetcher else None,
        )

    def _new_ingest_loop(self, reads_carefully: bool, timeout_ms: int) -> IngestLoop:
        bus, to_loop = self._bus, self._loop.call_soon_threadsafe
        return IngestLoop(
            bus,
            self._replica,
            self._clock,
            self._config.checkpoint_interval_ms,
            lambda error: to_loop(self._fail, error),
            self._surroundings.threads,
            careful=reads_carefully,
            careful_to=heavy_batches_end(bus, self._settings, timeout_ms),
        )

    def _new_elections(self, identity: Identity) -> Elections:
        parts, clock, bus = self._surroundings, self._clock, self._bus
        health = EtcdHealth(clock)
        exchange = parts.exchange
        contact = KafkaContact(bus, clock, lambda: self._delivery.stepped_ms)
        context = ElectionContext(
            parts.coordination,
            self._replica,
            clock,
            identity,
            health,
            Membership(parts.coordination, self._replica, clock, identity, health, self._placed_by),
            Heartbeat(identity.nonce, self._settings.shards),
            exchange,
            contact if exchange is not None else None,
            self._config.pulse_suspicion_ms,
            LeaderReads(parts.coordination, clock) if len(self._shards) > 1 else None,
        )
        return Elections(context, [self._new_control_loop(context, n) for n in self._shards])

    def _placed_by(self) -> dict[str, int]:
        """Return what this node tells the others to be given shards, if there are several. In whole
        seconds: the member key is not to be written for each checkpoint."""
        if len(self._shards) == 1:
            return {}
        took_s = self._ingestion.checkpoint_took_ms // 1000
        is_ready = self._view.unready() is None
        return {"could_take_over": is_ready, "checkpoint_took_ms": took_s * 1000}

    def _new_control_loop(self, context: ElectionContext, shard: int) -> ControlLoop:
        is_fenced = self._settings.guarantee != AT_LEAST_ONCE
        times, nonce = self._config.election_times, context.identity.nonce
        election = Election(nonce, times, is_fenced=is_fenced)
        return ControlLoop(context, election, self._delivery.loops[shard], shard)

    def _new_deliveries(self, timeout_ms: int) -> Deliveries:
        config, counters = self._config, StepCounters()
        options = DeliveryOptions(
            idle_interval_ms=config.idle_step_interval_ms,
            clock_drift_max_ms=config.clock_drift_max_ms,
            step_limits=StepLimits(config.step_records_max, config.step_bytes_max),
            unreplicated_targets=config.unreplicated_targets,
            rates=config.rate_max,
            spans=self._surroundings.spans,
            key_fingerprint=fingerprint(config.cluster_key.get_secret_value(), config.cluster),
        )
        topic, wait_ms = self._settings.frontier.name, follow_poll_ms(len(self._shards))
        logs = [FrontierLog(self._bus, topic, n, wait_ms=wait_ms) for n in self._shards]
        for frontier_log in logs:
            frontier_log.open(timeout_ms)
        loops = [self._new_delivery_loop(each, options, counters) for each in logs]
        return Deliveries(loops, counters)

    def _new_delivery_loop(
        self, frontier_log: FrontierLog, options: DeliveryOptions, counters: StepCounters
    ) -> DeliveryLoop:
        to_loop, shard = self._loop.call_soon_threadsafe, frontier_log.shard
        is_fenced = self._settings.guarantee != AT_LEAST_ONCE
        return DeliveryLoop(
            self._bus,
            self._replica,
            frontier_log,
            self._clock,
            options,
            lambda grant, ended: to_loop(self._control.delivery_ended, shard, grant, ended),
            lambda error: to_loop(self._delivery_failed, shard, error),
            commit_for=None if is_fenced else partial(self._progress_commit, frontier_log),
            threads=self._surroundings.threads,
            on_spared=lambda: to_loop(self._probes.wake),
            counters=counters,
        )

    def _new_cancel_bridge(self) -> CancelBridge:
        return CancelBridge(
            self._bus,
            self._settings,
            self._config.cancel_on,
            self._clock,
            lambda: self._delivery.loops[0].is_delivering,
            self._surroundings.threads,
        )

    def _new_comparisons(self) -> Comparisons:
        config, to_loop = self._config, self._loop.call_soon_threadsafe
        timeout_ms = int(config.connect_timeout_s * 1000)
        key = config.cluster_key.get_secret_value()
        log_lack = log_lack_of(self._bus, key, self._clock, timeout_ms)
        repairer = WheelRepairer(
            config.data_dir,
            Turn(self._surroundings.coordination, config.node),
            self._clock,
            node=config.node,
            spare_bytes=config.disk_free_min_bytes,
            log_lack=lambda: lack_now(log_lack, self._replica.newest),
            end=lambda error: to_loop(self._end_in_order, error, "node_ends_to_repair"),
            is_master=lambda: self._delivery.loops[0].is_delivering,
            may_begin=config.on_difference == "repair",
        )
        return Comparisons(
            self._replica,
            self._bus,
            self._surroundings.coordination.members,
            self._member_keys,
            self._clock,
            node=config.node,
            interval_s=config.compare_s if self._surroundings.fetcher else 0,
            is_master=lambda: self._delivery.loops[0].is_delivering,
            on_damage=lambda error: to_loop(self._fail, error),
            repairer=repairer,
        )

    async def run(self) -> ExitCode:
        """Run until a signal or a failure; return FINE, or raise what ended it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._told_to_end)
        admin = self._surroundings.open_admin(self._view)
        admin_task = asyncio.create_task(admin.serve())
        self._ingestion.start()
        self._delivery.start()
        self._comparisons.start()
        self._cancel_bridge.start()
        control = asyncio.create_task(self._control.run())
        beside = [asyncio.create_task(each) for each in (self._watch_kafka(), self._probes.run())]
        if self._surroundings.watches_ingest:
            beside.append(asyncio.create_task(self._ingest_watch.run()))
        ending = asyncio.create_task(self._ending.wait())
        log.info("node_started", node=self._config.node, ingested=list(self._replica.ingested))
        await asyncio.wait({control, ending, admin_task}, return_when=asyncio.FIRST_COMPLETED)
        log.info("node_stopping", node=self._config.node)
        for task in (*beside, ending):
            task.cancel()
        if not control.done():
            self._control.shut_down()
        self._cancel_bridge.end()
        await asyncio.to_thread(self._exporter.stop, THREAD_STOP_S)
        await asyncio.to_thread(self._donor.stop)
        await asyncio.to_thread(self._comparisons.stop, THREAD_STOP_S)
        await asyncio.wait({control}, timeout=THREAD_STOP_S)
        await asyncio.to_thread(self._delivery.stop, THREAD_STOP_S)
        await asyncio.to_thread(self._ingestion.stop, THREAD_STOP_S)
        await asyncio.to_thread(self._cancel_bridge.stop, THREAD_STOP_S)
        self._control.heartbeat.end()
        admin.should_exit = True
        await asyncio.wait({admin_task}, timeout=5)
        await asyncio.to_thread(self._replica.close)
        if self._failure is None and admin_task.done() and admin_task.exception():
            self._failure = admin_task.exception()
        if control.done() and not control.cancelled() and control.exception():
            self._failure = self._failure or control.exception()
        is_told = self._is_told_to_end and isinstance(self._failure, ShardsChangedError)
        if self._failure is not None and not is_told:
            raise self._failure
        log.info("node_stopped", node=self._config.node)
        return ExitCode.FINE

    def _told_to_end(self) -> None:
        self._is_told_to_end = True
        self._ending.set()

    def _delivery_failed(self, shard: int, error: BaseException) -> None:
        self._fail(error)
        self._control.delivery_died(shard)

    def _fail(self, error: BaseException) -> None:
        """Resign and end: a thread met an error that the node must not survive."""
        if isinstance(error, ShardsChangedError):
            self._end_in_order(error, "node_ends_with_its_shards")
            return
        if self._failure is None or isinstance(self._failure, ShardsChangedError):
            self._failure = error
        code = error.code if isinstance(error, DelaydError) else type(error).__name__
        log.error("node_failed", code=code, error=str(error))
        if isinstance(error, CorruptionError | BufferTrimmedError):
            config = self._config
            may_fetch = self._surroundings.fetcher is not None and config.on_damage == "fetch"
            note_end_of_wheel(config.data_dir, error, may_fetch=may_fetch)
        reason = (
            ResignReason.DISK_FAILED
            if isinstance(error, DiskError)
            else ResignReason.DELIVERY_FAILED
        )
        self._control.fault(reason)
        self._ending.set()

    def _end_in_order(self, error: DelaydError, event: str) -> None:
        """End in order, with this error: a master finishes its step and resigns."""
        self._failure = self._failure or error
        log.warning(event, why=error.message)
        self._ending.set()

    def _progress_commit(self, frontier_log: FrontierLog, grant: Grant) -> StepCommit:
        """Return how steps become true without transactions."""
        assert grant.leadership is not None, "a grant comes with a leader key"
        return ProgressCommit(
            self._bus,
            self._surroundings.coordination,
            grant.leadership,
            frontier_log,
            self._clock,
        )

    async def _watch_kafka(self) -> None:
        """End the node when Kafka lacks what it needs."""
        self._fail(TopicMismatchError("; ".join(await self._kafka_health.run())))
