"""What a node tells etcd about itself, whatever shards it leads: its member key, under a lease of
its own.

Nodes read of it whether another one has room (`is_room_elsewhere`), and whom others miss.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping

from delayd.coordination import Coordination
from delayd.errors import CoordinationError
from delayd.node.election.etcd_calls import Identity
from delayd.node.election.etcd_health import EtcdHealth
from delayd.node.replica.replica import Replica
from delayd.node.replica.room import RoomState
from delayd.runtime.clock import Clock

MEMBER_TTL_S = 10


def missed_by(value: str) -> Collection[str]:
    """Return the nonces of the masters that a node misses, by the value of its member key."""
    misses = json.loads(value).get("misses") or ()
    return (misses,) if isinstance(misses, str) else misses


class Membership:
    """Of one node. Lives on the event loop."""

    def __init__(
        self,
        coordination: Coordination,
        replica: Replica,
        clock: Clock,
        identity: Identity,
        health: EtcdHealth,
        placed_by: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`placed_by`: see `Identity.member_value`."""
        self._placed_by = placed_by
        self._coordination = coordination
        self._replica = replica
        self._clock = clock
        self._identity = identity
        self._health = health
        self._lease_id: int | None = None
        """Of the member key."""
        self._told = ""
        self._misses: dict[int, str] = {}
        """By shard, the nonce of its master if this node misses it (`replication/pulse.py`)."""

    async def keep(self) -> None:
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

    def miss(self, shard: int, nonce: str | None) -> None:
        """Note whether this node misses the master of a shard; `tell` says it."""
        self._misses.pop(shard, None)
        if nonce is not None:
            self._misses[shard] = nonce

    async def tell(self) -> None:
        """Write the member key, if it says something else by now; CoordinationError."""
        misses = sorted(set(self._misses.values()))
        value = self._identity.member_value(
            has_room=self._has_room(), misses=misses, placed_by=self._placed_by()
        )
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
