"""Placing: lets the shards of a cluster come to lie where they should.

Looks at the members in etcd, asks `replication.placement` which node should lead which shard, tells
the elections whom to let campaign first, and hands over what another node should lead. Only where
there are several shards.

Lives on the event loop. Source: docs/design/shards.md, "Placement".
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from delayd.errors import CoordinationError
from delayd.node.election.control_loop import ControlLoop
from delayd.node.election.election_context import ElectionContext
from replication.election_facts import ResignReason
from replication.placement import PAUSE_MS, Member, Placement

log = structlog.get_logger()

READ_LOOKS: Final = 4
"""Members are read at every so many looks: two seconds are soon enough for what takes thirty."""


class Placing:
    """Of one node."""

    def __init__(self, context: ElectionContext, loops: Sequence[ControlLoop]) -> None:
        self._context = context
        self._loops = loops
        self._placement = Placement(context.identity.node, len(loops))
        self._members: Mapping[str, Member] = {}
        self.handed_over_count = 0
        """Shards that this node has handed over to another one that should lead them."""

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        looks = 0
        while True:
            if looks % READ_LOOKS == 0:
                await self._read()
            looks += 1
            self.look()
            await asyncio.sleep(PAUSE_MS / 1000)

    def look(self) -> None:
        """Look once, by the members that were read last."""
        led = [loop.shard for loop in self._loops if loop.is_granted]
        now_ms = self._context.clock.monotonic_ms()
        order = self._placement.look(now_ms, self._members, led)
        for loop in self._loops:
            loop.yield_turns(self._placement.turn(loop.shard, loop.gone))
        if order is not None:
            log.info("shard_handed_over", shard=order.shard, to=order.to)
            self.handed_over_count += 1
            self._loops[order.shard].fault(ResignReason.PLACED)

    async def _read(self) -> None:
        try:
            found = await asyncio.to_thread(self._context.coordination.members)
        except CoordinationError:
            self._context.health.failures += 1
            return
        self._members = {name: member_of(value) for name, value in found.items()}


def member_of(value: str) -> Member:
    """Return what a member key says; a node that does not say it could not take over."""
    fields = json.loads(value)
    return Member(
        could_take_over=bool(fields.get("could_take_over", False)),
        has_room=bool(fields.get("has_room", False)),
        checkpoint_took_ms=int(fields.get("checkpoint_took_ms", 0)),
    )
