"""One node over Kafka in memory, whose every move a test makes."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from manual_clock import ManualClock

from delayd.bus import Ack, Headers, Record
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.murmur2 import partition_of
from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import create_topics, load_settings
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.errors import DelaydError
from delayd.node.delivery.commits.progress import ProgressCommit
from delayd.node.delivery.counters import StepCounters
from delayd.node.delivery.delivery_context import DeliveryContext, DeliveryOptions
from delayd.node.delivery.delivery_loop import DeliveryLoop
from delayd.node.delivery.mastership import Grant, Mastership
from delayd.node.delivery.standby import Standby
from delayd.node.delivery.step_sizing import StepSizing
from delayd.node.replica.replica import Replica
from delayd.node.targets.checks import Targets
from delayd.node.targets.quarantine import Quarantine
from delayd.node.targets.sparing import Sparing
from delayd.runtime.clock import Clock
from delayd.wheel.disk import Disk
from delayd.wheel.storage import Wheel
from replication.election_facts import Ended
from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE, RULES_VERSION, Settings

CLUSTER_KEY = "a key that is long enough"
TIMEOUT_MS = 1_000
FOREVER_MS = 10**15
T = TypeVar("T")


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; AssertionError after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        threading.Event().wait(0.005)


class InstantCondition(threading.Condition):
    """Nobody waits: who has nothing to do is asked again by the test."""

    def wait(self, timeout: float | None = None) -> bool:
        return False

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        return predicate()


def open_replica(
    folder: Path,
    settings: Settings,
    *,
    export_hold_ms: int = 0,
    disk_free_min_bytes: int = 0,
    disk: Disk | None = None,
) -> Replica:
    """A replica over the wheel in a folder."""
    with ExitStack() as unless_made:
        wheel = Wheel.open(folder, partitions=settings.partitions, disk=disk)
        unless_made.callback(wheel.close)
        made = Replica(
            wheel,
            settings,
            proof_key=CLUSTER_KEY.encode(),
            export_hold_ms=export_hold_ms,
            disk_free_min_bytes=disk_free_min_bytes,
        )
        unless_made.pop_all()
    return made


def request_parts(
    topic: str,
    due_ms: int,
    id: str | None,
    op: str | None,
    more: Iterable[tuple[str, bytes | None]] = (),
) -> tuple[bytes | None, Headers]:
    """Key and headers of a request."""
    headers: Headers = list(more)
    if op != "cancel":
        headers += [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % due_ms)]
    if op is not None:
        headers.append(("delayd-op", op.encode()))
    key = None if id is None else id.encode()
    return key, headers if key is None else [*headers, ("delayd-id", key)]


class DeliveryDesk:
    """A delivery thread over Kafka in memory, and what it reported; it runs once it is started."""

    def __init__(
        self,
        replica_folder: Path,
        clock: Clock,
        options: DeliveryOptions,
        *,
        partitions: int = 1,
        **of_replica: Any,
    ) -> None:
        self.kafka = MemoryKafka(clock)
        self.bus = MemoryBus(self.kafka, clock=clock)
        self.settings = create_topics(
            self.bus,
            cluster="c",
            cluster_key=CLUSTER_KEY,
            partitions=partitions,
            timeout_ms=TIMEOUT_MS,
        )
        self.replica = open_replica(replica_folder, self.settings, **of_replica)
        self.replica.observe(load_settings(self.bus, "c", "delayd-", TIMEOUT_MS))
        log = FrontierLog(self.bus, self.settings.frontier.name, 0)
        log.open(TIMEOUT_MS)
        self.reports: queue.Queue[Ended | BaseException] = queue.Queue()
        """How each delivery ended, and what the thread ended with."""
        self.delivery = DeliveryLoop(
            self.bus,
            self.replica,
            log,
            clock,
            options,
            lambda _, ended: self.reports.put(ended),
            self.reports.put,
        )

    def send(self, topic: str, due_ms: int, partition: int = 0) -> None:
        """Write a request."""
        headers: Headers = [("delayd-topic", topic.encode()), ("delayd-due", b"%d" % due_ms)]
        self.kafka.append("delayd-buffer", partition, None, b"v", headers)

    def stop(self) -> None:
        """End the thread, and release the wheel."""
        self.delivery.stop(10)
        self.replica.close()


class OneNode:
    """Replica and masterships; `failures` counts the steps that were lost."""

    def __init__(
        self,
        folder: Path,
        *targets: str,
        partitions: int = 1,
        retry_delays_ms: tuple[int, ...] = (10_000, 30_000),
        records_max: int = 10_000,
        guarantee: str = EXACTLY_ONCE,
        rates: Mapping[str, int] | None = None,
        rules_version: int = RULES_VERSION,
        cluster: str = "c",
    ) -> None:
        self.rates = rates or {}
        self.clock = ManualClock()
        self.kafka = MemoryKafka(self.clock)
        self.bus = MemoryBus(self.kafka, clock=self.clock)
        self.settings = create_topics(
            self.bus,
            cluster=cluster,
            cluster_key=CLUSTER_KEY,
            partitions=partitions,
            retry_delays_ms=retry_delays_ms,
            guarantee=guarantee,
            rules_version=rules_version,
        )
        self.etcd = MemoryCoordination(MemoryEtcd(self.clock), cluster)
        for target in targets:
            self.kafka.create_topic(target, 1, {"message.timestamp.type": "LogAppendTime"})
        self.quarantine = Quarantine()
        self.sparing = Sparing()
        self.counters = StepCounters()
        self.failures: Counter[str] = Counter()
        self.targets = Targets(
            self.bus.cluster(), self.clock, TIMEOUT_MS, anchor=self.settings.buffer.name
        )
        self.replica = open_replica(folder, self.settings)
        self.replica.changed = InstantCondition()
        self.replica.observe(load_settings(self.bus, cluster, "delayd-", TIMEOUT_MS))
        self._frontiers = FrontierLog(self.bus, self.settings.frontier.name, 0)
        self._frontiers.open(TIMEOUT_MS)
        self.consumer = self.bus.consumer(self.settings.buffer.name)
        self.consumer.assign(self.replica.positions)
        self.step_sizing = StepSizing(records_max, 16 * 1024 * 1024)
        self.passes_ms = 0
        """Time that passes at each turn of a loop in which the master waits."""
        self.grant = Grant("n/1", FOREVER_MS)
        self._mastership: Mastership | None = None

    def close(self) -> None:
        """Release the wheel."""
        if self._mastership is not None:
            self._mastership.close()
        self.replica.close()

    def ingest(self) -> None:
        """Take in all that is committed in the buffer."""
        self.replica.take(self.consumer.poll(10**6, 0))

    def lead(self) -> None:
        """Begin a mastership; whatever keeps it from its first step is raised."""
        self._mastership = self.new_mastership()
        assert self._mastership.take_over()

    def new_mastership(self) -> Mastership:
        """Return one that has not taken over yet."""
        commit = self._progress_commit() if self.settings.guarantee == AT_LEAST_ONCE else None
        return Mastership(self.delivery_context(), self.grant, commit)

    def delivery_context(self) -> DeliveryContext:
        """Return what its masterships share."""
        return DeliveryContext(
            standby=Standby(self.bus, self.settings, self.clock),
            replica=self.replica,
            frontier_log=self._frontiers,
            clock=self.clock,
            options=DeliveryOptions(
                idle_interval_ms=1_000, clock_drift_max_ms=500, rates=self.rates
            ),
            targets=self.targets,
            step_sizing=self.step_sizing,
            note_progress=self._turn,
            quarantine=self.quarantine,
            sparing=self.sparing,
            counters=self.counters,
        )

    def _progress_commit(self) -> ProgressCommit:
        """This node holds the leader key, unless somebody else does."""
        lease_id = self.etcd.grant_lease(10**9).id
        leadership = self.grant.leadership or self.etcd.campaign(0, self.grant.owner, lease_id)
        self.grant.leadership = leadership
        return ProgressCommit(self.bus, self.etcd, leadership, self._frontiers, self.clock)

    def _turn(self) -> None:
        self.ingest()
        self.clock.now_ms += self.passes_ms

    def smoothing_ms(self) -> dict[str, int]:
        """How far the last deferral of each topic with a rate is ahead."""
        assert self._mastership is not None, "only a master smooths"
        return self._mastership.smoothing.delays_ms(self.clock.wall_ms())

    def stop_leading(self) -> None:
        """End the mastership; the next step takes over again."""
        assert self._mastership is not None, "it leads"
        self._mastership.close()
        self._mastership = None

    def step(self) -> None:
        """One turn of the loop; after a failure the next one takes over again."""
        if self._mastership is None:
            self.lead()
        assert self._mastership is not None
        try:
            self._mastership.advance()
        except DelaydError as error:
            self.failures[error.code] += 1
            self._mastership.close()
            self._mastership = None
            self.targets.forget()

    def send(
        self,
        topic: str,
        due_ms: int = 0,
        *,
        id: str | None = None,
        op: str | None = None,
        partition: int = 0,
        value: bytes = b"v",
        more: Sequence[tuple[str, bytes]] = (),
    ) -> Ack:
        """Write a request; with an id in the partition where it belongs."""
        key, headers = request_parts(topic, due_ms, id, op, more)
        if key is not None:
            partition = partition_of(key, self.settings.partitions)
        return self.kafka.append(self.settings.buffer.name, partition, key, value, headers)

    def read(self, topic: str) -> list[Record]:
        """Committed records of a topic."""
        return [
            record
            for log in self.kafka.topics[topic].partitions
            for record in log.read(0, 10**9)[0]
        ]


Maker = Callable[..., OneNode]
"""From targets and options to a node."""


@contextmanager
def nodes_in(folder: Path) -> Iterator[Maker]:
    """Makes nodes with these targets, each in a folder of its own; closes them."""
    made: list[OneNode] = []

    def make_node(*targets: str, **options: object) -> OneNode:
        made.append(OneNode(folder / str(len(made)), *targets, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make_node
    for node in made:
        node.close()
