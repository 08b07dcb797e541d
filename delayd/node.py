"""A node: where the adapters meet. Starts everything in order, and stops it in order.

Start: topics and settings are checked, the wheel is opened (crash recovery), positions are checked
against the buffer, then the threads run and the node takes part in the election. SIGTERM: finish
the step, resign, revoke the lease, checkpoint, exit 0. A fatal error (disk, corruption, a broken
frontier): stop, resign, say why, exit 1.
"""

import asyncio
import secrets
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from delayd.admin.http import AdminServer, NodeView
from delayd.bus import Bus
from delayd.bus.confluent import ConfluentBus
from delayd.clock import Clock, SystemClock
from delayd.cluster_key import check_key, proof_key
from delayd.collector import tune_collector
from delayd.commits import StepCommit
from delayd.commits.progress import ProgressCommit
from delayd.config import NodeConfig
from delayd.control import Control, Identity
from delayd.coordination import Coordination
from delayd.coordination.etcd import EtcdCoordination
from delayd.delivery import Delivery, DeliveryEnded, ThreadFailed
from delayd.errors import DelaydError, DiskError, ExitCode, TopicMismatchError
from delayd.export.exporter import Exporter
from delayd.frontier_log import FrontierLog, SeenFrontier
from delayd.ingestion import Ingestion
from delayd.kafka_watch import KafkaWatch
from delayd.lookup import admin_ports, known_of_id, pending_of
from delayd.mastership import Grant
from delayd.pace import Pace
from delayd.picture import Picture
from delayd.replica import Replica
from delayd.security import Security
from delayd.starting import check_guarantee, check_positions, check_rates, newest_of
from delayd.status import status_report
from delayd.threads import SystemThreads, Threads
from delayd.topics import (
    RECORD_MARGIN_BYTES,
    load_settings,
    topic_names,
)
from delayd.wheel.layout import Layout
from delayd.wheel.scratch import remove_scratch
from delayd.wheel.storage import Wheel
from replication.election import Election
from replication.election_facts import ResignReason
from replication.settings import AT_LEAST_ONCE

log = structlog.get_logger()

THREAD_STOP_S = 20

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


def open_coordination(
    endpoints: Sequence[str], cluster: str, security: Security
) -> EtcdCoordination:
    """The door to etcd. ConfigError if endpoints and security contradict each other."""
    password = security.etcd_password
    return EtcdCoordination(
        endpoints,
        cluster,
        timeout_ms=ETCD_TIMEOUT_MS,
        ca_file=_text(security.etcd_ca_file),
        cert_file=_text(security.etcd_cert_file),
        key_file=_text(security.etcd_key_file),
        user=security.etcd_user,
        password=None if password is None else password.get_secret_value(),
    )


def _text(file: Path | None) -> str | None:
    return None if file is None else str(file)


def cluster_status(
    bootstrap: str,
    etcd: Sequence[str],
    security: Security,
    *,
    cluster: str,
    prefix: str,
    timeout_ms: int,
) -> dict[str, Any]:
    """What `delayd status` shows; without etcd endpoints only what Kafka knows."""
    coordination = open_coordination(etcd, cluster, security) if etcd else None
    try:
        return status_report(
            open_bus(bootstrap, security.properties()),
            coordination,
            SystemClock(),
            cluster=cluster,
            prefix=prefix,
            timeout_ms=timeout_ms,
        )
    finally:
        if coordination is not None:
            coordination.close()


def cluster_members(
    etcd: Sequence[str], cluster: str, security: Security, timeout_ms: int
) -> dict[str, str]:
    """The nodes that etcd knows now: name to JSON with `admin`. Raises EtcdUnreachableError."""
    coordination = open_coordination(etcd, cluster, security)
    try:
        coordination.check_reachable(timeout_ms)
        return coordination.members()
    finally:
        coordination.close()


def look_up_id(
    id: str,
    bootstrap: str,
    security: Security,
    *,
    etcd: Sequence[str],
    admin: str | None,
    cluster: str,
    prefix: str,
    timeout_ms: int,
) -> dict[str, Any] | None:
    """What `delayd show` shows; nodes are found through etcd unless one is named."""
    return known_of_id(
        id,
        open_bus(bootstrap, security.properties()),
        _nodes_to_ask(security, etcd, admin, cluster),
        SystemClock(),
        buffer=topic_names(prefix).buffer,
        timeout_ms=timeout_ms,
    )


def look_up_pending(
    security: Security, *, etcd: Sequence[str], admin: str | None, cluster: str
) -> dict[str, Any]:
    """What `delayd pending` shows; nodes are found through etcd unless one is named."""
    return pending_of(_nodes_to_ask(security, etcd, admin, cluster))


def _nodes_to_ask(
    security: Security, etcd: Sequence[str], admin: str | None, cluster: str
) -> tuple[str, ...]:
    coordination = open_coordination(etcd, cluster, security) if etcd else None
    try:
        return admin_ports(coordination, admin)
    finally:
        if coordination is not None:
            coordination.close()


