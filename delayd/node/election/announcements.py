"""What a node tells etcd about itself: its member key, under a lease of its own, and, while it is
master, the cursor mirror. Each leadership begins with a copy of the cluster's settings.

Nodes read of it only whether another one has room (`is_room_elsewhere`).
"""

import asyncio
import json

from delayd.coordination import Coordination, Leadership
from delayd.errors import CoordinationError
from delayd.node.election.etcd_calls import SHARD, Identity
from delayd.node.election.etcd_health import EtcdHealth
from delayd.node.replica.replica import Replica
from delayd.node.replica.room import RoomState
from delayd.runtime.clock import Clock

MEMBER_TTL_S = 10
MIRROR_INTERVAL_MS = 1_000
"""The cursor is mirrored in etcd at most this often."""


class Announcements:
    """Announces a node and mirrors the newest frontier that its replica knows.

    Lives on the event loop.
    """

    def __init__(
        self,
        coordination: Coordination,
        replica: Replica,
        clock: Clock,
        identity: Identity,
        health: EtcdHealth,
    ) -> None:
        self._coordination = coordination
        self._replica = replica
        self._clock = clock
        self._identity = identity
        self._health = health
        self._taken_ms = 0
        self._is_writing = False
        self._settings_written_under: Leadership | None = None
        self._lease_id: int | None = None
        """Of the member key."""
        self._told = ""
        self.misses: str | None = None
        """The nonce of the master that this node misses (`replication/pulse.py`)."""

    async def keep_member(self) -> None:
        """Keep the member key alive until cancelled."""
        etcd = self._coordination
        while True:
            try:
                if self._lease_id is None:
                    self._lease_id = (await asyncio.to_thread(etcd.grant_lease, MEMBER_TTL_S)).id
                    self._told = ""
                elif await asyncio.to_thread(etcd.keep_alive, self._lease_id) is None:
                    self._lease_id = None
                    continue
                await self.tell()
            except CoordinationError:
                self._health.failures += 1
                self._lease_id = None
            await asyncio.sleep(MEMBER_TTL_S / 3)

    async def tell(self) -> None:
        """Write the member key, if it says something else by now; CoordinationError."""
        value = self._identity.member_value(has_room=self._has_room(), misses=self.misses)
        if value != self._told and self._lease_id is not None:
            name, lease_id = self._identity.node, self._lease_id
            await asyncio.to_thread(self._coordination.put_member, name, value, lease_id)
            self._told = value

    async def is_room_elsewhere(self) -> bool:
        """Return whether another node says that it could lead and take everything in."""
        try:
            members = await asyncio.to_thread(self._coordination.members)
        except CoordinationError:
            self._health.failures += 1
            return False
        return any(
            json.loads(value).get("has_room", False)  # nodes of 0.1.0 do not say
            for name, value in members.items()
            if name != self._identity.node
        )

    def _has_room(self) -> bool:
        newest = self._replica.newest
        return (
            newest is not None
            and self._replica.room.state is RoomState.ENOUGH
            and newest.record.frontier.reached_by(self._replica.ingested)
        )

    def take_cursor(self) -> str | None:
        """Return the cursor (JSON) if it is time to write it, and etcd answers; None if not."""
        now_ms, newest = self._clock.monotonic_ms(), self._replica.newest
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

    async def write_cursor(self, leadership: Leadership, cursor: str) -> bool:
        """Write a cursor that was taken; False if the leader key is not that creation any more."""
        try:
            if leadership is not self._settings_written_under:
                settings = json.dumps(self._replica.settings.to_json())
                await asyncio.to_thread(self._coordination.put_settings, settings)
                self._settings_written_under = leadership
            return await asyncio.to_thread(self._coordination.put_cursor, SHARD, leadership, cursor)
        except CoordinationError:
            self._health.failures += 1
            return True
        finally:
            self._is_writing = False
