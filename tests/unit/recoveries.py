"""A cluster over Kafka in memory whose frontier topic is lost, and what recovers it."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from moves import Kill, KillableBus, MovingClock
from one_node import CLUSTER_KEY, TIMEOUT_MS, InstantCondition, Maker, OneNode, open_replica

from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import load_settings
from delayd.commands.move.source import Source
from delayd.commands.recover.frontier.recovering import Recovered, Recovery, planned, run
from delayd.errors import DelaydError
from delayd.wheel.stopped import locked, open_stopped

MINUTE_MS = 60_000


def silent(what: str, done: int, total: int) -> None:
    """Nobody looks."""


@dataclass(slots=True)
class Lost:
    """A cluster of one node, whose frontier topic is lost or will be."""

    node: OneNode
    folder: Path

    def send(self, value: str, in_ms: int, *, id: str | None = None, op: str | None = None,
             topic: str = "orders", partition: int = 0) -> str:  # fmt: skip
        """A request that is due then; return its source."""
        due_ms = self.node.clock.now_ms + in_ms
        ack = self.node.send(topic, due_ms, id=id, op=op, value=value.encode(), partition=partition)
        return f"{ack.partition}/{ack.offset}"

    def go_on(self, ms: int, steps: int = 3) -> None:
        """Time passes, and the master delivers what is due."""
        self.node.ingest()
        self.node.clock.now_ms += ms
        for _ in range(steps):
            try:
                self.node.step()
            except DelaydError:  # Of a takeover: the next step takes over again.
                self.node.stop_leading()
            self.node.ingest()

    def checkpoint(self) -> None:
        """What a stopped node would know."""
        self.node.ingest()
        self.node.replica.checkpoint()

    def stop(self) -> None:
        """Kill the node."""
        self.node.stop_leading()
        self.node.replica.close()

    def die(self) -> None:
        """Kill the node, wherever it is."""
        if self.node._mastership is not None:
            self.stop()
        else:
            self.node.replica.close()

    def lose(self, shard: int | None = None) -> None:
        """Delete the frontier topic, or empty a shard's partition of it."""
        if shard is not None:
            self.node.kafka.topics["delayd-frontier"].partitions[shard].truncate(0)
            return
        self.node.kafka.delete_topic("delayd-frontier")

    def recover(self, *, is_dry: bool = False, kill: Kill | None = None,
                takes_doubles: bool = False, stopped_ms: int | None = None,
                cluster: str = "c", folder: Path | None = None,
                shards: int | None = None) -> Recovered:  # fmt: skip
        """One run of the command."""
        clock = MovingClock(self.node)
        with locked(folder or self.folder) as layout, open_stopped(layout) as wheel:
            recovery = Recovery(
                bus=KillableBus(self.node.kafka, kill or Kill()),
                coordination=self.node.etcd,
                cluster=cluster,
                prefix="delayd-",
                proof_key=CLUSTER_KEY.encode(),
                stopped_ms=clock.wall_ms() if stopped_ms is None else stopped_ms,
                takes_doubles=takes_doubles,
                clock=clock,
                shards=shards,
                timeout_ms=TIMEOUT_MS,
            )
            return (planned if is_dry else run)(recovery, Source(wheel), silent)

    def start(self) -> None:
        """Start the node again on its wheel."""
        node = self.node
        seen = load_settings(node.bus, "c", "delayd-", TIMEOUT_MS)
        node.settings = seen.record.settings
        node.replica = open_replica(self.folder, node.settings)
        node.replica.changed = InstantCondition()
        node.replica.observe(seen)
        node._frontiers = FrontierLog(node.bus, node.settings.frontier.name, 0)
        node._frontiers.open(TIMEOUT_MS)
        node.consumer = node.bus.consumer(node.settings.buffer.name)
        node.consumer.assign(node.replica.positions)

    def arrived(self, topic: str = "orders") -> Counter[str]:
        """How often each value is in a target."""
        return Counter((record.value or b"").decode() for record in self.node.read(topic))


def cluster_in(folder: Path, make: Maker, **options: object) -> Lost:
    """A cluster that has delivered something some minutes ago, so that its targets are no news."""
    node = make("orders", "other", **{"partitions": 2, **options})
    lost = Lost(node, folder / "0")
    lost.node.lead()
    for topic in ("orders", "other"):
        lost.send("first", 0, topic=topic)
    lost.go_on(1_000)
    lost.go_on(5 * MINUTE_MS)
    lost.checkpoint()
    return lost
