"""The picture that a node gives of itself: what the admin port, people and dashboards see.

Only read here, from whatever thread asks; nothing is decided. Each part is true when it is read,
and parts may be of different moments.
"""

from dataclasses import asdict
from typing import Any, Protocol

from delayd import __version__
from delayd.bus.murmur2 import partition_of
from delayd.clock import Clock
from delayd.config import NodeConfig
from delayd.delivery import Delivery
from delayd.export.exporter import Export, Exporter
from delayd.ingestion import Ingestion
from delayd.replica import Replica
from delayd.request import source_of
from replication.election import State
from replication.rank import Rank

STALL_LIMIT_MS = 30_000
"""A loop without a sign of life for this long makes /livez fail."""


class Standing(Protocol):
    """Where a node stands in the election."""

    @property
    def state(self) -> State:
        """In the election's own words."""

    @property
    def master_name(self) -> str | None:
        """The node that held the leader key when it was last read."""

    @property
    def lease_margin_ms(self) -> int | None:
        """How long the master may go on without another keepalive; None on a follower."""


class Picture:
    """One running node, seen from outside. Raises nothing that a look could not meet."""

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        replica: Replica,
        ingestion: Ingestion,
        delivery: Delivery,
        standing: Standing,
        exporter: Exporter,
    ) -> None:
        self._config = config
        self._clock = clock
        self._replica = replica
        self._ingestion = ingestion
        self._delivery = delivery
        self._standing = standing
        self._exporter = exporter
        self._started_ms = clock.monotonic_ms()

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
            "master": self._standing.master_name,
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
            "failing_targets": self._delivery.failing_targets,
            "log_ms": self._replica.log_ms,
            "wheel": asdict(self._replica.stats()),
            "checkpoint_age_ms": self._clock.monotonic_ms() - self._ingestion.checkpointed_ms,
            "uptime_ms": self._clock.monotonic_ms() - self._started_ms,
            "now_ms": self._clock.wall_ms(),
        }

    def known_id(self, id: str) -> dict[str, Any] | None:
        """What this node has ingested of an id, and what the newest frontier says of it."""
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
