"""The elections of a node, one for each shard, and what they share: its member key, its contact
with Kafka, its heartbeat.

Not here: one election (`control_loop.py`), which of several nodes should win it (`placing.py`).
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from delayd.node.delivery.grant import Grant
from delayd.node.election.control_loop import ControlLoop
from delayd.node.election.election_context import ElectionContext
from delayd.node.election.heartbeat import Heartbeat
from delayd.node.election.placing import Placing
from replication.election_facts import Ended, ResignReason, State


class Elections:
    """Of one node. Lives on the event loop; other threads read its properties."""

    def __init__(self, context: ElectionContext, loops: Sequence[ControlLoop]) -> None:
        """`loops`: one for each shard, in order."""
        self._context = context
        self.loops = tuple(loops)
        self.placing = Placing(context, self.loops) if len(self.loops) > 1 else None
        contact = context.contact
        if contact is not None:
            context.heartbeat.is_cut_off = lambda: contact.is_lost

    @property
    def heartbeat(self) -> Heartbeat:
        """What this node's process says to whoever listens."""
        return self._context.heartbeat

    @property
    def state(self) -> State:
        """The state of this node in the election of the first shard that it leads, else of the
        first."""
        leading = (loop.state for loop in self.loops if loop.is_granted)
        return next(leading, self.loops[0].state)

    @property
    def master_name(self) -> str | None:
        """The node that held the leader key of the first shard when it was last read."""
        return self.loops[0].master_name

    @property
    def etcd_failures(self) -> int:
        """Calls to etcd that failed, whatever for."""
        return self._context.health.failures

    @property
    def etcd_problem(self) -> str | None:
        """What people must know while etcd does not answer this node, or None."""
        return self._context.health.problem

    @property
    def found_dead_count(self) -> int:
        """Masters that this node took for dead, by their pulse."""
        return sum(loop.found_dead_count for loop in self.loops)

    @property
    def handed_over_count(self) -> int:
        """Shards that this node has handed over to another one that should lead them."""
        return 0 if self.placing is None else self.placing.handed_over_count

    @property
    def won_count(self) -> int:
        """Leaderships of this process."""
        return sum(loop.won_count for loop in self.loops)

    @property
    def ended(self) -> Counter[str]:
        """Leaderships that have ended, by reason."""
        return sum((loop.ended for loop in self.loops), Counter[str]())

    @property
    def lease_margin_ms(self) -> int | None:
        """How long the leases of the shards that this node leads are good for without another
        keepalive, negative if one may have run out; None if it leads none."""
        margins = [margin for loop in self.loops if (margin := loop.lease_margin_ms) is not None]
        return min(margins, default=None)

    async def run(self) -> None:
        """Run until all elections have stopped (after `shut_down`), or one has failed."""
        contact = self._context.contact
        beside = [asyncio.create_task(self._context.membership.keep())]
        if contact is not None:
            beside.append(asyncio.create_task(contact.run(self._is_granted)))
        if self.placing is not None:
            beside.append(asyncio.create_task(self.placing.run()))
        loops = [asyncio.create_task(loop.run()) for loop in self.loops]
        try:
            await asyncio.gather(*loops)
        finally:
            for task in (*beside, *loops):
                task.cancel()

    def shut_down(self) -> None:
        """Resign whatever this node leads, then stop."""
        for loop in self.loops:
            loop.shut_down()

    def fault(self, reason: ResignReason) -> None:
        """Tell the elections that this node must not be master now."""
        for loop in self.loops:
            loop.fault(reason)

    def delivery_ended(self, shard: int, grant: Grant, ended: Ended) -> None:
        """Note that a delivery thread is at rest: it writes no more under that grant."""
        self.loops[shard].delivery_ended(grant, ended)

    def delivery_died(self, shard: int) -> None:
        """Note that a delivery thread is gone for good: resigning need not wait for it."""
        self.loops[shard].delivery_died()

    def _is_granted(self) -> bool:
        return any(loop.is_granted for loop in self.loops)
