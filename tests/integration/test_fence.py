"""The fence, on a real broker: a master that lost its time cannot commit, whatever it believes.

One process holds two masterships over the same cluster, so that the first can be stopped at the
worst moment: everything is written, only the commit is missing.
"""

import contextlib
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from nodes import HANGS_S, wait_for
from topics_read import read_until

from delayd.bus import Bus, Cluster, Consumer, Producer, TransactionalProducer
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import load_settings
from delayd.dev.cluster import LocalCluster
from delayd.errors import FencedError
from delayd.node.delivery.delivery_context import DeliveryContext, DeliveryOptions
from delayd.node.delivery.mastership import Grant, HigherTermError, Mastership
from delayd.node.delivery.step_sizing import StepSizing
from delayd.node.replica.replica import Replica
from delayd.node.targets.checks import Targets
from delayd.runtime.clock import SystemClock
from delayd.wheel.storage import Wheel

pytestmark = pytest.mark.real

FOREVER_MS = 10**15


class HeldProducer:
    """A real transactional producer that waits, where its hold says so, until it is let go."""

    def __init__(self, real: TransactionalProducer, hold: "Hold") -> None:
        self._real = real
        self._hold = hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def init_transactions(self, timeout_ms: int) -> None:
        """Fence the predecessors, after the hold."""
        self._hold.pass_through(Point.INIT)
        self._real.init_transactions(timeout_ms)

    def commit(self, timeout_ms: int) -> None:
        """Commit, after the hold."""
        self._hold.pass_through(Point.COMMIT)
        self._real.commit(timeout_ms)


class Point(Enum):
    """Where a master can be stopped: just before the call."""

    INIT = "init_transactions"
    COMMIT = "commit"


class Hold:
    """Where a master is stopped."""

    def __init__(self, armed: Point | None = None) -> None:
        self.armed = armed
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def pass_through(self, point: Point) -> None:
        """Called by the producer before each of the calls."""
        if self.armed is point:
            self.reached.set()
            assert self.let_go.wait(60), f"nobody let {point.value} go"


class HoldingBus:
    """The real bus, but for the producers."""

    def __init__(self, real: Bus, hold: Hold) -> None:
        self._real = real
        self._hold = hold

    def consumer(self, topic: str) -> Consumer:
        """The real one."""
        return self._real.consumer(topic)

    def cluster(self) -> Cluster:
        """The real one."""
        return self._real.cluster()

    def transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """The real one, which waits where the hold says."""
        real = self._real.transactional_producer(transactional_id)
        held: Any = HeldProducer(real, self._hold)
        producer: TransactionalProducer = held
        return producer

    def idempotent_producer(self) -> Producer:
        """The real one."""
        return self._real.idempotent_producer()


class Master:
    """A replica of its own and one mastership over it, in a thread."""

    def __init__(self, cluster: TestCluster, name: str, bus: Bus) -> None:
        clock = SystemClock()
        seen = load_settings(bus, cluster.name, f"{cluster.name}-", 20_000)
        settings = seen.record.settings
        self.replica = Replica(
            Wheel.open(cluster.folder / name, partitions=settings.partitions),
            settings,
            proof_key=b"secret",
            export_hold_ms=60_000,
            disk_free_min_bytes=0,
        )
        self.grant = Grant(f"{name}/0", FOREVER_MS)
        self.error: BaseException | None = None
        self._consumer = bus.consumer(settings.buffer.name)
        self._consumer.assign(self.replica.positions)
        self._log = FrontierLog(bus, settings.frontier.name, 0)
        self._log.open(20_000)
        self._cluster = bus.cluster()
        context = DeliveryContext(
            bus=bus,
            replica=self.replica,
            frontier_log=self._log,
            clock=clock,
            options=DeliveryOptions(idle_interval_ms=500, clock_drift_max_ms=500),
            targets=Targets(self._cluster, clock, 10_000),
            step_sizing=StepSizing(records_max=1000, bytes_max=10**7),
            note_progress=lambda: None,
        )
        self.mastership = Mastership(context, self.grant)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def ingest(self, count: int) -> None:
        """Read the buffer until that many requests are in."""
        wait_for(self._ingested(count), HANGS_S, f"{count} requests are ingested")

    def start(self) -> None:
        """Take over, in the background."""
        self._thread.start()

    def end(self) -> None:
        """Withdraw the grant and wait for the thread."""
        self.grant.withdrawn = True
        with self.replica.changed:
            self.replica.changed.notify_all()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def close(self) -> None:
        """Give everything back."""
        self._consumer.close()
        self._log.close()
        self._cluster.close()
        self.replica.close()

    def _ingested(self, count: int) -> Any:
        def look() -> bool:
            self.replica.take(self._consumer.poll(500, 50))
            return self.replica.ingested_count >= count

        return look

    def _run(self) -> None:
        try:
            self.mastership.run()
        except BaseException as error:
            self.error = error
        finally:
            self.mastership.close()


