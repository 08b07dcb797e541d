"""What an export sees of a replica: a pinned cut, splits that are held, files that are frozen.

Each call takes the replica's lock, and holds it for a bounded time.
"""

from collections.abc import Generator, Sequence

from delayd.node.replica.replica import Replica
from delayd.wheel import FrozenSegment
from delayd.wheel.layers import Lines
from delayd.wheel.layout import HOUR_SLOTS, hour_of
from replication.frontier import Frontier


class ExportView:
    """A replica during one export."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._changed = replica.changed
        self._wheel = replica.wheel

    def pin(self, cut: Frontier) -> bool:
        """Forget nothing that was pending at this cut; False if some of it may be gone."""
        with self._changed:
            return self.replica.retention.pin(cut)

    def unpin(self) -> None:
        """Forget and split on."""
        with self._changed:
            self.replica.retention.unpin()
            self._wheel.release_splits()

    def hold_splits(self) -> bool:
        """Move no frame from an hour's file to its slot until `unpin`; False while a split that has
        begun must be finished first."""
        with self._changed:
            return self._wheel.hold_splits()

    def segments_from(self, slot: int) -> list[tuple[bool, int]]:
        """Return the slots from this one on that hold anything now, and the hours that lie in files
        of their own: is it an hour, and its number. By time; an hour comes before its slots."""
        with self._changed:
            slots = [(number, 1) for number in self._wheel.slots(slot)]
            hours = [(hour * HOUR_SLOTS, 0) for hour in self._wheel.hours()]
        return [
            (False, number) if is_slot else (True, hour_of(number))
            for number, is_slot in sorted(slots + hours)
        ]

    def freeze(self, names: Sequence[tuple[bool, int]]) -> list[FrozenSegment]:
        """Write out the tails of these; what their files hold now does not change."""
        with self._changed:
            return self._wheel.freeze(names)

    def kill_lines(self, from_ms: int) -> Generator[Lines, None, None]:
        """See `IdMemory.kill_lines`: only this call takes the lock, not the reading."""
        with self._changed:
            return self._wheel.ids.kill_lines(from_ms)
