"""One node over Kafka in memory, whose every move its user makes: no thread, no election.

Replica, wheel and masterships are those of a real node; the wheel is a real one, in a folder.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import create_topics, load_settings
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.node.delivery.commits.progress import ProgressCommit
from delayd.node.delivery.counters import StepCounters
from delayd.node.delivery.delivery_context import DeliveryContext, DeliveryOptions
from delayd.node.delivery.grant import Grant
from delayd.node.delivery.mastership import Mastership
from delayd.node.delivery.standby import Standby
from delayd.node.delivery.step_sizing import StepSizing
from delayd.node.replica.replica import Replica
from delayd.node.targets.checks import Targets
from delayd.node.targets.quarantine import Quarantine
from delayd.node.targets.sparing import Sparing
from delayd.testing.clock import ManualClock
from delayd.wheel.disk import Disk
from delayd.wheel.storage import Wheel
from replication.settings import AT_LEAST_ONCE, Settings

CLUSTER_KEY: Final = "a key that is long enough"
TIMEOUT_MS: Final = 1_000
FOREVER_MS: Final = 10**15
RECORDS_MAX: Final = 10_000
BYTES_MAX: Final = 16 * 1024 * 1024
INGEST_MAX: Final = 10**6
TURNS_MAX: Final = 1_000_000
"""At one moment: more of them are a loop without an end."""

T = TypeVar("T")


class InstantCondition(threading.Condition):
    """Nobody waits: who has nothing to do is asked again by whoever moves the node."""

    waits = 0
    """How often somebody wanted to wait."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return at once."""
        self.waits += 1
        return False

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Return what holds now."""
        return predicate()


def open_replica(
    folder: Path,
    settings: Settings,
    *,
    export_hold_ms: int = 0,
    disk_free_min_bytes: int = 0,
    disk: Disk | None = None,
) -> Replica:
    """Return a replica over the wheel in a folder."""
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


class SteppedNode:
    """Replica and masterships. Not thread safe."""

    def __init__(
        self,
        folder: Path,
        clock: ManualClock,
        *,
        cluster: str = "c",
        records_max: int = RECORDS_MAX,
        rates: Mapping[str, int] | None = None,
        idle_interval_ms: int = 1_000,
        real_time: bool = False,
        **of_cluster: Any,
    ) -> None:
        """Make Kafka, the cluster's topics and the node. `folder`: its data, which may not exist.
        `real_time`: do polls of others really wait? `of_cluster`: options of `create_topics`."""
        self.rates = rates or {}
        self.clock = clock
        self.kafka = MemoryKafka(clock, real_time=real_time)
        self.bus = MemoryBus(self.kafka, clock=clock)
        self.settings = create_topics(
            self.bus, cluster=cluster, cluster_key=CLUSTER_KEY, **of_cluster
        )
        self.etcd = MemoryCoordination(MemoryEtcd(clock), cluster)
        self.quarantine = Quarantine()
        self.sparing = Sparing()
        self.counters = StepCounters()
        self.targets = Targets(
            self.bus.cluster(), clock, TIMEOUT_MS, anchor=self.settings.buffer.name
        )
        self.changed = InstantCondition()
        self.replica = open_replica(folder, self.settings)
        self.replica.changed = self.changed
        self.replica.observe(load_settings(self.bus, cluster, "delayd-", TIMEOUT_MS))
        self._frontiers = FrontierLog(self.bus, self.settings.frontier.name, 0)
        self._frontiers.open(TIMEOUT_MS)
        self.consumer = self.bus.consumer(self.settings.buffer.name)
        self.consumer.assign(self.replica.positions)
        self.step_sizing = StepSizing(records_max, BYTES_MAX)
        self.idle_interval_ms = idle_interval_ms
        self.grant = Grant("n/1", FOREVER_MS)
        self._mastership: Mastership | None = None

    def close(self) -> None:
        """Release the wheel."""
        if self._mastership is not None:
            self._mastership.close()
        self.replica.close()

    def turn(self) -> None:
        """Do what other threads would do while the master turns or waits."""
        self.ingest()

    def ingest(self) -> None:
        """Take in all that is committed in the buffer."""
        self.replica.take(self.consumer.poll(INGEST_MAX, 0))

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
                idle_interval_ms=self.idle_interval_ms, clock_drift_max_ms=500, rates=self.rates
            ),
            targets=self.targets,
            step_sizing=self.step_sizing,
            note_progress=self.turn,
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

    def step(self) -> None:
        """Carry out one turn of the loop. Raises what ends the mastership."""
        if self._mastership is None:
            self.lead()
        assert self._mastership is not None
        self._mastership.advance()

    def settle(self) -> int | None:
        """Do all that is to be done now. Return when something may be due next, Unix ms, which is
        later; None if nothing is known to be. Raises what ends the mastership."""
        for _ in range(TURNS_MAX):
            waits = self.changed.waits
            self.step()
            if self.changed.waits > waits:
                assert self._mastership is not None, "it leads"
                next_ms = self._mastership.next_due_ms()
                if next_ms is None or next_ms > self.clock.now_ms:
                    return next_ms
        raise AssertionError("there is no end to what is to be done at one moment")

    def observe(self) -> None:
        """Read the frontiers that were written since."""
        for seen in self._frontiers.poll(0):
            self.replica.observe(seen)
