"""Splits of hours that a takeover or a mastership waits for."""

from typing import Final

from delayd.node.replica.replica import Replica
from replication.frontier import Frontier
from replication.rank import SLOT_MS, slot_of

SPLIT_RETRY_MS: Final = 20
"""How soon whoever needs a split looks again whether it may be done."""


def split_before(replica: Replica, frontier: Frontier) -> bool:
    """Split a piece of the hours that a frontier stands in or has passed; True when all are.

    Hours of many messages take minutes: whoever waits for them must show signs of life. Takes the
    replica's lock.
    """
    reached_ms = frontier.highest_cursor.due_ms
    slot = slot_of(reached_ms)
    with replica.changed:
        replica.wheel.advance(slot * SLOT_MS)
        whole_below = replica.wheel.whole_below
    if whole_below is None or slot < whole_below:
        return True
    # An export holds splits until it is done.
    if not replica.split_some(reached_ms):
        with replica.changed:
            replica.changed.wait(SPLIT_RETRY_MS / 1000)
    return False
