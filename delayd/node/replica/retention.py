"""How long delivered messages are kept: until a frontier that is old enough covers them.

It remembers the frontiers seen lately, says which of them may be forgotten by, and what has been:
an export can only be made at a cut that is not before that.

Invariant: nothing is forgotten by a frontier that is beyond a pinned cut, nor by one that is not
`export_hold` old unless the disk is short.
Source: docs/design/storage.md, "Forgetting".
"""

from collections import deque
from typing import NamedTuple

from delayd.cluster.frontier_log import SeenFrontier
from delayd.node.replica.failovers import Failovers
from delayd.wheel import SlotInfo
from replication.frontier import Frontier
from replication.rank import Rank
from replication.record import FrontierRecord, decode, encode

HISTORY_SAMPLES = 16
"""Frontiers remembered within `export_hold`."""


class Forgotten(NamedTuple):
    """The newest frontier by which anything was forgotten, or not stored at all."""

    record: FrontierRecord
    append_ms: int
    value: bytes
    """The record as its topic has it, for the checkpoint."""

    @classmethod
    def of(cls, value: bytes, append_ms: int) -> "Forgotten | None":
        """Return what a checkpoint says; None if nothing was forgotten."""
        return cls(decode(value), append_ms, value) if value else None


class Retention:
    """Not thread safe: part of the replica, under its lock."""

    def __init__(self, hold_ms: int, forgotten: Forgotten | None) -> None:
        self.hold_ms = hold_ms
        self.forgotten = forgotten
        self.failovers = Failovers()
        self._history: deque[SeenFrontier] = deque()
        self._pinned: Frontier | None = None
        self._shared_out: Frontier | None = None
        self._cursors: list[tuple[Rank, ...]] = []
        """K by lane of that, by shard."""

    @property
    def newest(self) -> SeenFrontier | None:
        """Return the newest frontier remembered."""
        return self._history[-1] if self._history else None

    @property
    def covered(self) -> Frontier | None:
        """Return the frontier whose covered messages need not be stored any more."""
        return None if self.forgotten is None else self.forgotten.record.frontier

    def covered_at(self, partition: int) -> tuple[int, tuple[Rank, ...]] | None:
        """Return O of a partition and K by lane of `covered`; the same object until that moves."""
        covered = self.covered
        if covered is None:
            return None
        if covered is not self._shared_out:
            self._shared_out = covered
            self._cursors = [covered.cursors_of(shard) for shard in range(covered.shards)]
        return covered.offsets[partition], self._cursors[partition % covered.shards]

    def begin(self, seen: SeenFrontier, known: FrontierRecord | None) -> None:
        """Remember the frontier that is read at the start of a node, which had acted on `known`
        before. If it has come further by `hold_ms`, what it covers need not be stored at all:
        what the node has missed was delivered, and is not to fill its disk.

        After a shorter stop the cuts of the last `hold_ms` can still be exported.
        """
        self.remember(seen)
        if known is None or seen.record.now_ms - known.now_ms >= self.hold_ms:
            self.forgotten = Forgotten(seen.record, seen.append_ms, encode(seen.record))

    def remember(self, seen: SeenFrontier) -> None:
        """Keep the newest frontier, and enough older ones to find one that is `hold_ms` old."""
        history = self._history
        spacing_ms = self.hold_ms // HISTORY_SAMPLES
        # The last one before an idle time stays: what it covers is not kept until that is over.
        if len(history) >= 2 and seen.append_ms - history[-2].append_ms < spacing_ms:
            history.pop()
        history.append(seen)

    def advance(self, hold_ms: int) -> None:
        """Make the newest frontier at least `hold_ms` old the `covered` one, and note it as
        `forgotten`; not if there is none, or if it is beyond the pinned cut."""
        history = self._history
        if not history:
            return
        old_enough_ms = history[-1].append_ms - hold_ms
        while len(history) >= 2 and history[1].append_ms <= old_enough_ms:
            history.popleft()
        record, _, append_ms, _ = history[0]
        cut = record.frontier
        if append_ms > old_enough_ms:
            return
        if self._pinned is not None and not cut.is_within(self._pinned):
            return
        if self.covered is None or self.covered.precedes(cut):
            self.forgotten = Forgotten(record, append_ms, encode(record))

    def pin(self, cut: Frontier) -> bool:
        """Keep all that is pending at the cut; False if some of it may be gone already."""
        assert self._pinned is None, "one cut is pinned at a time"
        if self.covered is not None and not self.covered.is_within(cut):
            return False
        self._pinned = cut
        return True

    def unpin(self) -> None:
        """Forget on; idempotent."""
        self._pinned = None


def is_passed(info: SlotInfo | None, frontier: Frontier) -> bool:
    """True if every offset that a slot or an hour holds of the frontier's partitions is below O."""
    assert info is not None, "what is listed has a line in the catalogue"
    return all(
        highest < offset or not frontier.owns(partition)
        for partition, (highest, offset) in enumerate(
            zip(info.highest_offsets, frontier.offsets, strict=True)
        )
    )
