"""One partition's log, with the rules by which a broker hides and shows its records.

Not here: topics, producers, faults; locking (the broker's one lock guards every log).

Invariants:
- offsets are dense over records and markers together: readers, who see no markers, see gaps;
- `stable_offset` is the first offset of the oldest open transaction, else `end_offset`;
- a marker decides everything its producer has written here since its last marker, so that a lost
  marker is made up for, rightly or wrongly, by the next one (KAFKA-20734).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from delayd.bus import Headers, Position, Record
from delayd.bus.unreadable import TOO_LARGE, BatchError, UnreadableBatch, unreadable_batch


class OpenTransaction:
    """The records of one producer in one partition since its last marker there."""

    __slots__ = ("aborted", "first_offset")

    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        self.aborted = False


class HeavyBatch(NamedTuple):
    """A batch that is not read (`delayd.bus.unreadable`)."""

    stands_for_all: UnreadableBatch
    is_refused: bool
    """librdkafka refuses it as well; otherwise it hands out its records."""


class Entry(NamedTuple):
    """One offset of the log: a record, or a marker (`record` is None)."""

    record: Record | None
    transaction: OpenTransaction | None
    batch: HeavyBatch | None = None


class Leadership(NamedTuple):
    """A leader epoch and the first offset that was written in it."""

    epoch: int
    first_offset: int


@dataclass(slots=True)
class PartitionLog:
    """The entries from `start_offset` on, and the transactions that are open among them."""

    number: int
    start_offset: int = 0
    entries: list[Entry] = field(default_factory=list)
    open: dict[int, OpenTransaction] = field(default_factory=dict)
    """By producer id."""
    leaderships: list[Leadership] = field(default_factory=lambda: [Leadership(0, 0)])
    leader: int | None = 1
    in_sync: int = 1
    expanded_whole: int = 0
    """How often a coarse reader held a whole batch in memory that is not read."""
    hangs: bool = False
    """Does the leader answer neither producers nor questions?"""
    ahead_ms: int = 0
    """How far the clock of the broker that leads it is ahead of the others."""

    @property
    def end_offset(self) -> int:
        """Return the high watermark: one past the last entry."""
        return self.start_offset + len(self.entries)

    @property
    def stable_offset(self) -> int:
        """Return the offset up to which read_committed readers may read."""
        if not self.open:
            return self.end_offset
        return min(t.first_offset for t in self.open.values())

    def append(
        self,
        append_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        producer_id: int | None = None,
    ) -> Record:
        """Write a record, as part of that producer's transaction if one is named."""
        offset = self.end_offset
        transaction = None
        if producer_id is not None:
            transaction = self.open.setdefault(producer_id, OpenTransaction(offset))
        epoch = self.leaderships[-1].epoch
        record = Record(self.number, offset, epoch, append_ms, key, value, list(headers))
        self.entries.append(Entry(record, transaction))
        return record

    def write_marker(self, producer_id: int, *, commit: bool) -> None:
        """Commit or abort what the producer has written here; takes one offset."""
        transaction = self.open.pop(producer_id, None)
        if transaction is not None:
            transaction.aborted = not commit
        self.entries.append(Entry(None, None))

    def append_heavy(
        self, append_ms: int, values: list[tuple[bytes, Headers]], *, is_refused: bool
    ) -> UnreadableBatch:
        """Write a batch that is not read; return what readers see of it."""
        first, epoch = self.end_offset, self.leaderships[-1].epoch
        last = first + len(values) - 1
        stands_for_all = unreadable_batch(
            self.number, first, last, epoch, append_ms, len(values), "gzip", TOO_LARGE
        )
        batch = HeavyBatch(stands_for_all, is_refused)
        for offset, (value, headers) in enumerate(values, first):
            record = Record(self.number, offset, epoch, append_ms, None, value, headers)
            self.entries.append(Entry(record, None, batch))
        return stands_for_all

    def read(
        self, offset: int, records_max: int, *, coarsely: bool = False
    ) -> tuple[list[Record], int]:
        """Return committed records from `offset` on, and the offset to read on from.

        `coarsely`: as librdkafka alone does. BatchError at a batch that it refuses.
        """
        found: list[Record] = []
        stable_offset = self.stable_offset
        while offset < stable_offset and len(found) < records_max:
            record, transaction, batch = self.entries[offset - self.start_offset]
            if batch is not None and not (coarsely and not batch.is_refused):
                if not coarsely:
                    found.append(batch.stands_for_all)
                    offset = batch.stands_for_all.offset + 1
                    continue
                if not found:
                    self.expanded_whole += 1
                    raise BatchError("refused", partition=self.number, offset=offset)
                break
            if batch is not None and offset == batch.stands_for_all.offset:
                self.expanded_whole += 1
            offset += 1
            if record is not None and (transaction is None or not transaction.aborted):
                found.append(record._replace(headers=list(record.headers)))
        return found, offset

    def offset_since(self, at_ms: int) -> int | None:
        """Return the offset of the first record, committed or not, appended at `at_ms` or later."""
        records = (entry.record for entry in self.entries)
        return next((r.offset for r in records if r is not None and r.append_ms >= at_ms), None)

    def reaches(self, offset: int) -> bool:
        """Return whether the offset is inside the log, or its end."""
        return self.start_offset <= offset <= self.end_offset

    def holds(self, position: Position) -> bool:
        """Return whether a reader may begin there: inside the log, and of the same history."""
        if not self.reaches(position.offset):
            return False
        if position.leader_epoch < 0:
            return True
        if position.leader_epoch > self.leaderships[-1].epoch:
            return False
        later = [le.first_offset for le in self.leaderships if le.epoch > position.leader_epoch]
        return position.offset <= (later[0] if later else self.end_offset)

    def elect(self) -> None:
        """Elect a new leader with the same log."""
        self.leaderships.append(Leadership(self.leaderships[-1].epoch + 1, self.end_offset))

    def truncate(self, offset: int) -> None:
        """Elect an unclean leader, which lacks everything from `offset` on."""
        assert self.start_offset <= offset <= self.end_offset, "truncate inside the log"
        del self.entries[offset - self.start_offset :]
        self.open = {p: t for p, t in self.open.items() if t.first_offset < offset}
        self.leaderships = [le for le in self.leaderships if le.first_offset <= offset]
        self.leaderships.append(Leadership(self.leaderships[-1].epoch + 1, offset))

    def compact(self, before: int) -> None:
        """Delete what a log cleaner does below an offset: records whose key comes again below it,
        and aborted ones. Their offsets stay taken."""
        assert self.start_offset <= before <= self.stable_offset, "clean what is decided"
        keys = set()
        for place in reversed(range(before - self.start_offset)):
            record, transaction, _ = self.entries[place]
            is_aborted = transaction is not None and transaction.aborted
            if record is not None and (is_aborted or record.key in keys):
                self.entries[place] = Entry(None, None)
            elif record is not None:
                keys.add(record.key)

    def delete_before(self, offset: int) -> None:
        """Delete as retention or `delete_records` does."""
        assert self.start_offset <= offset <= self.end_offset, "delete inside the log"
        del self.entries[: offset - self.start_offset]
        self.start_offset = offset
