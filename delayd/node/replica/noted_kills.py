"""The kills that one batch of records brings, until they are in the wheel with it.

Not here: which messages a marker kills (`replication.ids`), and how kills are kept
(`delayd.wheel.id_memory`).
"""

from collections.abc import Mapping, Sequence

from delayd.node.replica.rescheduling import NEVER_DELIVERED, went_on
from delayd.wheel.id_memory import IdMemory
from delayd.wheel.kills import Kill
from replication.frontier import Frontier
from replication.ids import KilledMessage, Reservation
from replication.ingest import Decision
from replication.rank import Rank

# See `delayd.request.parser`: named tuples, without what their constructors cost.
_made = tuple.__new__


class NotedKills:
    """Of one batch. Used under the replica's lock."""

    def __init__(self, ids: IdMemory, covered: Frontier | None) -> None:
        """`covered`: a frontier so old that what it covers is not stored any more."""
        self._ids = ids
        self._covered = covered
        self._kills: dict[Rank, Kill] = {}

    def get(self, rank: Rank) -> Kill | None:
        """Return the kill of a message; None if it was not killed."""
        return self._kills.get(rank) or self._ids.kill(rank)

    def is_stored(self, lane: int, rank: Rank) -> bool:
        """Return whether a message is stored, and not only remembered. What is not stored is not
        counted as pending, and is not counted off."""
        return self._covered is None or not self._covered.covers(lane, rank)

    def note(
        self,
        partition: int,
        marker_offset: int,
        killed: Sequence[KilledMessage],
        topics: Mapping[int, str],
        reserved: Reservation | None,
    ) -> None:
        """Note what a marker kills, but what the reschedule that holds it has killed before.
        `topics`: targets of the messages, as far as they are known, by offset."""
        held = () if reserved is None else {each.message.offset for each in reserved.held}
        for due_ms, offset, lane, _ in killed:
            rank = _made(Rank, (due_ms, partition, offset))
            if offset in held:
                kill = self.get(rank)
                if kill is not None:  # else it is done, and its kill is forgotten
                    self._kills[rank] = kill._replace(asked_by=marker_offset)
                continue
            topic = topics.get(offset, "") if self.is_stored(lane, rank) else ""
            self._kills[rank] = _made(Kill, (marker_offset, False, topic, None, -1))

    def note_went_on(
        self, rank: Rank, kill: Kill, decision: Decision, lane: int, topic: str
    ) -> None:
        """Note what became of a continuation of the message of this rank, which was killed. One
        that is held for a reschedule is never delivered: only what that writes is."""
        self._kills[rank] = went_on(kill, decision)
        if decision.is_held and decision.rank is not None:
            is_counted = self.is_stored(lane, decision.rank)
            self._kills[decision.rank] = Kill(NEVER_DELIVERED, False, topic if is_counted else "")

    def apply(self) -> None:
        """Remember them: the frames of the batch are in the wheel."""
        if self._kills:
            self._ids.note_kills(self._kills)
