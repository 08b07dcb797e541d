"""A node: where the adapters meet. Starts everything in order, and stops it in order.

Start: topics and settings are checked, the wheel is opened (crash recovery), positions are checked
against the buffer, then the threads run and the node takes part in the election. SIGTERM: finish
the step, resign, revoke the lease, checkpoint, exit 0. A fatal error (disk, corruption, a broken
frontier): stop, resign, say why, exit 1.
"""

import asyncio
import contextlib
import gc
import secrets
import signal
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import structlog

from delayd import __version__
from delayd.admin.http import AdminServer
from delayd.bus import Bus
from delayd.bus.confluent import ConfluentBus
from delayd.bus.murmur2 import partition_of
from delayd.clock import Clock, SystemClock
from delayd.cluster_key import check_key, proof_key
from delayd.config import NodeConfig
from delayd.control import Control, Identity
from delayd.coordination.etcd import EtcdCoordination
from delayd.delivery import Delivery, DeliveryEnded, ThreadFailed
from delayd.errors import BufferPositionError, DelaydError, DiskError, ExitCode, TopicMismatchError
from delayd.export.exporter import Export, Exporter
from delayd.frontier_log import FrontierLog, SeenFrontier
from delayd.ingestion import Ingestion
from delayd.lookup import admin_ports, known_of_id
from delayd.pace import Pace
from delayd.replica import Replica
from delayd.request import source_of
from delayd.status import status_report
from delayd.topics import (
    RECORD_MARGIN_BYTES,
    check_topics,
    last_frontier,
    load_settings,
    topic_names,
)
from delayd.wheel.storage import Wheel
from replication.election import Election, ElectionTimes
from replication.election_facts import ResignReason
from replication.rank import Rank

log = structlog.get_logger()

STALL_LIMIT_MS = 30_000
"""A loop without a sign of life for this long makes /livez fail."""

TOPICS_CHECK_INTERVAL_S = 30
THREAD_STOP_S = 20
MARKER_POLL_S = 0.1

COLLECT_AFTER_OBJECTS = 100_000
"""Container objects made before Python's cycle collector runs. The hot paths make a dozen for a
message, and no cycles; with the default of 700, `delayd bench ingest` was a third slower."""
ETCD_TIMEOUT_MS = 1_000


def open_bus(
    bootstrap: str,
    kafka: dict[str, str] | None = None,
    record_bytes_max: int | None = None,
    driver: str = "confluent",
) -> Bus:
    """The data plane's driver; `record_bytes_max` is the largest record that it must produce."""
    if driver == "kafka-python":
        from delayd.bus.kafka_python import KafkaPythonBus  # 0.3 s that few commands need

        return KafkaPythonBus(bootstrap, overrides=kafka, record_bytes_max=record_bytes_max)
    return ConfluentBus(bootstrap, overrides=kafka or {}, record_bytes_max=record_bytes_max)


