"""A running node as the admin port, people and dashboards see it.

It only reads, from whatever thread asks, and decides nothing. Each part is true when it is read,
and parts may be of different moments.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from delayd import __version__
from delayd.bus.murmur2 import partition_of
from delayd.config.node import NodeConfig
from delayd.node.delivery.delivery_loop import DeliveryLoop
from delayd.node.export.exporter import Export, Exporter
from delayd.node.kafka_health import KafkaHealth
from delayd.node.monitoring.metrics_snapshot import MetricsSnapshot
from delayd.node.replica.ingest_loop import IngestLoop
from delayd.node.replica.replica import Replica
from delayd.request import source_of
from delayd.runtime.clock import Clock
from delayd.wheel.layout import HOUR_SLOTS
from replication.election import State
from replication.rank import SLOT_MS, Rank

STALL_LIMIT_MS = 30_000
"""A loop without a sign of life for this long makes /livez fail."""

CHECKPOINT_LATE_MS = 10_000
"""A disk that takes no checkpoint for this long beyond its time makes /readyz fail: before the
ingest loop, which waits for it, makes /livez fail too."""


class Standing(Protocol):
    """A node's place in the election, now and before."""

    @property
    def won_count(self) -> int:
        """Return the number of leaderships of this process."""

    @property
    def ended(self) -> Mapping[str, int]:
        """Return the number of those that have ended, by reason."""

    @property
    def etcd_failures(self) -> int:
        """Return the number of calls to etcd that failed."""

    @property
    def state(self) -> State:
        """Return the state of the election."""

    @property
    def master_name(self) -> str | None:
        """Return the node that held the leader key when it was last read."""

    @property
    def lease_margin_ms(self) -> int | None:
        """Return how long the master may go on without another keepalive; None on a follower."""


