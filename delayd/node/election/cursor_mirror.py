"""The mirror of a shard's cursor in etcd, which its master writes. Each leadership begins with a
copy of the cluster's settings.
"""

import asyncio
import json

from delayd.coordination import Coordination, Leadership
from delayd.errors import CoordinationError
from delayd.node.election.etcd_health import EtcdHealth
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock

MIRROR_INTERVAL_MS = 1_000
"""The cursor is mirrored in etcd at most this often."""


class CursorMirror:
    """Mirrors the newest frontier of a shard that the replica knows. Lives on the event loop."""

    def __init__(
        self,
        coordination: Coordination,
        replica: Replica,
        clock: Clock,
        health: EtcdHealth,
        shard: int,
    ) -> None:
        self._coordination = coordination
        self._replica = replica
        self._clock = clock
        self._health = health
        self._shard = shard
        self._taken_ms = 0
        self._is_writing = False
        self._settings_written_under: Leadership | None = None

    def take(self) -> str | None:
        """Return the cursor (JSON) if it is time to write it, and etcd answers; None if not."""
        now_ms, newest = self._clock.monotonic_ms(), self._replica.newest_of(self._shard)
        is_early = self._is_writing or now_ms - self._taken_ms < MIRROR_INTERVAL_MS
        if newest is None or is_early or self._health.is_silent:
            return None
        self._taken_ms = now_ms
        self._is_writing = True
        frontier = newest.record.frontier
        return json.dumps(
            {
                "cursor_ms": frontier.lowest_cursor.due_ms,
                "term": frontier.term,
                "step": frontier.step,
                "owner": newest.record.owner,
                "written_ms": newest.append_ms,
            }
        )

    async def write(self, leadership: Leadership, cursor: str) -> bool:
        """Write a cursor that was taken; False if the leader key is not that creation any more."""
        etcd = self._coordination
        try:
            if leadership is not self._settings_written_under:
                settings = json.dumps(self._replica.settings.to_json())
                await asyncio.to_thread(etcd.put_settings, settings)
                self._settings_written_under = leadership
            return await asyncio.to_thread(etcd.put_cursor, self._shard, leadership, cursor)
        except CoordinationError:
            self._health.failures += 1
            return True
        finally:
            self._is_writing = False