def tune_collector() -> None:
    """Let the cycle collector run seldom; what is there at the start is never looked at again."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 50, 100)


def cluster_status(
    bootstrap: str, etcd: Sequence[str], cluster: str, prefix: str, timeout_ms: int
) -> dict[str, Any]:
    """What `delayd status` shows; without etcd endpoints only what Kafka knows."""
    coordination = EtcdCoordination(etcd, cluster, timeout_ms=ETCD_TIMEOUT_MS) if etcd else None
    try:
        return status_report(
            open_bus(bootstrap),
            coordination,
            SystemClock(),
            cluster=cluster,
            prefix=prefix,
            timeout_ms=timeout_ms,
        )
    finally:
        if coordination is not None:
            coordination.close()


def cluster_members(etcd: Sequence[str], cluster: str, timeout_ms: int) -> dict[str, str]:
    """The nodes that etcd knows now: name to JSON with `admin`. Raises EtcdUnreachableError."""
    coordination = EtcdCoordination(etcd, cluster, timeout_ms=ETCD_TIMEOUT_MS)
    try:
        coordination.check_reachable(timeout_ms)
        return coordination.members()
    finally:
        coordination.close()


def look_up_id(
    id: str,
    bootstrap: str,
    *,
    etcd: Sequence[str],
    admin: str | None,
    cluster: str,
    prefix: str,
    timeout_ms: int,
) -> dict[str, Any] | None:
    """What `delayd show` shows; nodes are found through etcd unless one is named."""
    coordination = EtcdCoordination(etcd, cluster, timeout_ms=ETCD_TIMEOUT_MS) if etcd else None
    try:
        nodes = admin_ports(coordination, admin)
    finally:
        if coordination is not None:
            coordination.close()
    return known_of_id(
        id,
        open_bus(bootstrap),
        nodes,
        SystemClock(),
        buffer=topic_names(prefix).buffer,
        timeout_ms=timeout_ms,
    )


async def run_node(config: NodeConfig, clock: Clock | None = None) -> ExitCode:
    """Be a node until SIGTERM, SIGINT or a fatal error. Raises DelaydError if it cannot start."""
    tune_collector()
    clock = clock or SystemClock()
    timeout_ms = int(config.connect_timeout_s * 1000)
    coordination = EtcdCoordination(config.etcd, config.cluster, timeout_ms=ETCD_TIMEOUT_MS)
    bus = open_bus(config.bootstrap, config.kafka, driver=config.driver)
    try:
        await asyncio.to_thread(coordination.check_reachable, timeout_ms)
        seen = await asyncio.to_thread(
            load_settings, bus, config.cluster, config.prefix, timeout_ms
        )
        check_key(config.cluster_key.get_secret_value(), seen.record.settings)
        # What the cluster accepts decides what its producers must be able to write.
        largest = seen.record.settings.record_bytes_max + RECORD_MARGIN_BYTES
        bus = open_bus(config.bootstrap, config.kafka, largest, config.driver)
        node = Node(config, clock, bus, coordination, seen)
        return await node.run()
    finally:
        coordination.close()


class Node:
    """One running node."""

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        bus: Bus,
        coordination: EtcdCoordination,
        seen: SeenFrontier,
    ) -> None:
        self._config = config
        self._clock = clock
        self._bus = bus
        self._settings = seen.record.settings
        self._loop = asyncio.get_running_loop()
        self._failure: BaseException | None = None
        self._ending = asyncio.Event()
        self._started_ms = clock.monotonic_ms()
        timeout_ms = int(config.connect_timeout_s * 1000)
        wheel = Wheel.open(config.data_dir, partitions=self._settings.partitions)
        try:
            self._replica = Replica(
                wheel,
                self._settings,
                proof_key=proof_key(config.cluster_key.get_secret_value()),
                export_hold_ms=int(config.export_hold_s * 1000),
                disk_free_min_bytes=config.disk_free_min_bytes,
            )
            check_positions(bus, self._replica, timeout_ms)
            seen = newest_of(bus, self._replica, seen, timeout_ms, clock)
            self._replica.observe(seen)
            self._exporter = Exporter(
                self._replica, clock, folder=config.data_dir / "exports", node=config.node
            )
        except BaseException:
            wheel.close()
            raise
        frontier_log = FrontierLog(bus, self._settings.frontier.name, 0)
        frontier_log.open(timeout_ms)
        self._ingestion = Ingestion(
            bus, self._replica, clock, config.checkpoint_interval_ms, self._ingest_failed
        )
        self._delivery = Delivery(
            bus,
            self._replica,
            frontier_log,
            clock,
            Pace(config.step_records_max, config.step_bytes_max),
            self._report,
            idle_interval_ms=config.idle_step_interval_ms,
            clock_drift_max_ms=config.clock_drift_max_ms,
            unreplicated_targets=config.unreplicated_targets,
        )
        identity = Identity(
            node=config.node,
            nonce=secrets.token_hex(8),
            admin=f"{config.admin_host}:{config.admin_port}",
        )
        self._control = Control(
            coordination,
            Election(identity.nonce, ElectionTimes(lease_ttl_s=config.lease_ttl_s)),
            self._delivery,
            self._replica,
            clock,
            identity,
        )

    async def run(self) -> ExitCode:
        """Turn until told to stop; returns FINE, or raises what ended it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ending.set)
        admin = AdminServer(self, self._config.admin_host, self._config.admin_port)
        admin_task = asyncio.create_task(admin.serve())
        self._ingestion.start()
        self._delivery.start()
        control = asyncio.create_task(self._control.run())
        watch = asyncio.create_task(self._watch_topics())
        ending = asyncio.create_task(self._ending.wait())
        log.info("node_started", node=self._config.node, ingested=list(self._replica.ingested))
        await asyncio.wait({control, ending, admin_task}, return_when=asyncio.FIRST_COMPLETED)
        log.info("node_stopping", node=self._config.node)
        watch.cancel()
        ending.cancel()
        if not control.done():
            self._control.shut_down()
        await asyncio.to_thread(self._exporter.stop, THREAD_STOP_S)
        await asyncio.wait({control}, timeout=THREAD_STOP_S)
        await asyncio.to_thread(self._delivery.stop, THREAD_STOP_S)
        await asyncio.to_thread(self._ingestion.stop, THREAD_STOP_S)
        admin.should_exit = True
        await asyncio.wait({admin_task}, timeout=5)
        await asyncio.to_thread(self._replica.close)
        if self._failure is None and admin_task.done() and admin_task.exception():
            self._failure = admin_task.exception()
        if control.done() and not control.cancelled() and control.exception():
            self._failure = self._failure or control.exception()
        if self._failure is not None:
            raise self._failure
        log.info("node_stopped", node=self._config.node)
        return ExitCode.FINE

    def stalled(self) -> str | None:
        """Which loop has stood still for too long."""
        now_ms = self._clock.monotonic_ms()
        for name, at_ms in (
            ("ingest", self._ingestion.progressed_ms),
            ("delivery", self._delivery.progressed_ms),
        ):
            if now_ms - at_ms > STALL_LIMIT_MS:
                return f"the {name} loop has stood still for {now_ms - at_ms} ms"
        return None

    def unready(self) -> str | None:
        """Why this node could not take over now."""
        newest = self._replica.newest
        if newest is None:
            return "no frontier has been read yet"
        if not newest.record.frontier.reached_by(self._replica.ingested):
            return "the wheel has not reached the frontier's offsets yet"
        return self.stalled()

    def leader(self) -> dict[str, Any]:
        """Who is master, as this node last learnt it."""
        return {
            "master": self._control.master_name,
            "self": self._delivery.is_delivering,
        }

    def status(self) -> dict[str, Any]:
        """The whole picture."""
        newest = self._replica.newest
        oldest = self._replica.oldest_cut
        frontier = newest.record.frontier if newest else None
        return {
            "node": self._config.node,
            "cluster": self._config.cluster,
            "version": __version__,
            "role": "master" if self._delivery.is_delivering else "follower",
            "delivering": self._delivery.is_delivering,
            "term": 0 if frontier is None else frontier.term,
            "election": self._control.state.value,
            "master": self._control.master_name,
            "lease_margin_ms": self._control.lease_margin_ms,
            "ready": self.unready() is None,
            "unready": self.unready(),
            "frontier": None
            if newest is None or frontier is None
            else {
                "step": frontier.step,
                "owner": newest.record.owner,
                "cursor_ms": frontier.lowest_cursor.due_ms,
                "offsets": frontier.offsets,
                "written_ms": newest.append_ms,
                "counts": asdict(newest.record.counts),
            },
            "oldest_cut": {
                "step": 0 if oldest is None else oldest.record.frontier.step,
                "append_ms": 0 if oldest is None else oldest.append_ms,
            },
            "ingested": self._replica.ingested,
            "ingested_count": self._replica.ingested_count,
            "delivered_count": self._delivery.delivered_count,
            "failing_targets": self._delivery.failing_targets,
            "log_ms": self._replica.log_ms,
            "wheel": asdict(self._replica.stats()),
            "checkpoint_age_ms": self._clock.monotonic_ms() - self._ingestion.checkpointed_ms,
            "uptime_ms": self._clock.monotonic_ms() - self._started_ms,
            "now_ms": self._clock.wall_ms(),
        }

    def known_id(self, id: str) -> dict[str, Any] | None:
        """What this node has ingested of an id, and what the newest frontier says of it."""
        partition = partition_of(id.encode(), self._settings.partitions)
        known = self._replica.know(partition, id)
        newest = self._replica.newest
        if known is None or newest is None:
            return None
        frontier = newest.record.frontier
        return {
            "id": id,
            "partition": partition,
            "live": [
                {
                    "source": source_of(partition, m.offset),
                    "due_ms": m.due_ms,
                    "done": frontier.covers(m.lane, Rank(m.due_ms, partition, m.offset)),
                }
                for m in known.state.live
            ],
            "killed": [
                {
                    "source": source_of(partition, m.offset),
                    "due_ms": m.due_ms,
                    "killed_by": source_of(
                        partition, known.state.killed_by if kill is None else kill.mark_offset
                    ),
                }
                for m, kill in zip(known.state.killed, known.kills, strict=True)
            ],
            "log_ms": self._replica.log_ms[partition],
            "frontier_step": frontier.step,
        }

    def begin_export(self) -> Export:
        """The next export of this node; ExportError while another one runs."""
        return self._exporter.begin()

    def _ingest_failed(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._fail, error)

    def _report(self, fact: DeliveryEnded | ThreadFailed) -> None:
        self._loop.call_soon_threadsafe(self._delivery_reported, fact)

    def _delivery_reported(self, fact: DeliveryEnded | ThreadFailed) -> None:
        if isinstance(fact, ThreadFailed):
            self._fail(fact.error)
            self._control.delivery_died()
        else:
            self._control.delivery_ended(fact)

    def _fail(self, error: BaseException) -> None:
        """A thread met what the node must not survive: resign and end."""
        if self._failure is None:
            self._failure = error
        code = error.code if isinstance(error, DelaydError) else type(error).__name__
        log.error("node_failed", code=code, error=str(error))
        reason = (
            ResignReason.DISK_FAILED
            if isinstance(error, DiskError)
            else ResignReason.DELIVERY_FAILED
        )
        self._control.fault(reason)
        self._ending.set()

    async def _watch_topics(self) -> None:
        """Look now and then whether the topics are still what the contract needs."""
        cluster = self._bus.cluster()
        with contextlib.closing(cluster):
            while True:
                await asyncio.sleep(TOPICS_CHECK_INTERVAL_S)
                try:
                    problems = await asyncio.to_thread(
                        check_topics, cluster, self._settings, THREAD_STOP_S * 1000
                    )
                except DelaydError as error:
                    log.warning("topics_not_checked", error=str(error))
                    continue
                if problems:
                    self._fail(TopicMismatchError("; ".join(problems)))
                    return


