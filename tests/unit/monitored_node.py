"""A node's parts without its election, over Kafka in memory: for the tests of what it says."""

import asyncio
import weakref
from contextlib import closing
from pathlib import Path

from httpx import ASGITransport, AsyncClient, Response
from one_node import CLUSTER_KEY, DeliveryDesk

from delayd.cluster.member_proof import MemberCheck, MemberKeys
from delayd.config.node import NodeConfig
from delayd.node.cancel_on.bridge import CancelBridge
from delayd.node.comparing.service import Comparisons
from delayd.node.delivery.deliveries import Deliveries
from delayd.node.delivery.delivery_context import DeliveryOptions
from delayd.node.election.heartbeat import Heartbeat
from delayd.node.export.exporter import Exporter
from delayd.node.ingest_watch import IngestWatch
from delayd.node.kafka_health import KafkaHealth
from delayd.node.monitoring.http import build_app
from delayd.node.monitoring.node_view import NodeView
from delayd.node.replica.ingest_loop import IngestLoop
from delayd.node.snapshots.donor import Donor
from delayd.runtime.clock import Clock
from delayd.wheel.disk import SystemDisk
from replication.election_facts import State

FREE_MIN_BYTES = 1_000


class Standing:
    """A node that has never taken part in an election."""

    state = State.FOLLOWER
    master_name: str | None = "somebody"
    lease_margin_ms: int | None = None
    won_count = 0
    found_dead_count = 0
    handed_over_count = 0
    ended: dict[str, int] = {}  # noqa: RUF012  # nobody changes it
    etcd_failures = 0
    etcd_problem: str | None = None
    heartbeat = Heartbeat("standing")


class Disk(SystemDisk):
    """As large as a test says."""

    free = 10**9

    def free_bytes(self, path: str) -> int:
        return self.free


class Desk(DeliveryDesk):
    """A node's parts without its election; threads run once they are started."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock = clock
        self.disk = Disk()
        super().__init__(
            folder / "wheel",
            clock,
            DeliveryOptions(idle_interval_ms=50, clock_drift_max_ms=500),
            partitions=2,
            export_hold_ms=600_000,
            disk_free_min_bytes=FREE_MIN_BYTES,
            disk=self.disk,
        )
        config = NodeConfig(
            bootstrap="nowhere:1",
            etcd=("http://nowhere:1",),
            cluster="c",
            cluster_key=CLUSTER_KEY,  # type: ignore[arg-type]
            data_dir=folder,
            disk_free_min_bytes=FREE_MIN_BYTES,
        )
        self.failures: list[BaseException] = []
        self.ingestion = IngestLoop(self.bus, self.replica, clock, 10, self.failures.append)
        self.watch = KafkaHealth(self.bus, self.settings, clock, lambda: self.replica.reached)
        self.hearing = IngestWatch(
            self.bus, "delayd-buffer", clock, lambda: self.ingestion.read_to, lambda: True
        )
        self.view = NodeView(
            config,
            clock,
            self.replica,
            self.ingestion,
            Deliveries([self.delivery], self.delivery.counters),
            Standing(),  # type: ignore[arg-type]
            Exporter(self.replica, clock, folder=folder / "exports", node="n"),
            self.watch,
            self.hearing,
            Donor(self.replica, clock, node="n", bytes_per_s=2**30),
            MemberCheck(MemberKeys(CLUSTER_KEY.encode(), "c"), "life", clock),
            Comparisons(
                self.replica,
                self.bus,
                dict,
                MemberKeys(CLUSTER_KEY.encode(), "c"),
                clock,
                node="n",
                interval_s=600,
                is_master=lambda: False,
                on_damage=self.failures.append,
            ),
            CancelBridge(self.bus, self.settings, (), clock, lambda: False),
        )
        # FastAPI remembers routes for ever: the wheel must not be among what they lead to.
        self._app = build_app(weakref.proxy(self.view))

    def start(self) -> None:
        self.ingestion.start()
        self.delivery.start()

    def stop(self) -> None:
        self.ingestion.stop(10)
        super().stop()

    def heard(self) -> tuple[int | None, ...]:
        with closing(self.bus.cluster()) as cluster:
            self.hearing.look(cluster)
        return self.hearing.unread

    def probe(self, path: str) -> tuple[int, str]:
        answer = self.get(path)
        return answer.status_code, answer.json().get("problem", "")

    def get(self, path: str) -> Response:
        return asyncio.run(self._get(path))

    def shows(self, metric: str, value: float) -> bool:
        lines = (line.rpartition(" ") for line in self.get("/metrics").text.splitlines())
        return any(name == metric and float(shown) == value for name, _, shown in lines)

    async def _get(self, path: str) -> Response:
        async with AsyncClient(transport=ASGITransport(self._app), base_url="http://n") as client:
            return await client.get(path)