@pytest.fixture
def cluster(kafka_and_etcd: LocalCluster, tmp_path: Path) -> Iterator[TestCluster]:
    """A delayd cluster without nodes."""
    yield make_cluster(kafka_and_etcd, tmp_path)


def test_a_master_stopped_before_its_commit_is_fenced_by_its_successor(
    cluster: TestCluster,
) -> None:
    """Source: docs/design/frontier.md, "Fence" and "Takeover"."""
    count = 200
    target = cluster.target("a")
    with cluster.client() as client:
        for number in range(count):
            client.schedule_async(target, b"m%d" % number, at=0)
        client.flush()
    hold = Hold()
    real = ConfluentBus(cluster.bootstrap)
    first = Master(cluster, "first", HoldingBus(real, hold))
    second = Master(cluster, "second", real)
    with contextlib.closing(first), contextlib.closing(second):
        first.start()
        wait_for(lambda: first.mastership.is_delivering, HANGS_S, "the first has taken over")
        hold.armed = Point.COMMIT
        first.ingest(count)
        assert hold.reached.wait(20), "the first stands before its commit"
        # Its records are in the target's log now, uncommitted. The successor takes over.
        second.ingest(count)
        second.start()
        wait_for(
            lambda: second.mastership.delivered_count == count, HANGS_S, "the second delivered"
        )
        hold.let_go.set()
        first.end()
        assert isinstance(first.error, FencedError), first.error
        second.end()
        assert second.error is None
    seen = read_until(cluster.bootstrap, target, lambda seen: len(seen) > count, timeout_s=3)
    assert sorted(record.value or b"" for record in seen) == sorted(
        b"m%d" % number for number in range(count)
    )
    newest = second.replica.newest
    assert newest is not None and newest.record.frontier.term == 2


def test_what_was_committed_before_the_fence_is_not_repeated(cluster: TestCluster) -> None:
    """The successor has won and is about to fence when the predecessor commits once more: the
    frontier that counts is the one that is read after the fence.

    Source: docs/design/frontier.md, "Takeover".
    """
    count = 200
    target = cluster.target("a")
    with cluster.client() as client:
        for number in range(count):
            client.schedule_async(target, b"m%d" % number, at=0)
        client.flush()
    hold = Hold(Point.INIT)
    real = ConfluentBus(cluster.bootstrap)
    first = Master(cluster, "first", real)
    second = Master(cluster, "second", HoldingBus(real, hold))
    with contextlib.closing(first), contextlib.closing(second):
        second.ingest(count)
        second.start()
        assert hold.reached.wait(20), "the second stands before its fence"
        first.start()
        first.ingest(count)
        wait_for(lambda: first.mastership.delivered_count == count, HANGS_S, "the first delivered")
        hold.let_go.set()
        wait_for(lambda: second.mastership.is_delivering, HANGS_S, "the second has taken over")
        wait_for(lambda: first.error is not None, HANGS_S, "the first notices at its next step")
        assert isinstance(first.error, FencedError | HigherTermError), first.error
        second.end()
        assert second.error is None and second.mastership.delivered_count == 0
    seen = read_until(cluster.bootstrap, target, lambda seen: len(seen) > count, timeout_s=3)
    assert len(seen) == count
