"""The fence, on a real broker: a master that lost its time cannot commit, whatever it believes.

One process holds two masterships over the same cluster, so that the first can be stopped at the
worst moment: everything is written, only the commit is missing.
"""

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from nodes import HANGS_S, wait_for
from topics_read import all_of

from delayd.bus import Bus, TransactionalProducer
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import load_settings
from delayd.dev.cluster import LocalCluster
from delayd.errors import FencedError
from delayd.node.delivery.delivery_context import DeliveryContext, DeliveryOptions
from delayd.node.delivery.grant import Grant
from delayd.node.delivery.mastership import HigherTermError, Mastership
from delayd.node.delivery.standby import Standby
from delayd.node.delivery.step_sizing import StepSizing
from delayd.node.replica.replica import Replica
from delayd.node.targets.checks import Targets
from delayd.runtime.clock import SystemClock
from delayd.wheel.storage import Wheel

pytestmark = pytest.mark.real

FOREVER_MS = 10**15
COUNT = 200


class HeldProducer:
    """A real transactional producer that waits before the call that its hold names."""

    def __init__(self, real: TransactionalProducer, hold: "Hold") -> None:
        self._real = real
        self._hold = hold

    def __getattr__(self, name: str) -> Any:
        if name == self._hold.armed:
            self._hold.reached.set()
            assert self._hold.let_go.wait(HANGS_S), f"nobody let {name} go"
        return getattr(self._real, name)


class Hold:
    """The call of its producer before which a master is stopped, if it is armed."""

    def __init__(self, armed: str | None = None) -> None:
        self.armed = armed
        self.reached = threading.Event()
        self.let_go = threading.Event()


class HoldingBus(ConfluentBus):
    """The real bus, whose transactional producers wait where the hold says."""

    def __init__(self, bootstrap: str, hold: Hold) -> None:
        super().__init__(bootstrap)
        self._hold = hold

    def transactional_producer(self, transactional_id: str) -> Any:
        """The real one, held."""
        return HeldProducer(super().transactional_producer(transactional_id), self._hold)


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
            standby=Standby(bus, settings, clock),
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

        def is_ingested() -> bool:
            self.replica.take(self._consumer.poll(500, 50))
            return self.replica.ingested_count >= count

        wait_for(is_ingested, f"{count} requests are ingested")

    def start(self) -> None:
        """Take over, in the background."""
        self._thread.start()

    def end(self) -> None:
        """Withdraw the grant and wait for the thread."""
        self.grant.withdrawn = True
        with self.replica.changed:
            self.replica.changed.notify_all()
        self._thread.join(HANGS_S)
        assert not self._thread.is_alive()

    def close(self) -> None:
        """Give everything back."""
        self._consumer.close()
        self._log.close()
        self._cluster.close()
        self.replica.close()

    def _run(self) -> None:
        try:
            self.mastership.run()
        except BaseException as error:
            self.error = error
        finally:
            self.mastership.close()


@pytest.fixture
def cluster(kafka_and_etcd: LocalCluster, tmp_path: Path) -> TestCluster:
    """A delayd cluster without nodes, in whose buffer are `COUNT` messages that are due."""
    made = make_cluster(kafka_and_etcd, tmp_path)
    target = made.target("a")
    with made.client() as client:
        for number in range(COUNT):
            client.schedule_async(target, b"m%d" % number, at=0)
        client.flush()
    return made


def delivered(cluster: TestCluster) -> list[bytes]:
    """Return the values of what is delivered, in order."""
    found = all_of(cluster.bootstrap, f"target.{cluster.name}.a", 4)
    return sorted(record.value or b"" for record in found)


def test_a_master_stopped_before_its_commit_is_fenced_by_its_successor(
    cluster: TestCluster,
) -> None:
    """Source: docs/design/frontier.md, "Fence" and "Takeover"."""
    hold = Hold()
    first = Master(cluster, "first", HoldingBus(cluster.bootstrap, hold))
    second = Master(cluster, "second", ConfluentBus(cluster.bootstrap))
    with contextlib.closing(first), contextlib.closing(second):
        first.start()
        wait_for(lambda: first.mastership.is_delivering, "the first has taken over")
        hold.armed = "commit"
        first.ingest(COUNT)
        assert hold.reached.wait(HANGS_S), "the first stands before its commit"
        # Its records are in the target's log now, uncommitted. The successor takes over.
        second.ingest(COUNT)
        second.start()
        wait_for(lambda: second.mastership.delivered_count == COUNT, "the second delivered")
        hold.let_go.set()
        first.end()
        assert isinstance(first.error, FencedError), first.error
        second.end()
        assert second.error is None
    assert delivered(cluster) == sorted(b"m%d" % number for number in range(COUNT))
    newest = second.replica.newest
    assert newest is not None and newest.record.frontier.term == 2


def test_what_was_committed_before_the_fence_is_not_repeated(cluster: TestCluster) -> None:
    """The successor has won and is about to fence when the predecessor commits once more: the
    frontier that counts is the one that is read after the fence.

    Source: docs/design/frontier.md, "Takeover".
    """
    hold = Hold("init_transactions")
    first = Master(cluster, "first", ConfluentBus(cluster.bootstrap))
    second = Master(cluster, "second", HoldingBus(cluster.bootstrap, hold))
    with contextlib.closing(first), contextlib.closing(second):
        second.ingest(COUNT)
        second.start()
        assert hold.reached.wait(HANGS_S), "the second stands before its fence"
        first.start()
        first.ingest(COUNT)
        wait_for(lambda: first.mastership.delivered_count == COUNT, "the first delivered")
        hold.let_go.set()
        wait_for(lambda: second.mastership.is_delivering, "the second has taken over")
        wait_for(lambda: first.error is not None, "the first notices at its next step")
        assert isinstance(first.error, FencedError | HigherTermError), first.error
        second.end()
        assert second.error is None and second.mastership.delivered_count == 0
    assert delivered(cluster) == sorted(b"m%d" % number for number in range(COUNT))