class NodeView:
    """One running node, seen from outside. Every call is cheap and holds no lock for long."""

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        replica: Replica,
        ingestion: IngestLoop,
        delivery: DeliveryLoop,
        standing: Standing,
        exporter: Exporter,
        kafka_watch: KafkaHealth,
    ) -> None:
        self._config = config
        self._clock = clock
        self._replica = replica
        self._ingestion = ingestion
        self._delivery = delivery
        self._standing = standing
        self._exporter = exporter
        self._kafka_watch = kafka_watch
        self._started_ms = clock.monotonic_ms()

    def stalled(self) -> str | None:
        """Return which loop has stood still for too long, or None."""
        for name, age_ms in self._loop_ages_ms().items():
            if age_ms > STALL_LIMIT_MS:
                return f"the {name} loop has stood still for {age_ms} ms"
        return None

    def unready(self) -> str | None:
        """Return why the node could not take over now, or None."""
        newest = self._replica.newest
        if newest is None:
            return "no frontier has been read yet"
        if not newest.record.frontier.reached_by(self._replica.ingested):
            return "the wheel has not reached the frontier's offsets yet"
        return self._disk_problem() or self.stalled()

    def _disk_problem(self) -> str | None:
        """Return why the disk could not be relied on, or None."""
        age_ms = self._checkpoint_age_ms()
        if age_ms > self._config.checkpoint_interval_ms + CHECKPOINT_LATE_MS:
            return f"the disk has taken no checkpoint for {age_ms} ms"
        free, least = self._replica.seen_free_bytes, self._replica.disk_free_min_bytes
        if free is not None and free < least:
            return f"{free} bytes are free on the disk, fewer than disk_free_min_bytes = {least}"
        return None

    def _loop_ages_ms(self) -> dict[str, int]:
        """Return how long ago each loop gave a sign of life."""
        now_ms = self._clock.monotonic_ms()
        return {
            "ingest": now_ms - self._ingestion.progressed_ms,
            "delivery": now_ms - self._delivery.progressed_ms,
        }

    def _checkpoint_age_ms(self) -> int:
        return self._clock.monotonic_ms() - self._ingestion.checkpointed_ms

    def leader(self) -> dict[str, Any]:
        """Return {"master": name or None, "self": bool}, as this node last learnt it."""
        return {
            "master": self._standing.master_name,
            "self": self._delivery.is_delivering,
        }

    def status(self) -> dict[str, Any]:
        """Return everything that people ask about."""
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
            "election": self._standing.state.value,
            "master": self._standing.master_name,
            "lease_margin_ms": self._standing.lease_margin_ms,
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
            "failing_targets": [target._asdict() for target in self._delivery.failing_targets],
            "log_ms": self._replica.log_ms,
            "wheel": asdict(self._replica.stats()),
            "kafka_problem": self._kafka_watch.problem,
            "checkpoint_age_ms": self._checkpoint_age_ms(),
            "uptime_ms": self._clock.monotonic_ms() - self._started_ms,
            "now_ms": self._clock.wall_ms(),
        }

    def metrics_snapshot(self) -> MetricsSnapshot:
        """Return all figures; asks nobody, and waits for no lock."""
        newest = self._replica.newest
        frontier = newest.record.frontier if newest else None
        now_ms = self._clock.wall_ms()
        # Before its first step a cluster has delivered nothing since it was made.
        cursor_ms = frontier.lowest_cursor.due_ms if frontier else now_ms
        reached_ms = cursor_ms or (newest.append_ms if newest else now_ms)
        wheel = self._replica.stats()
        return MetricsSnapshot(
            node=self._config.node,
            cluster=self._config.cluster,
            driver=self._config.driver,
            master=self._standing.master_name,
            is_master=self._delivery.is_delivering,
            election=self._standing.state.value,
            term=frontier.term if frontier else 0,
            step=frontier.step if frontier else 0,
            is_ready=self.unready() is None,
            lets_in=self._kafka_watch.problem is None,
            etcd_failures=self._standing.etcd_failures,
            leaderships_won=self._standing.won_count,
            leaderships_ended=dict(self._standing.ended),
            lease_margin_ms=self._standing.lease_margin_ms,
            steps=self._delivery.counters.read(),
            delivery_lag_ms=max(0, now_ms - reached_ms),
            failing_targets=len(self._delivery.failing_targets),
            smoothing_ms=self._delivery.smoothing_ms,
            ingested=self._replica.ingested_count,
            rejects=dict(self._ingestion.rejects),
            unread=self._ingestion.unread,
            ingest_delay_ms=self._ingestion.delay_ms,
            log_ahead_ms=max(0, *(log_ms - now_ms for log_ms in self._replica.log_ms)),
            pending=self._replica.pending_count(),
            slots=wheel.slots,
            frames=wheel.frames,
            wheel_bytes=wheel.bytes,
            loop_ages_ms=self._loop_ages_ms(),
            checkpoint_age_ms=self._checkpoint_age_ms(),
            disk_free_bytes=self._replica.seen_free_bytes,
            disk_free_min_bytes=self._replica.disk_free_min_bytes,
        )

    def known_id(self, id: str) -> dict[str, Any] | None:
        """Return what was ingested of an id, and what the newest frontier says of it, or None. May
        read the disk."""
        partition = partition_of(id.encode(), self._replica.settings.partitions)
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
                        partition, known.state.killed_by if kill is None else kill.marker_offset
                    ),
                }
                for m, kill in zip(known.state.killed, known.kills, strict=True)
            ],
            "log_ms": self._replica.log_ms[partition],
            "frontier_step": frontier.step,
        }

    def pending(self) -> dict[str, Any]:
        """Return counts of what is pending by the newest frontier that this node has read."""
        found = self._replica.pending()
        return {
            "total": found.total,
            "hours": [
                {"from_ms": hour * HOUR_SLOTS * SLOT_MS, "messages": count}
                for hour, count in sorted(found.hours.items())
            ],
            "topics": dict(sorted(found.topics.items())),
            "ingested": self._replica.ingested,
        }

    def begin_export(self) -> Export:
        """Return the next export of this node; ExportError while another one runs."""
        return self._exporter.begin()