def newest_of(
    bus: Bus, replica: Replica, seen: SeenFrontier, timeout_ms: int, clock: Clock
) -> SeenFrontier:
    """The last committed frontier, once its log shows what this node knew before it was started.

    The commit marker of the step that the last checkpoint remembers may still be on its way.
    """
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while seen.record.frontier.step < replica.known_step and clock.monotonic_ms() < deadline_ms:
        threading.Event().wait(MARKER_POLL_S)
        again = last_frontier(bus, replica.settings.frontier.name, timeout_ms)
        seen = again or seen
    return seen


def check_positions(bus: Bus, replica: Replica, timeout_ms: int) -> None:
    """Does the buffer still hold what this replica has to read? BufferPositionError if not.

    A node with an empty disk may rebuild only from a buffer that still begins at its first record:
    a trimmed log cannot repeat old decisions. A position beyond the end means that the log lost
    records which this node has already acted on.
    """
    topic = replica.settings.buffer.name
    cluster = bus.cluster()
    with contextlib.closing(cluster):
        starts = cluster.start_offsets(topic, timeout_ms)
        ends = cluster.end_offsets(topic, timeout_ms, committed=False)
    for partition, position in replica.positions.items():
        if position.offset < starts[partition] <= replica.reached[partition]:
            # Only markers and aborted records were trimmed, and this node has passed them.
            replica.resume_at(partition, starts[partition])
        elif position.offset < starts[partition]:
            what = (
                "this node's disk is empty"
                if position.offset == 0
                else f"this node's checkpoint is at offset {position.offset}"
            )
            raise BufferPositionError(
                f"{what}, but {topic}/{partition} now begins at offset {starts[partition]}",
                remedy="what was trimmed cannot be ingested any more; copy the data directory of "
                "another node (stopped) to this one, and lengthen retention.ms if it was "
                "shortened",
            )
        if position.offset > ends[partition]:
            raise BufferPositionError(
                f"this node's checkpoint is at offset {position.offset} of {topic}/{partition}, "
                f"which ends at {ends[partition]}",
                remedy="the topic lost records or was created again: see docs/operations.md",
            )
