"""What tests of a replica give it, and what a master would make of what it has."""

from collections.abc import Callable

from cluster_settings import LANES, PARTITIONS
from exporting_node import BEGIN_MS, schedule
from step_pieces import messages_of

from delayd.bus import Record
from delayd.node.delivery.planner import Planner
from delayd.node.replica.replica import Replica
from replication.delivery_queue import StepLimits
from replication.frontier import Frontier, first_frontier

HOLD_MS = 60_000
PLENTY = StepLimits()

Opener = Callable[..., Replica]


def request(offset: int, due_ms: int, *, partition: int = 0, epoch: int = 0) -> Record:
    made = schedule(offset, due_ms, partition=partition, value=b"%d" % offset)
    return made._replace(leader_epoch=epoch)


def reject(offset: int, *, partition: int = 0) -> Record:
    return Record(partition, offset, 0, BEGIN_MS, None, b"%d" % offset, [("delayd-topic", b"t")])


def deliver_all(replica: Replica, frontier: Frontier, now_ms: int) -> list[tuple[int, int]]:
    """What a new master would deliver by now, as (partition, offset)."""
    planner = Planner.of(replica, frontier)
    delivered = []
    while True:
        plan = planner.plan(now_ms, replica.ingested, PLENTY)
        content = planner.begin(plan)
        produced = (*messages_of(content.pieces), *content.replies)
        delivered += [(frame.partition, frame.offset) for frame in produced]
        if plan.is_empty:
            replica.detach(planner)
            return delivered


NOTHING_DONE = first_frontier(0, PARTITIONS, LANES)
