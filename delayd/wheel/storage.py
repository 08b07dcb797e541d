"""The wheel itself: frames in, frames out in rank order, checkpoints, forgetting.

Between checkpoints frames wait in memory and in files beyond their catalogued length; neither
survives a crash, and neither needs to: the buffer holds them, and ingest resumes where the last
checkpoint says.

A message whose hour is *far* goes to the file of its hour (`hours.py`). When the hour is due its
file is split into slots, piece by piece (`splitting.py`), or, if it is sparse, indexed
(`hour_index.py`). Pending replies always go to their slot: they are at hand at once.
Source: docs/design/storage.md.

Not thread safe: the caller holds one lock around every call, except `PendingCheckpoint.sync`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from delayd.wheel import Entry, Frame, FrozenSegment, Progress, SlotInfo
from delayd.wheel.catalogue import CatalogueBatch
from delayd.wheel.checkpoint import FILES_SYNCED_ONE_BY_ONE_MAX, PendingCheckpoint
from delayd.wheel.counts import PendingCounts
from delayd.wheel.descriptors import OPEN_FILES_MAX, Descriptors
from delayd.wheel.disk import Disk, SystemDisk
from delayd.wheel.failure import FailureLatch
from delayd.wheel.frame import PARTITIONS_MAX
from delayd.wheel.hours import HORIZON_S, Hours
from delayd.wheel.id_memory import IdMemory
from delayd.wheel.layout import Layout
from delayd.wheel.near_hours import NearHours
from delayd.wheel.packed import PackedFrame
from delayd.wheel.pending_replies import PendingReplies
from delayd.wheel.reader import Reader
from delayd.wheel.recounting import recount
from delayd.wheel.recovery import Recovered, recover
from delayd.wheel.segment import HourFile, Slot
from delayd.wheel.segments import Segments
from delayd.wheel.slot_index import SlotIndex
from replication.rank import SLOT_MS


@dataclass(frozen=True, slots=True)
class WheelStats:
    """What the wheel holds now, not yet checkpointed frames included."""

    slots: int
    hours: int
    """Hour files: of hours that are far or sparse, or not split yet."""
    frames: int
    bytes: int
    tail_bytes: int
    """Of `bytes`, those that are in memory only."""
    tail_segments: int
    """Slots and hours that they are of."""
    open_files: int
    files_to_unlink: int


class Wheel:
    """One node's pending messages.

    Any failed write or sync raises DiskError and is final: every later call raises DiskError too,
    and the process must end. What a reader finds damaged raises CorruptionError and is not final.
    """

    def __init__(
        self,
        layout: Layout,
        disk: Disk,
        partitions: int,
        recovered: Recovered,
        open_files_max: int,
        horizon_s: int,
        sparse_bytes_max: int | None,
    ) -> None:
        """Private: see `open`."""
        self._layout = layout
        self._disk = disk
        self._partitions = partitions
        self._catalogue = recovered.catalogue
        self._progress = recovered.progress
        self._descriptors = Descriptors(disk, open_files_max)
        self._reader = Reader(layout, disk, self._descriptors)
        self._root = disk.open_folder(layout.root)
        hours = (HourFile.from_line(n, line) for n, line in recovered.hours.items())
        self._hours = Hours(hours, horizon_s, sparse_bytes_max)
        if self._progress is not None:
            self._hours.believe(max(self._progress.log_ms, default=0))
        self._segments = Segments(
            layout, disk, self._descriptors, recovered, partitions, self._hours
        )
        self._pending_replies = PendingReplies(self._catalogue, partitions)
        self.counts = PendingCounts(self._catalogue)
        """Of pending messages; changes are durable with the next checkpoint."""
        self.ids = IdMemory(self._catalogue, self.counts.killed)
        """What is remembered of ids; changes are durable with the next checkpoint."""
        self._latch = FailureLatch()
        self._near_hours = NearHours(self._segments, self._reader, self.counts, self._latch)
        self._pending: PendingCheckpoint | None = None
        if not self.counts.is_known:
            recount(self._reader, self._segments.all(), self.ids, self.counts)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        partitions: int,
        disk: Disk | None = None,
        open_files_max: int = OPEN_FILES_MAX,
        horizon_s: int = HORIZON_S,
        sparse_bytes_max: int | None = None,
    ) -> "Wheel":
        """Open, after recovery to exactly the last checkpoint (see `recover` for its steps).

        An hour whose file has up to `sparse_bytes_max` bytes is indexed instead of split.

        Raises DiskError: in use by another process, another format or partition count, I/O.
        Raises CorruptionError: a catalogued file or LevelDB itself is lost or damaged.
        """
        assert 0 < partitions <= PARTITIONS_MAX, f"{partitions} partitions"
        assert open_files_max > 0, f"{open_files_max} open files"
        disk = SystemDisk() if disk is None else disk
        layout = Layout(str(directory.absolute()))
        recovered = recover(layout, disk, partitions)
        return cls(layout, disk, partitions, recovered, open_files_max, horizon_s, sparse_bytes_max)

    @property
    def progress(self) -> Progress | None:
        """What the last finished checkpoint remembers of ingest; None for a new wheel."""
        return self._progress

    # Frames in.

    def append(self, frames: Sequence[Frame | PackedFrame]) -> list[Entry]:
        """Store frames, in memory until they are too many; durable with the next checkpoint.

        Return their entries in the order given; that of a frame in an hour's file has no place yet
        (NO_PLACE) and cannot be read. A frame that cannot be encoded is a bug of the caller; the
        wheel then holds half a batch and refuses everything, like after a failed write.
        """
        with self._latch.tripped_by_errors():
            if frames:
                self._hours.believe(frames[-1].append_ms)
            entries, replies, messages, near_slot = self._segments.append(frames)
            for reply in replies:
                self._pending_replies.add(reply)
            for (number, topic), count in Counter(messages).items():
                self.counts.stored(number, topic, count, in_slot=number < near_slot)
        return entries

    def write_out(self) -> bool:
        """Write some tails to their files, unsynced: work that a checkpoint need not do at once.

        Return True if there are more.
        """
        with self._latch.tripped_by_errors():
            self._segments.write_some()
        return bool(self._segments.with_tail)

    # Hours: far, near, split or indexed.

    def advance(self, now_ms: int) -> None:
        """Tell the time: hours that begin within the horizon after it are due from now on.

        A wrong time costs work and nothing else.
        """
        self._hours.tell(now_ms)

    @property
    def whole_below(self) -> int | None:
        """All frames of the slots below this one can be read; None: of all slots.

        Frames of slots from it on may still be in the file of their hour, out of reach.
        """
        return self._hours.whole_below

    def split_some(self) -> bool:
        """Do a piece of the split, or of the index, of the first hour that is due, a few
        milliseconds; return True if there is more.

        Raises CorruptionError; this piece has moved nothing then.
        """
        self._latch.require_usable()
        return self._near_hours.advance()

    def hold_splits(self) -> bool:
        """Let no frame move from an hour to its slots until `release_splits`, and unlink no file;
        False, and nothing is held, while there are near hours to be split."""
        return self._hours.hold_splits()

    def release_splits(self) -> None:
        """Split on; idempotent."""
        self._hours.holds_splits = False

    def hours(self) -> list[int]:
        """Hours of which a file is there, ascending: far, sparse, or not split yet."""
        self._latch.require_usable()
        return self._hours.numbers.copy()

    def hour_info(self, hour: int) -> SlotInfo | None:
        """Of what of an hour is in its file, and was not moved to its slots; None if there is
        none."""
        self._latch.require_usable()
        found = self._hours.files.get(hour)
        return None if found is None else found.info()

    # What is there.

    def slots(self, first: int = 0, last: int | None = None) -> list[int]:
        """The slots from `first` to `last`, both included, that hold frames; ascending. Those whose
        frames are all in the file of their hour are not among them: see `whole_below`."""
        self._latch.require_usable()
        return self._segments.numbers(first, last)

    def next_slot(self, at_or_after: int) -> int | None:
        """Return the first slot from `at_or_after` on that holds frames."""
        self._latch.require_usable()
        return self._segments.next_number(at_or_after)

    def info(self, slot: int) -> SlotInfo | None:
        """What it holds as of now; None when that is nothing. Of what is in the file of its hour
        the highest offsets are those of the whole hour."""
        self._latch.require_usable()
        found = self._segments.slots.get(slot)
        return None if found is None else found.info_of_all()

    def end_of(self, slot: int) -> int:
        """The position that the next frame of the slot will get in its own file."""
        self._latch.require_usable()
        found = self._segments.slots.get(slot)
        return 0 if found is None else found.end

    def index(self, slot: int) -> SlotIndex | None:
        """A new index of the slot's messages, empty as yet; None when the slot holds nothing."""
        self._latch.require_usable()
        found = self._segments.slots.get(slot)
        return None if found is None else SlotIndex(self._reader, found)

    def is_current(self, index: SlotIndex) -> bool:
        """Is the slot still there of which this is an index, or was it forgotten meanwhile?"""
        return self._segments.slots.get(index.slot.number) is index.slot

    # Frames out.

    def read(self, entries: Sequence[Entry]) -> list[Frame]:
        """The frames of these entries, in the order given, every CRC verified.

        Memory: the frames, and one megabyte or one frame more. Raises CorruptionError with slot
        and byte range. An entry that is not in the wheel (any more) is a bug of the caller.
        """
        self._latch.require_usable()
        frames: list[Frame] = []
        for number, entries_of_slot in _by_slot(entries):
            slot = self._segments.slots.get(number)
            assert slot is not None, f"slot {number} is not in the wheel, or in its hour's file"
            frames += self._reader.frames(slot, entries_of_slot)
        return frames

    def pending_replies(self, from_offsets: Sequence[int]) -> list[Entry]:
        """Return pending replies with offset >= from_offsets[partition], by (partition, offset)."""
        self._latch.require_usable()
        assert len(from_offsets) == self._partitions, "one offset per partition"
        return self._pending_replies.waiting(from_offsets)

    def freeze(self, names: Sequence[tuple[bool, int]]) -> list[FrozenSegment]:
        """Write out the tails of these segments, unsynced, and tell what their files hold by now.

        `names`: is it an hour, and its number. Those that hold nothing are left out. The bytes stay
        what they are, and the files where they are, until they are forgotten; hours are forgotten
        by splits, see `hold_splits`.
        """
        with self._latch.tripped_by_errors():
            return self._segments.freeze(names)

    @property
    def root(self) -> str:
        """The data directory."""
        return self._layout.root

    # Forgetting.

    def forget_pending_replies(self, below_offsets: Sequence[int]) -> None:
        """Drop the pending replies below these offsets; durable with the next checkpoint.

        Call it before their slots are forgotten: a reply whose frame is gone cannot be read.
        """
        self._latch.require_usable()
        assert len(below_offsets) == self._partitions, "one offset per partition"
        self._pending_replies.forget(below_offsets)

    def forget(self, slots: Sequence[int], hours: Sequence[int] = ()) -> None:
        """Drop whole slots, and what is in the files of whole hours, at once; durable with the next
        checkpoint, unlinked after it."""
        self._latch.require_usable()
        for number in slots:
            if number in self._segments.slots:
                self._segments.forget(self._segments.slots[number])
        for number in hours:
            if number in self._hours.files:
                self._segments.forget(self._hours.files[number])

    # Checkpoints.

    def begin_checkpoint(self, progress: Progress) -> PendingCheckpoint:
        """Capture everything until now, with `progress`. Then `sync`, then `finish_checkpoint`."""
        with self._latch.tripped_by_errors():
            assert self._pending is None, "one checkpoint at a time"
            self._segments.write_tails()
            totals = self._segments.totals
            dirty, dropped = self._segments.take_changes()
            many = len(dirty) > FILES_SYNCED_ONE_BY_ONE_MAX
            paths = [self._layout.segment_file(segment.name) for segment in dirty]
            pending_replies, pending_replies_from = self._pending_replies.capture()
            batch = CatalogueBatch(
                progress=progress,
                totals=totals,
                slots={s.number: s.line() for s in dirty if isinstance(s, Slot)},
                hours={h.number: h.line() for h in dirty if isinstance(h, HourFile)},
                dropped=dropped,
                pending_replies=pending_replies,
                pending_replies_from=pending_replies_from,
                notes={**self.ids.capture(), **self.counts.capture()},
            )
            self._pending = PendingCheckpoint(
                self._disk,
                self._catalogue,
                batch,
                files=[] if many else [self._descriptors.take(path) for path in paths],
                folders=self._segments.files.take_new_names(),
                whole_volume=self._root if many else None,
                forgotten_files=self._segments.files.take_forgotten(),
                on_failure=self._latch.trip,
            )
        return self._pending

    def finish_checkpoint(self, pending: PendingCheckpoint) -> None:
        """Take note that `pending` is durable, and unlink a bounded number of forgotten files."""
        with self._latch.tripped_by_errors():
            assert pending is self._pending, "another checkpoint is pending"
            assert pending.is_durable, "the checkpoint is not synced"
            self._pending = None
            self._progress = pending.progress
            self._pending_replies.settle()
            self.ids.settle()
            for file in pending.files:
                self._descriptors.give(file)
            self._segments.files.release(pending.forgotten_files)
            for number, start in pending.split_to.items():
                hour = self._hours.files.get(number)
                if hour is not None:
                    self._segments.files.punch(hour, start)
            if not self._hours.holds_splits:
                self._segments.files.unlink_some()

    def stats(self) -> WheelStats:
        """Figures of now."""
        return WheelStats(
            slots=self._segments.slot_count,
            hours=len(self._hours.numbers),
            frames=self._segments.frame_count,
            bytes=self._segments.bytes,
            tail_bytes=self._segments.tail_bytes,
            tail_segments=len(self._segments.with_tail),
            open_files=len(self._descriptors),
            files_to_unlink=self._segments.files.left_count,
        )

    def pass_to(self, slot: int) -> None:
        """The frontier has passed all slots below this one: they are not pending any more."""
        self._latch.require_usable()
        whole_below = self.whole_below
        self.counts.pass_to(
            slot if whole_below is None else min(slot, whole_below), self.ids.kills_between
        )

    def free_bytes(self) -> int:
        """Bytes free on the volume."""
        self._latch.require_usable()
        return self._disk.free_bytes(self._layout.root)

    def close(self) -> None:
        """Close without a checkpoint; what is not in the last one comes from the buffer again.

        Idempotent. No `sync` may be under way.
        """
        if self._latch.is_closed:
            return
        self._latch.is_closed = True
        try:
            for file in self._pending.files if self._pending else ():
                self._disk.close(file)
            self._descriptors.close()
            self._disk.close(self._root)
        finally:
            self._catalogue.close()


def _by_slot(entries: Sequence[Entry]) -> Iterator[tuple[int, Sequence[Entry]]]:
    """The entries cut where another slot begins."""
    first = 0
    after_ms = number = -1
    for index, entry in enumerate(entries):
        due_ms = entry[0]
        if due_ms >= after_ms or due_ms < after_ms - SLOT_MS:
            if index:
                yield number, entries[first:index]
            first, number = index, due_ms // SLOT_MS
            after_ms = (number + 1) * SLOT_MS
    if entries:
        yield number, entries[first:]
