"""The transaction coordinator: who holds a transactional id, and what it has open.

Not here: what readers see (`log.py`); locking (the broker's one lock guards it).

Invariants:
- an id's epoch only rises, and only the holder of the newest epoch writes, commits or begins;
- `init` first ends what the predecessor left: markers that wait are written, an open transaction
  is aborted;
- an acknowledged commit stays one: its markers may wait or be lost, its outcome does not change.

The faults are ordered through `MemoryKafka`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from delayd.bus.memory.log import PartitionLog


class CommitFault(Enum):
    """A commit whose answer never arrives."""

    APPLIED = "applied"
    NOT_APPLIED = "not-applied"


class FlushFault(Enum):
    """A flush that fails."""

    TIMED_OUT = "timed-out"
    BROKER_GONE = "broker-gone"


@dataclass(slots=True)
class Holder:
    """One transactional id."""

    producer_id: int
    epoch: int = -1
    touched: dict[tuple[str, int], None] = field(default_factory=dict)
    """Partitions of the open transaction, in the order of their first record."""
    opened_ms: int = 0
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Of consumer groups in the open transaction: (group, topic, partition)."""


@dataclass(slots=True)
class Coordinator:
    """The state that outlives producers. `find_log` raises KeyError for a topic that is gone."""

    find_log: Callable[[str, int], PartitionLog]
    holders: dict[str, Holder] = field(default_factory=dict)
    hold_markers: bool = False
    commit_faults: dict[str, deque[CommitFault]] = field(default_factory=dict)
    flush_faults: dict[str, deque[FlushFault]] = field(default_factory=dict)
    """How an id's next flushes fail."""
    lost_markers: dict[tuple[str, int, int | None], int] = field(default_factory=dict)
    """How many of a partition's next markers are lost: of one producer, or (None) of any."""
    group_offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """What consumer groups have committed: (group, topic, partition)."""
    _pending: list[tuple[int, tuple[str, int], bool]] = field(default_factory=list)

    def init(self, transactional_id: str) -> int:
        """Take the id; return the new epoch."""
        holder = self.holders.setdefault(transactional_id, Holder(len(self.holders) + 1))
        self.write_pending(holder.producer_id)
        self._end(holder, commit=False, wait=False)
        holder.epoch += 1
        return holder.epoch

    def is_current(self, transactional_id: str, epoch: int) -> bool:
        """Return whether that epoch still holds the id."""
        return self.holders[transactional_id].epoch == epoch

    def join(self, transactional_id: str, topic: str, partition: int, now_ms: int) -> int:
        """Make a partition part of the open transaction; return the producer id."""
        holder = self.holders[transactional_id]
        self.write_pending(holder.producer_id)
        if not holder.touched:
            holder.opened_ms = now_ms
        holder.touched[topic, partition] = None
        return holder.producer_id

    def join_group(
        self, transactional_id: str, group: str, offsets: Mapping[tuple[str, int], int]
    ) -> None:
        """Make offsets of a consumer group part of the open transaction."""
        holder = self.holders[transactional_id]
        self.write_pending(holder.producer_id)
        holder.offsets.update({(group, *place): offset for place, offset in offsets.items()})

    def commit(self, transactional_id: str) -> CommitFault | None:
        """Commit, unless a fault was ordered; return the fault that hides the answer."""
        faults = self.commit_faults.get(transactional_id)
        fault = faults.popleft() if faults else None
        if fault is not CommitFault.NOT_APPLIED:
            self._end(self.holders[transactional_id], commit=True, wait=self.hold_markers)
        return fault

    def take_flush_fault(self, transactional_id: str) -> FlushFault | None:
        """Return how this flush of the id was ordered to fail; None if it was not."""
        faults = self.flush_faults.get(transactional_id)
        return faults.popleft() if faults else None

    def expire(self, opened_before_ms: int) -> list[str]:
        """Abort transactions that were opened before, and fence their producers."""
        expired = []
        for transactional_id, holder in self.holders.items():
            if holder.touched and holder.opened_ms <= opened_before_ms:
                self._end(holder, commit=False, wait=False)
                holder.epoch += 1
                expired.append(transactional_id)
        return expired

    def write_pending(self, producer_id: int | None = None) -> None:
        """Write markers that were held back: all, or one producer's."""
        pending, self._pending = self._pending, []
        for marker in pending:
            if producer_id is None or marker[0] == producer_id:
                self._write(*marker)
            else:
                self._pending.append(marker)

    def _end(self, holder: Holder, *, commit: bool, wait: bool) -> None:
        for where in holder.touched:
            marker = (holder.producer_id, where, commit)
            if wait:
                self._pending.append(marker)
            else:
                self._write(*marker)
        holder.touched.clear()
        if commit:
            self.group_offsets.update(holder.offsets)
        holder.offsets.clear()

    def _write(self, producer_id: int, where: tuple[str, int], commit: bool) -> None:
        for whose in ((*where, None), (*where, producer_id)):
            if self.lost_markers.get(whose, 0) > 0:
                self.lost_markers[whose] -= 1
                return
        try:
            log = self.find_log(*where)
        except KeyError:
            return  # the topic was deleted
        log.write_marker(producer_id, commit=commit)