class Admin(Protocol):
    """The admin port, as far as a node turns it on and off."""

    should_exit: bool
    """Set to end `serve`."""

    async def serve(self) -> None:
        """Answer until told to end."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that a node touches: a machine, a network, the brokers, etcd. The simulator has its own.

    What is not here is the node's alone: LevelDB and the exports, on the disk of the wheel.
    """

    clock: Clock
    coordination: Coordination
    open_bus: Callable[[int | None], Bus]
    """The brokers, given the largest record that must be produced, if it is known."""
    open_admin: Callable[[NodeView], Admin]
    open_wheel: Callable[[Path, int], Wheel]
    """The wheel in a folder, for so many partitions."""
    threads: Threads
    new_nonce: Callable[[], str]
    """Another one at every call: it tells the lives of a node apart."""


async def run_node(config: NodeConfig, clock: Clock | None = None) -> ExitCode:
    """Be a node until SIGTERM, SIGINT or a fatal error. Raises DelaydError if it cannot start."""
    tune_collector()
    coordination = open_coordination(config.etcd, config.cluster, config.security)
    token = None if config.export_token is None else config.export_token.get_secret_value()
    surroundings = Surroundings(
        clock=clock or SystemClock(),
        coordination=coordination,
        open_bus=lambda largest: open_bus(
            config.bootstrap, config.security.properties(), largest, config.driver
        ),
        open_admin=lambda view: AdminServer(view, config.admin_host, config.admin_port, token),
        open_wheel=lambda folder, partitions: Wheel.open(folder, partitions=partitions),
        threads=SystemThreads(),
        new_nonce=lambda: secrets.token_hex(8),
    )
    try:
        bus = surroundings.open_bus(None)
        await asyncio.to_thread(coordination.check_reachable, int(config.connect_timeout_s * 1000))
        return await run_node_in(surroundings, config, bus)
    finally:
        coordination.close()


async def run_node_in(surroundings: Surroundings, config: NodeConfig, bus: Bus) -> ExitCode:
    """As `run_node`, once etcd is known to be there."""
    timeout_ms = int(config.connect_timeout_s * 1000)
    seen = await asyncio.to_thread(load_settings, bus, config.cluster, config.prefix, timeout_ms)
    check_key(config.cluster_key.get_secret_value(), seen.record.settings)
    check_guarantee(config, seen.record.settings)
    check_rates(config, seen.record.settings)
    # What the cluster accepts decides what its producers must be able to write.
    largest = seen.record.settings.record_bytes_max + RECORD_MARGIN_BYTES
    return await Node(config, surroundings, surroundings.open_bus(largest), seen).run()


class Node:
    """One running node."""

    def __init__(
        self, config: NodeConfig, surroundings: Surroundings, bus: Bus, seen: SeenFrontier
    ) -> None:
        clock, threads = surroundings.clock, surroundings.threads
        self._config = config
        self._surroundings = surroundings
        self._clock = clock
        self._bus = bus
        self._settings = seen.record.settings
        self._loop = asyncio.get_running_loop()
        self._failure: BaseException | None = None
        self._ending = asyncio.Event()
        timeout_ms = int(config.connect_timeout_s * 1000)
        wheel = surroundings.open_wheel(config.data_dir, self._settings.partitions)
        try:
            self._replica = Replica(
                wheel,
                self._settings,
                proof_key=proof_key(config.cluster_key.get_secret_value()),
                export_hold_ms=int(config.export_hold_s * 1000),
                disk_free_min_bytes=config.disk_free_min_bytes,
                threads=threads,
            )
            check_positions(bus, self._replica, timeout_ms)
            seen = newest_of(bus, self._replica, seen, timeout_ms, clock, threads)
            self._replica.observe(seen)
            remove_scratch(Layout(str(config.data_dir)))
            self._exporter = Exporter(
                self._replica, clock, folder=config.data_dir / "exports", node=config.node
            )
        except BaseException:
            wheel.close()
            raise
        frontier_log = FrontierLog(bus, self._settings.frontier.name, 0)
        frontier_log.open(timeout_ms)
        self._ingestion = Ingestion(
            bus, self._replica, clock, config.checkpoint_interval_ms, self._ingest_failed, threads
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
            rates=config.rate_max,
            commit_for=self._progress_commit if self._settings.guarantee == AT_LEAST_ONCE else None,
            threads=threads,
        )
        self._frontier_log = frontier_log
        identity = Identity(
            node=config.node,
            nonce=surroundings.new_nonce(),
            admin=config.admin_address,
        )
        self._control = Control(
            surroundings.coordination,
            Election(identity.nonce, config.election_times),
            self._delivery,
            self._replica,
            clock,
            identity,
        )
        self._kafka_watch = KafkaWatch(bus, self._settings)
        self._picture = Picture(
            config,
            clock,
            self._replica,
            self._ingestion,
            self._delivery,
            self._control,
            self._exporter,
            self._kafka_watch,
        )

    async def run(self) -> ExitCode:
        """Turn until told to stop; returns FINE, or raises what ended it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ending.set)
        admin = self._surroundings.open_admin(self._picture)
        admin_task = asyncio.create_task(admin.serve())
        self._ingestion.start()
        self._delivery.start()
        control = asyncio.create_task(self._control.run())
        watch = asyncio.create_task(self._watch_kafka())
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

    def _progress_commit(self, grant: Grant) -> StepCommit:
        """How steps become true without transactions."""
        assert grant.leadership is not None, "a grant comes with a leader key"
        return ProgressCommit(
            self._bus,
            self._surroundings.coordination,
            grant.leadership,
            self._frontier_log,
            self._clock,
        )

    async def _watch_kafka(self) -> None:
        """What is missing there ends the node."""
        self._fail(TopicMismatchError("; ".join(await self._kafka_watch.run())))
