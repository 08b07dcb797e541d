"""The announcement of a node: its member key in etcd, under a lease of its own."""

import asyncio

from delayd.coordination import Coordination
from delayd.errors import CoordinationError
from delayd.node.election.identity import Identity

MEMBER_TTL_S = 10


class Member:
    """Lives on the event loop."""

    def __init__(self, coordination: Coordination, identity: Identity) -> None:
        self._coordination = coordination
        self._identity = identity
        self.failures = 0
        """Calls to etcd that failed."""

    async def announce(self) -> None:
        """Keep the member key alive until cancelled."""
        etcd, name, value = self._coordination, self._identity.node, self._identity.member_value
        lease_id: int | None = None
        while True:
            try:
                if lease_id is None:
                    lease_id = (await asyncio.to_thread(etcd.grant_lease, MEMBER_TTL_S)).id
                    await asyncio.to_thread(etcd.put_member, name, value, lease_id)
                elif await asyncio.to_thread(etcd.keep_alive, lease_id) is None:
                    lease_id = None
                    continue
            except CoordinationError:
                self.failures += 1
                lease_id = None
            await asyncio.sleep(MEMBER_TTL_S / 3)
