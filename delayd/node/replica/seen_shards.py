"""The newest committed frontier of each shard, as a replica has read them.

Under the replica's lock. Source: docs/design/shards.md, "The joint frontier".
"""

from typing import NamedTuple

from delayd.cluster.frontier_log import SeenFrontier, joint_seen
from delayd.errors import FrontierError
from replication.frontier import Frontier
from replication.record import FrontierRecord


class Newer(NamedTuple):
    """A frontier that was not seen before, and the newest one of its shard until then."""

    before: SeenFrontier | None
    seen: SeenFrontier


class SeenShards:
    """Of a replica."""

    def __init__(self, shards: int) -> None:
        self._newest: list[SeenFrontier | None] = [None] * shards
        self._lowest_ms = [0] * shards

    @property
    def lowest_ms(self) -> int:
        """Return the due time of the lowest cursor of all shards, Unix ms."""
        return min(self._lowest_ms)

    def of(self, shard: int) -> SeenFrontier | None:
        """Return the newest frontier of a shard."""
        return self._newest[shard]

    def newer_in(self, seen: SeenFrontier) -> list[Newer]:
        """Return what of a frontier, perhaps a joint one, was not seen before. FrontierError if it
        contradicts what was."""
        found = []
        for part in seen.parts or (seen,):
            before = self._newest[part.record.frontier.shard]
            if before is not None and part.offset <= before.offset:
                continue
            if before is not None and not before.record.frontier.precedes(part.record.frontier):
                raise FrontierError(
                    f"frontier record at offset {part.offset} steps back behind the one at "
                    f"{before.offset}",
                    remedy="two clusters share the topic, or it was tampered with; "
                    "nothing more is delivered by this node",
                )
            found.append(Newer(before, part))
        return found

    def joint_with(self, newer: list[Newer]) -> SeenFrontier | None:
        """Note these; return the joint frontier of all shards, None while some are not known."""
        for _, seen in newer:
            frontier = seen.record.frontier
            self._newest[frontier.shard] = seen
            self._lowest_ms[frontier.shard] = frontier.lowest_cursor.due_ms
        known = [seen for seen in self._newest if seen is not None]
        return joint_seen(known) if len(known) == len(self._newest) else None


def lost_steps(known: FrontierRecord, found: Frontier) -> str | None:
    """Return what the frontier topic has lost of what a node acted on; None if nothing.

    The steps of several shards are counted together: what one of them has lost may not be hidden by
    what others have done since."""
    before = known.frontier
    if found.step < before.step:
        return (
            f"the frontier topic ends at step {found.step}, this node has already acted on step "
            f"{before.step}"
        )
    if max(found.shards, before.shards) > 1 and not before.is_within(found):
        return "the frontier topic has lost steps of a shard that this node has already acted on"
    return None
