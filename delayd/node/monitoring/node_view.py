"""A running node as the admin port, people and dashboards see it.

It only reads, from whatever thread asks, and decides nothing. Each part is true when it is read,
and parts may be of different moments.
"""

import resource
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from delayd import __version__
from delayd.bus.murmur2 import partition_of
from delayd.cluster.member_proof import MemberCheck
from delayd.config.node import NodeConfig
from delayd.node.cancel_on.bridge import CancelBridge
from delayd.node.comparing.service import Comparisons
from delayd.node.delivery.counters import LATENESS_BOUNDS_MS
from delayd.node.delivery.deliveries import Deliveries
from delayd.node.election.elections import Elections
from delayd.node.export.exporter import Export, Exporter
from delayd.node.ingest_watch import IngestWatch
from delayd.node.kafka_health import KafkaHealth
from delayd.node.replica.ingest_loop import IngestLoop
from delayd.node.replica.replica import Replica
from delayd.node.snapshots.donor import Donor
from delayd.request import source_of
from delayd.request.recurrence.zones import TZDATA_VERSION
from delayd.runtime import native
from delayd.runtime.clock import Clock
from delayd.wheel.layout import HOUR_SLOTS
from replication.frontier import Frontier
from replication.ids import KilledMessage, Reservation, Settlement
from replication.quotas import Quota
from replication.rank import SLOT_MS, Rank, slot_of

STALL_LIMIT_MS = 30_000
"""A loop without a sign of life for this long makes /livez fail."""

LATE_MS = 1_000
LATE_BUCKET = LATENESS_BOUNDS_MS.index(LATE_MS) + 1
"""The first one of a lateness above LATE_MS."""

CHECKPOINT_LATE_MS = 10_000
"""A disk that takes no checkpoint for this long beyond its time makes /readyz fail: before the
ingest loop, which waits for it, makes /livez fail too."""


