"""The cursor mirror: what a master writes to etcd about its progress, for people.

Each leadership begins with a copy of the cluster's settings. Nothing here is read by a node.
"""

import asyncio
import json

import structlog

from delayd.coordination import Coordination, Leadership
from delayd.errors import CoordinationError
from delayd.node.election.etcd_calls import SHARD
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock

log = structlog.get_logger()

MIRROR_INTERVAL_MS = 1_000
"""The cursor is mirrored in etcd at most this often."""


class CursorMirror:
    """Mirrors the newest frontier that the replica knows. Lives on the event loop."""

    def __init__(self, coordination: Coordination, replica: Replica, clock: Clock) -> None:
        self._coordination = coordination
        self._replica = replica
        self._clock = clock
        self._taken_ms = 0
        self._is_writing = False
        self._settings_written_under: Leadership | None = None
        self.failures = 0
        """Calls to etcd that failed."""

    def take(self) -> str | None:
        """Return the cursor (JSON) if it is time to write it; None if not."""
        now_ms, newest = self._clock.monotonic_ms(), self._replica.newest
        if newest is None or self._is_writing or now_ms - self._taken_ms < MIRROR_INTERVAL_MS:
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
        try:
            if leadership is not self._settings_written_under:
                settings = json.dumps(self._replica.settings.to_json())
                await asyncio.to_thread(self._coordination.put_settings, settings)
                self._settings_written_under = leadership
            return await asyncio.to_thread(self._coordination.put_cursor, SHARD, leadership, cursor)
        except CoordinationError as error:
            self.failures += 1
            log.warning("cursor_not_mirrored", reason=str(error))
            return True
        finally:
            self._is_writing = False
