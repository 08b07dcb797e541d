"""The wheel itself: frames in, frames out in rank order, checkpoints, forgetting.

Between checkpoints, frames wait in memory and in files beyond their catalogued length. They do not
survive a crash, and need not: the buffer holds them, and ingest resumes at the last checkpoint.

A message whose hour is *far* goes to the file of its hour (`hours.py`). When the hour is due, its
file is split into slots piece by piece, or, if it is sparse, indexed (`near_hours.py`). Pending
replies always go to their slot, where they can be read at once. `segments.py` has the slots and
hours, and the frames that wait in memory.
Source: docs/design/storage.md.
Not thread safe: one lock is held around every call but `PendingCheckpoint.sync`, `snapshots.open`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from delayd.runtime.native.packing import PackRules, Run
from delayd.runtime.native.unpacking import Frames
from delayd.wheel import Entry, Frame, Progress, SegmentLine, SlotInfo
from delayd.wheel.catalogue import CatalogueBatch
from delayd.wheel.checkpoint import FILES_SYNCED_ONE_BY_ONE_MAX, PendingCheckpoint
from delayd.wheel.counts import PendingCounts
from delayd.wheel.disk import OPEN_FILES_MAX, Descriptors, Disk, FailureLatch, SystemDisk
from delayd.wheel.finding import Finder
from delayd.wheel.frame import PARTITIONS_MAX, PackedFrame
from delayd.wheel.hours import HORIZON_S, Hours
from delayd.wheel.id_memory import IdMemory
from delayd.wheel.layout import Layout
from delayd.wheel.near_hours import NearHours
from delayd.wheel.pending_replies import PendingReplies
from delayd.wheel.reader import Reader, by_slot
from delayd.wheel.recounting import recount
from delayd.wheel.recovery import Recovered, discard, recover
from delayd.wheel.segment import HourFile
from delayd.wheel.segments import Segments
from delayd.wheel.shared_indexes import SharedIndexes
from delayd.wheel.slot_index import SlotIndex
from delayd.wheel.snapshot import Snapshots


@dataclass(frozen=True, slots=True)
class WheelStats:
    """The content of the wheel as of now, frames without a checkpoint included."""

    slots: int
    hours: int
    """Files of hours that are far or sparse, or not split yet."""
    frames: int
    bytes: int
    tail_bytes: int
    """Bytes of `bytes` that are in memory only."""
    tail_segments: int
    """Slots and hours with such bytes."""
    open_files: int
    files_to_unlink: int


class Wheel:
    """One node's pending messages.

    Any failed write or sync raises DiskError and is final: every later call raises DiskError too,
    and the process must end. Not final are a DiskFullError, after which what could not be written
    waits in memory (`is_refused`), and a CorruptionError, the damage that a read finds.
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
        lines = (line for line in recovered.lines if line.name.is_hour)
        self._hours = Hours(map(HourFile.from_line, lines), horizon_s, sparse_bytes_max)
        if self._progress is not None:
            self._hours.believe(max(self._progress.log_ms, default=0))
        self._segments = Segments(
            layout, disk, self._descriptors, recovered, partitions, self._hours
        )
        self._indexes = SharedIndexes(self._reader, self._segments.slots)
        self._pending_replies = PendingReplies(self._catalogue, partitions)
        self.counts = PendingCounts(self._catalogue)
        """Of pending messages; changes are durable with the next checkpoint."""
        self.ids = IdMemory(self._catalogue, self.counts.killed)
        """The memory of ids; changes are durable with the next checkpoint."""
        self.snapshots = Snapshots(layout, disk, self._catalogue, self._segments.files)
        self._latch = FailureLatch()
        self._near_hours = NearHours(self._segments, self._reader, self.counts, self._latch)
        self.finder = Finder(self._segments, self._reader, self._latch)
        self._pending: PendingCheckpoint | None = None
        if not self.counts.is_known:
            for segment in self._segments.all():
                recount(segment, self._reader, self.ids, self.counts)

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
        """Open a wheel, after recovery to exactly its last checkpoint (see `recover`).

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
        """The progress of ingest at the last finished checkpoint; None for a new wheel."""
        return self._progress

    # Frames in.

    def append(
        self, frames: Sequence[Frame | PackedFrame], until_ms: int | None = None
    ) -> list[Entry]:
        """Store frames, in memory until they are too many; durable with the next checkpoint.

        Append times beyond `until_ms` are not believed: the hours up to one that is days ahead
        would be near, and their messages take a file for each second.

        Return their entries in the order given. The entry of a frame in an hour file has no place
        yet (NO_PLACE) and cannot be read. A frame that cannot be encoded is a bug of the caller:
        the wheel then holds half a batch and refuses every call, as after a failed write.
        """
        with self._latch.tripped_by_errors():
            if frames:
                last_ms = frames[-1].append_ms
                self._hours.believe(last_ms if until_ms is None else min(last_ms, until_ms))
            entries, replies, messages, near_slot = self._segments.append(frames)
            for reply in replies:
                self._pending_replies.add(reply)
            for (number, topic), count in Counter(messages).items():
                self.counts.stored(number, topic, count, in_slot=number < near_slot)
        return entries

    @property
    def filing(self) -> tuple[int, bool]:
        """The first slot whose messages go to the file of their hour, and whether those are counted
        by slot: what a run is packed for."""
        near_slot = self._hours.near_slot
        return near_slot, self.counts.floor > near_slot

    def append_run(
        self, run: Run, rules: PackRules, until_ms: int, told_ms: int
    ) -> list[Entry] | None:
        """Store a run that was packed for this `filing`, as `append` stores its frames.

        Return the entries of what is due by `told_ms`. None, and nothing is stored, if it was
        packed for another filing, or its append time has made more hours near.
        """
        with self._latch.tripped_by_errors():
            if run.stored:
                self._hours.believe(min(run.append_ms, until_ms))
            if self.filing != (rules.near_slot, rules.counts_slots):
                return None
            entries = self._segments.append_run(run, rules.partition, told_ms)
            for number, topic, count in run.tallies:
                self.counts.stored(number, topic, count, in_slot=number < rules.near_slot)
        return entries

    def write_out(self) -> bool:
        """Write some tails to their files, unsynced: the next checkpoint has less to write.

        Return True if there are more.
        """
        with self._latch.tripped_by_errors():
            self._segments.write_some()
        return bool(self._segments.with_tail)

    # Hours: far, near, split or indexed.

    def advance(self, now_ms: int) -> None:
        """Make hours due that begin within the horizon after this time.

        A wrong time costs work and nothing else.
        """
        self._hours.tell(now_ms)

    @property
    def whole_below(self) -> int | None:
        """The slot below which all frames can be read; None: all can.

        Frames of later slots may still be in the file of their hour, out of reach.
        """
        return self._hours.whole_below

    def split_some(self, *, has_room: bool = True) -> bool:
        """Do a piece of the split, or of the index, of the first hour that is due, a few
        milliseconds; return True if there is more. An index needs no room on the disk.

        Raises CorruptionError; this piece has moved nothing then.
        """
        self._latch.require_usable()
        self._hours.lacks_room = not has_room
        return self._near_hours.advance()

    def hold_splits(self) -> bool:
        """Move no frame from an hour to its slots, and unlink no file, until `release_splits`.

        Return False, and hold nothing, while near hours are still to be split."""
        return self._hours.hold_splits()

    def release_splits(self) -> None:
        """Allow splits again; idempotent."""
        self._hours.holds_splits = False

    def hours(self) -> list[int]:
        """Return the hours that have a file, ascending: far, sparse, or not split yet."""
        self._latch.require_usable()
        return self._hours.numbers.copy()

    def hour_info(self, hour: int) -> SlotInfo | None:
        """Return the line of an hour file: of the frames that were not moved to their slots. None
        if there is no file."""
        self._latch.require_usable()
        found = self._hours.files.get(hour)
        return None if found is None else found.info()

    def slots(self, first: int = 0, last: int | None = None) -> list[int]:
        """Return the slots from `first` to `last`, both included, that hold frames; ascending.

        Slots whose frames are all in the file of their hour are left out: see `whole_below`."""
        self._latch.require_usable()
        return self._segments.numbers(first, last)

    def next_slot(self, at_or_after: int) -> int | None:
        """Return the first slot from `at_or_after` on that holds frames."""
        self._latch.require_usable()
        return self._segments.next_number(at_or_after)

    def info(self, slot: int) -> SlotInfo | None:
        """Return the line of a slot as of now; None if it holds nothing. Of frames in the file of
        its hour, the highest offsets are those of the whole hour."""
        self._latch.require_usable()
        found = self._segments.slots.get(slot)
        return None if found is None else found.info_of_all()

    def end_of(self, slot: int) -> int:
        """Return the position of the slot's next frame in its own file."""
        self._latch.require_usable()
        found = self._segments.slots.get(slot)
        return 0 if found is None else found.end

    def index(self, slot: int, *, keeps: bool = False) -> SlotIndex | None:
        """Return the slot's index (`shared_indexes.py`); None if the slot holds nothing."""
        self._latch.require_usable()
        return self._indexes.of(slot, keeps=keeps)

    def is_current(self, index: SlotIndex) -> bool:
        """Return whether the slot of this index is still there, and was found whole."""
        return self._segments.slots.get(index.slot.number) is index.slot and not index.is_broken

    # Frames out.

    def read(self, entries: Sequence[Entry]) -> list[Frame]:
        """Return the frames of these entries, in the order given, every CRC verified.

        Memory: the frames, and one megabyte or one frame more. Raises CorruptionError with slot and
        byte range. An entry that is not in the wheel (any more) is a bug of the caller.
        """
        self._latch.require_usable()
        frames: list[Frame] = []
        for number, entries_of_slot in by_slot(entries):
            slot = self._segments.slots.get(number)
            assert slot is not None, f"slot {number} is not in the wheel, or in its hour's file"
            frames += self._reader.frames(slot, entries_of_slot)
        return frames

    def gather(self, entries: Sequence[Entry]) -> Frames | None:
        """Return what `read` would decode, natively read; None if not all of it is in files."""
        self._latch.require_usable()
        return self._reader.gather(self._segments.slots, entries)

    def pending_replies(self, from_offsets: Sequence[int]) -> list[Entry]:
        """Return pending replies with offset >= from_offsets[partition], by (partition, offset)."""
        self._latch.require_usable()
        assert len(from_offsets) == self._partitions, "one offset per partition"
        return self._pending_replies.waiting(from_offsets)

    def freeze(self, names: Sequence[tuple[bool, int]]) -> list[SegmentLine]:
        """Write the tails of these segments, unsynced, and return the state of their files.

        `names`: is it an hour, and its number. Empty segments are left out. The bytes do not change
        and the files stay until they are forgotten; splits forget hours, see `hold_splits`.
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
        """Drop whole slots and hour files at once; durable with the next checkpoint, unlinked after
        it."""
        self._latch.require_usable()
        for number in slots:
            if number in self._segments.slots:
                self._segments.forget(self._segments.slots[number])
        for number in hours:
            if number in self._hours.files:
                self._segments.forget(self._hours.files[number])

    # Checkpoints.

    def begin_checkpoint(self, progress: Progress) -> PendingCheckpoint:
        """Capture all changes until now, with `progress`. Then `sync`, then `finish_checkpoint`.

        Raises DiskFullError, and captures nothing, if the tails do not fit on the disk.
        """
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
                lines=tuple(segment.line() for segment in dirty),
                dropped=dropped,
                pending_replies=pending_replies,
                pending_replies_from=pending_replies_from,
                notes=self.ids.capture(),
                counts=self.counts.capture(),
            )
            self._pending = PendingCheckpoint(
                disk=self._disk,
                catalogue=self._catalogue,
                batch=batch,
                files=[] if many else [self._descriptors.take(path) for path in paths],
                folders=self._segments.files.take_new_names(),
                whole_volume=self._root if many else None,
                forgotten_files=self._segments.files.take_forgotten(),
                on_failure=self._latch.trip,
            )
        return self._pending

    def finish_checkpoint(self, pending: PendingCheckpoint) -> None:
        """Note that `pending` is durable, and unlink a bounded number of forgotten files."""
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
            for name, _, start in pending.batch.lines:
                if name.is_hour and (hour := self._hours.files.get(name.number)):
                    self._segments.files.punch(hour, start)
            if not self._hours.holds_splits:
                self._segments.files.unlink_some()

    def stats(self) -> WheelStats:
        """Return the figures of now."""
        return WheelStats(
            slots=len(self._segments.slots),
            hours=len(self._hours.numbers),
            frames=self._segments.frame_count,
            bytes=self._segments.bytes,
            tail_bytes=self._segments.tail_bytes,
            tail_segments=len(self._segments.with_tail),
            open_files=len(self._descriptors),
            files_to_unlink=self._segments.files.left_count,
        )

    @property
    def tail_bytes(self) -> int:
        """The bytes of frames that wait in memory."""
        return self._segments.tail_bytes

    def pass_to(self, slot: int) -> None:
        """Note that all slots below this one are passed: they are not pending."""
        self._latch.require_usable()
        if (whole_below := self.whole_below) is not None:
            slot = min(slot, whole_below)
        self.counts.pass_to(slot, self.ids.kills_between)

    @property
    def is_refused(self) -> bool:
        """True while frames wait in memory because the disk was full when they were written."""
        return self._segments.is_refused

    def free_bytes(self) -> int:
        """Return the bytes free on the volume."""
        self._latch.require_usable()
        return self._disk.free_bytes(self._layout.root)

    def discard(self) -> None:
        """Close the wheel and remove all that it holds."""
        self.close()
        discard(self._layout, self._disk)

    def close(self) -> None:
        """Close without a checkpoint. Idempotent. No `sync` may be running."""
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