class NodeView:
    """One running node, seen from outside. Every call is cheap and holds no lock for long.

    Metrics read the parts themselves: no lock is taken for any of them.
    """

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        replica: Replica,
        ingestion: IngestLoop,
        delivery: Deliveries,
        control: Elections,
        exporter: Exporter,
        kafka_health: KafkaHealth,
        ingest_watch: IngestWatch,
        donor: Donor,
        members: MemberCheck,
        comparisons: Comparisons,
        cancel_bridge: CancelBridge,
        start_told: str | None = None,
    ) -> None:
        """`start_told`: how the node chose between a replay and a copy, if it had to."""
        self.config = config
        self.clock = clock
        self.replica = replica
        self.ingestion = ingestion
        self.delivery = delivery
        self.control = control
        self.exporter = exporter
        self.kafka_health = kafka_health
        self.ingest_watch = ingest_watch
        self.donor = donor
        self.members = members
        self.comparisons = comparisons
        self.cancel_bridge = cancel_bridge
        self.start_told = start_told
        self._started_ms = clock.monotonic_ms()

    @property
    def frontier(self) -> Frontier | None:
        """The newest frontier that this node has read."""
        newest = self.replica.newest
        return None if newest is None else newest.record.frontier

    @property
    def role(self) -> str:
        """Master if it delivers, else follower."""
        return "master" if self.delivery.is_delivering else "follower"

    def stalled(self) -> str | None:
        """Return which loop has stood still for too long, or None."""
        for name, age_ms in self.loop_ages_ms().items():
            if age_ms > STALL_LIMIT_MS:
                return f"the {name} loop has stood still for {age_ms} ms"
        return None

    def unready(self) -> str | None:
        """Return why the node could not take over now, or None."""
        newest = self.replica.newest
        if newest is None:
            return "no frontier has been read yet"
        if not newest.record.frontier.reached_by(self.replica.ingested):
            return "the wheel has not reached the frontier's offsets yet"
        return self._disk_problem() or self.stalled() or self.ingest_watch.problem

    @property
    def kafka_problem(self) -> str | None:
        """Why Kafka does not answer this node, or refuses it; None if it answers."""
        return self.kafka_health.problem or self.ingest_watch.unanswered

    def _disk_problem(self) -> str | None:
        """Return why the disk could not be relied on, or None."""
        age_ms = self.checkpoint_age_ms()
        if age_ms > self.config.checkpoint_interval_ms + CHECKPOINT_LATE_MS:
            return f"the disk has taken no checkpoint for {age_ms} ms"
        room = self.replica.room
        if not room.may_split:
            return (
                f"the disk is full: {room.free_bytes} bytes are free, disk_free_min_bytes is "
                f"{room.limit_bytes}"
            )
        return None

    def loop_ages_ms(self) -> dict[str, int]:
        """Return how long ago each loop gave a sign of life."""
        now_ms = self.clock.monotonic_ms()
        return {
            "ingest": now_ms - self.ingestion.progressed_ms,
            "delivery": now_ms - self.delivery.progressed_ms,
        }

    def checkpoint_age_ms(self) -> int:
        """Return how long ago the last checkpoint was durable."""
        return self.clock.monotonic_ms() - self.ingestion.checkpointed_ms

    def delivery_lag_ms(self) -> int:
        """Return how far the cursor of the newest frontier is behind this node's clock."""
        newest, now_ms = self.replica.newest, self.clock.wall_ms()
        if newest is None:
            return 0
        # Before its first step a cluster has delivered nothing since it was made.
        reached_ms = newest.record.frontier.lowest_cursor.due_ms or newest.append_ms
        return max(0, now_ms - reached_ms)

    @property
    def shards(self) -> int:
        """How many the cluster has."""
        return self.replica.settings.shards

    def shard_lags_ms(self) -> list[int]:
        """Return the same of each shard; nothing while no frontier has been read."""
        newest, now_ms = self.replica.newest, self.clock.wall_ms()
        if newest is None:
            return []
        frontier = newest.record.frontier
        cursors = [frontier.cursors_of(shard) for shard in range(frontier.shards)]
        reached_ms = [min(each).due_ms or newest.append_ms for each in cursors]
        return [max(0, now_ms - each_ms) for each_ms in reached_ms]

    def log_ahead_ms(self) -> int:
        """Return how far the buffer's times are ahead of this node's clock; 0 if they are not."""
        return max(0, self.replica.newest_append_ms - self.clock.wall_ms())

    def late_count(self) -> int:
        """Return how many messages this process delivered more than LATE_MS late."""
        histograms = [*self.delivery.counters.lateness.values()]
        return sum(sum(each.counts[LATE_BUCKET:]) for each in histograms)

    def due_soon(self, slots: int) -> list[int]:
        """Return how many messages are due in each of so many seconds from the next one on, as far
        as they are in their slots (`PendingCounts.due_in`). Takes no lock."""
        first = slot_of(self.clock.wall_ms()) + 1
        return [self.replica.wheel.counts.due_in(slot) for slot in range(first, first + slots)]

    def leader(self) -> dict[str, Any]:
        """Return {"master": name or None, "self": bool, "shards": [those that it delivers]}, as
        this node last learnt it. Of several shards it names the master of the first."""
        led = self.delivery.led
        return {"master": self.control.master_name, "self": bool(led), "shards": led}

    def status(self) -> dict[str, Any]:
        """Return everything that people ask about."""
        frontier = self.frontier
        return {
            "node": self.config.node,
            "cluster": self.config.cluster,
            "version": __version__,
            "tzdata": TZDATA_VERSION,
            "path": native.described,
            "role": self.role,
            "delivering": self.delivery.is_delivering,
            "term": 0 if frontier is None else frontier.term,
            "election": self.control.state.value,
            "master": self.control.master_name,
            "lease_margin_ms": self.control.lease_margin_ms,
            "ready": self.unready() is None,
            "unready": self.unready(),
            "frontier": self._shown_frontier(),
            "oldest_cut": self._shown_oldest_cut(),
            "start": self.start_told,
            "rebuilt_from": self._shown_beginnings(),
            "ingested": self.replica.ingested,
            "reached": self.replica.reached,
            "ingested_count": self.replica.ingested_count,
            "delivered_count": self.delivery.delivered_count,
            "late_count": self.late_count(),
            "shards_led": self.delivery.led,
            "leads_since_ms": self.delivery.leads_since_ms,
            "shards_led_since_ms": self.delivery.led_since_ms,
            "lateness": {
                "bounds_ms": LATENESS_BOUNDS_MS,
                "targets": self.delivery.counters.recent_lateness.since(self.clock.wall_ms()),
            },
            "failovers": [asdict(each) for each in self.replica.retention.failovers.newest],
            "failing_targets": [target._asdict() for target in self.delivery.failing_targets],
            "spared_partitions": [each._asdict() for each in self.delivery.spared_partitions],
            "frontier_strays": self.delivery.frontier_strays,
            "log_ms": self.replica.log_ms,
            "wheel": asdict(self.replica.wheel.stats()),
            "kafka_problem": self.kafka_problem,
            "ingest_problem": self.ingest_watch.problem,
            "ingest_lag": self.ingest_watch.unread,
            "buffer_held_ms": self.ingest_watch.held_ms(),
            "etcd_problem": self.control.etcd_problem,
            "topic_warnings": self.kafka_health.warnings,
            "disk": self._shown_disk(),
            "snapshots": self.donor.shown(),
            "snapshot_bytes_per_s": self.config.snapshot_bytes_per_s,
            "compared": self.comparisons.shown(),
            "cancel_on": self.cancel_bridge.shown(),
            "checkpoint_age_ms": self.checkpoint_age_ms(),
            "checkpoint_took_ms": self.ingestion.checkpoint_took_ms,
            "clock_drift_ms": self.delivery.counters.drift_ms,
            "process": _process(),
            "uptime_ms": self.clock.monotonic_ms() - self._started_ms,
            "now_ms": self.clock.wall_ms(),
        }

    def paused_s(self) -> dict[str, float]:
        """Return by target how long ago its pause began, until what has waited is out."""
        newest, now_ms = self.replica.newest, self.clock.wall_ms()
        holds = {} if newest is None else newest.record.holds
        return {topic: max(0, now_ms - hold.since_ms) / 1000 for topic, hold in holds.items()}

    def quotas(self) -> Mapping[str, Quota]:
        """Return by target how many messages may be pending, and how many the last step found."""
        newest = self.replica.newest
        return {} if newest is None else newest.record.quotas

    def _shown_frontier(self) -> dict[str, Any] | None:
        newest, frontier = self.replica.newest, self.frontier
        if newest is None or frontier is None:
            return None
        return {
            "step": frontier.step,
            "owner": newest.record.owner,
            "cursor_ms": frontier.lowest_cursor.due_ms,
            # Each shard's steps have come so far: one without a master stands still.
            "now_ms": min(each.now_ms for each in newest.record.steps),
            "offsets": frontier.offsets,
            "own_writes": frontier.own_writes,
            "written_ms": newest.append_ms,
            "counts": asdict(newest.record.counts),
        }

    def _shown_oldest_cut(self) -> dict[str, int]:
        """Return what is forgotten: everything that this frontier covers."""
        oldest = self.replica.retention.forgotten
        return {
            "step": 0 if oldest is None else oldest.record.frontier.step,
            "append_ms": 0 if oldest is None else oldest.append_ms,
        }

    def _shown_beginnings(self) -> dict[int, dict[str, int]]:
        """Return where this wheel begins, by partition, where that is not the log's beginning."""
        return {
            partition: {"offset": beginning.offset, "append_ms": beginning.append_ms}
            for partition, beginning in enumerate(self.replica.began)
            if beginning.offset
        }

    def _shown_disk(self) -> dict[str, Any]:
        room = self.replica.room
        return {
            "room": room.state.value,
            "free_bytes": room.free_bytes,
            "free_min_bytes": room.limit_bytes,
        }

    def known_id(self, id: str) -> dict[str, Any] | None:
        """Return what was ingested of an id, and what the newest frontier says of it, or None. May
        read the disk."""
        partition = partition_of(id.encode(), self.replica.settings.partitions)
        known = self.replica.know(partition, id)
        newest = self.replica.newest
        if known is None or newest is None:
            return None
        frontier, (state, kills) = newest.record.frontier, known
        return {
            "id": id,
            "partition": partition,
            "live": [
                {
                    "source": source_of(partition, m.offset),
                    "due_ms": m.due_ms,
                    "done": frontier.covers(m.lane, Rank(m.due_ms, partition, m.offset)),
                }
                for m in state.live
            ],
            "killed": [
                {
                    "source": source_of(partition, m.offset),
                    "due_ms": m.due_ms,
                    "killed_by": source_of(
                        partition, state.killed_by if kill is None else kill.marker_offset
                    ),
                    **_came_to(m, state.settled),
                }
                for m, kill in zip(state.killed, kills, strict=True)
            ]
            + _moving(partition, state.reserved),
            "log_ms": self.replica.log_ms[partition],
            "frontier_step": frontier.step,
        }

    def pending(self) -> dict[str, Any]:
        """Return counts of what is pending by the newest frontier that this node has read."""
        found = self.replica.pending()
        return {
            "total": found.total,
            "hours": [
                {"from_ms": hour * HOUR_SLOTS * SLOT_MS, "messages": count}
                for hour, count in sorted(found.hours.items())
            ],
            "topics": dict(sorted(found.topics.items())),
            "ingested": self.replica.ingested,
        }

    def begin_export(self) -> Export:
        """Return the next export of this node; ExportError while another one runs."""
        return self.exporter.begin()


def _process() -> dict[str, int]:
    """Return how many files and sockets this process has open, and may have, and its memory."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "open_files": len(list(Path("/proc/self/fd").iterdir())),
        "open_files_max": limit,
        "memory_bytes": resident_pages * resource.getpagesize(),
    }


def _moving(partition: int, reserved: Reservation | None) -> list[dict[str, Any]]:
    """Return what a reschedule holds until its master says what came of that: as `asked`."""
    if reserved is None:
        return []
    return [
        {
            "source": source_of(partition, held.message.offset),
            "due_ms": held.old_due_ms,
            "killed_by": source_of(partition, reserved.marker_offset),
            **_came_to(held.message, None),
        }
        for held in reserved.held
    ]


def _came_to(message: KilledMessage, settled: Settlement | None) -> dict[str, Any]:
    """Return what came of a message that a cancel marker was about, and when that was decided;
    `asked` if it is not decided, or was decided by rules older than 4."""
    if settled is None or message not in (*settled.killed, *settled.done):
        return {"state": "asked", "decided_ms": None}
    killed = "replaced" if settled.is_replace else "cancelled"
    return {
        "state": killed if message in settled.killed else "done",
        "decided_ms": settled.at_ms,
    }
