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

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from delayd.errors import DiskError
from delayd.wheel import Entry, Frame, FrozenSegment, Progress, SlotInfo
from delayd.wheel.catalogue import CatalogueBatch, Totals
from delayd.wheel.checkpoint import FILES_SYNCED_ONE_BY_ONE_MAX, PendingCheckpoint
from delayd.wheel.counts import PendingCounts
from delayd.wheel.descriptors import OPEN_FILES_MAX, Descriptors
from delayd.wheel.disk import Disk, SystemDisk
from delayd.wheel.files import Files
from delayd.wheel.frame import PARTITIONS_MAX
from delayd.wheel.hour_index import HourIndex
from delayd.wheel.hours import Hours
from delayd.wheel.id_memory import IdMemory
from delayd.wheel.layout import HOUR_SLOTS, Layout, hour_of
from delayd.wheel.packed import PackedFrame, packed
from delayd.wheel.pending_replies import PendingReplies
from delayd.wheel.reader import Reader
from delayd.wheel.recounting import recount
from delayd.wheel.recovery import Recovered, recover
from delayd.wheel.segment import DIGEST_MODULO, HourFile, Segment, Slot
from delayd.wheel.slot_index import SlotIndex
from delayd.wheel.splitting import frames_at, require_all
from replication.rank import SLOT_MS

TAIL_BYTES_MAX = 32 * 1024 * 1024
"""Frames that wait in memory; beyond it they are written out to their files, unsynced."""
HORIZON_S = 2 * 3600
"""An hour that begins later than this is far."""
TAILS_PER_CALL = 64
"""Tails written out by one call of `write_out`: about 3 ms if their files are new."""
NO_PLACE = -1
"""The position of a frame that waits in the file of its hour."""
_made = tuple.__new__


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
        self._files = Files(layout, disk, self._descriptors, recovered.files)
        self._slots = {n: Slot.from_line(n, line) for n, line in recovered.slots.items()}
        self._numbers = sorted(self._slots)
        self._slot_lines = len(self._slots)
        """Slots with frames of their own."""
        self._hours = Hours(
            (HourFile.from_line(n, line) for n, line in recovered.hours.items()),
            horizon_s,
            sparse_bytes_max,
        )
        self._indexing: HourIndex | None = None
        """Of the first hour that is due, if that has begun."""
        self._pending_replies = PendingReplies(self._catalogue, partitions)
        self.counts = PendingCounts(self._catalogue)
        """Of pending messages; changes are durable with the next checkpoint."""
        self.ids = IdMemory(self._catalogue, self.counts.killed)
        """What is remembered of ids; changes are durable with the next checkpoint."""
        self._tail_bytes = 0
        self._frames = sum(segment.count for segment in self._segments())
        self._bytes = sum(segment.written for segment in self._segments())
        self._bytes -= sum(hour.start for hour in self._hours.files.values())
        self._with_tail: dict[Segment, None] = {}
        """Segments with frames that are in memory only, in the order in which they got them."""
        self._dirty: set[Segment] = set()
        """Segments whose file or line has changed since the last begin."""
        self._dropped: set[tuple[bool, int]] = set()
        """Segments forgotten since the last begin: their catalogue lines go."""
        self._pending: PendingCheckpoint | None = None
        self._failure: BaseException | None = None
        self._is_closed = False
        if self._progress is not None:
            self._hours.believe(max(self._progress.log_ms, default=0))
        if self._numbers:
            self._hours.make_near(hour_of(self._numbers[-1]))
        if not self.counts.is_known:
            recount(self._reader, self._segments(), self.ids, self.counts)

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

    def _segments(self) -> Iterable[Segment]:
        return (*self._slots.values(), *self._hours.files.values())

    # Frames in.

    def append(self, frames: Sequence[Frame | PackedFrame]) -> list[Entry]:
        """Store frames, in memory until they are too many; durable with the next checkpoint.

        Returns their entries in the order given; that of a frame in an hour's file has no place yet
        (NO_PLACE) and cannot be read. A frame that cannot be encoded is a bug of the caller; the
        wheel then holds half a batch and refuses everything, like after a failed write.
        """
        entries: list[Entry] = []
        counted: list[tuple[int, str]] = []
        # The hot path of ingest: nothing is looked up for each frame that can be looked up before.
        slots, hours, with_tail = self._slots, self._hours.files, self._with_tail
        stored_bytes, tail_bytes = 0, self._tail_bytes
        with self._or_poisoned():
            if frames:
                self._hours.believe(frames[-1].append_ms)
            near_slot = self._hours.near_slot
            for frame in frames:
                if type(frame) is not PackedFrame:
                    frame = packed(frame)
                due_ms, partition, offset, lane, kind, _, topic, data, crc = frame
                number = due_ms // SLOT_MS
                segment: Segment
                if number < near_slot or kind:
                    segment = slots.get(number) or self._create_slot(number)
                    if not segment.count:
                        self._slot_lines += 1
                    tail = segment.tail
                    position = segment.written + len(tail)
                else:
                    hour = number // HOUR_SLOTS
                    segment = hours.get(hour) or self._create_hour(hour)
                    tail = segment.tail
                    position = NO_PLACE
                length = len(data)
                if not tail:
                    with_tail[segment] = None
                tail += data
                segment.count += 1
                segment.digest += crc
                highest = segment.highest_offsets
                if offset > highest[partition]:
                    highest[partition] = offset
                entry: Entry = _made(
                    Entry, (due_ms, partition, offset, lane, kind, position, length)
                )
                if kind:
                    self._pending_replies.add(entry)
                else:
                    counted.append((number, topic))
                entries.append(entry)
                stored_bytes += length
                tail_bytes += length
                if tail_bytes > TAIL_BYTES_MAX:
                    self._tail_bytes = tail_bytes
                    self._write_tails()
                    tail_bytes = self._tail_bytes
            self._frames += len(frames)
            self._bytes += stored_bytes
            self._tail_bytes = tail_bytes
            for (number, topic), count in Counter(counted).items():
                self.counts.stored(number, topic, count, in_slot=number < near_slot)
            if tail_bytes > TAIL_BYTES_MAX // 2:
                # A share of them now, so that no later batch has to write all of them.
                enough = tail_bytes - 2 * stored_bytes
                while self._with_tail and self._tail_bytes > enough:
                    self._write_tail(next(iter(self._with_tail)))
        return entries

    def _add(self, slot: Slot, partition: int, offset: int, crc: int, data: bytes) -> None:
        if not slot.tail:
            self._with_tail[slot] = None
        slot.tail += data
        slot.count += 1
        slot.digest += crc
        if offset > slot.highest_offsets[partition]:
            slot.highest_offsets[partition] = offset
        self._tail_bytes += len(data)

    def _create_slot(self, number: int) -> Slot:
        self._hours.make_near(hour_of(number))
        generation = self._files.next_generation(False, number)
        slot = Slot(number, generation, self._partitions)
        self._slots[number] = slot
        insort(self._numbers, number)
        return slot

    def _create_hour(self, number: int) -> HourFile:
        generation = self._files.next_generation(True, number)
        hour = HourFile(number, generation, self._partitions)
        self._hours.add(hour)
        return hour

    def write_out(self) -> bool:
        """Write some tails to their files, unsynced: work that a checkpoint need not do at once.

        True if there are more.
        """
        with self._or_poisoned():
            for _ in range(min(TAILS_PER_CALL, len(self._with_tail))):
                self._write_tail(next(iter(self._with_tail)))
        return bool(self._with_tail)

    def _write_tails(self) -> None:
        for segment in sorted(self._with_tail, key=lambda segment: segment.name):
            self._write_tail(segment)
        assert self._tail_bytes == 0, f"{self._tail_bytes} tail bytes are in no segment"

    def _write_tail(self, segment: Segment) -> None:
        name = segment.name
        is_new = segment.written == 0
        if is_new:
            self._files.name(name)
        file = self._descriptors.get(self._layout.segment_file(name), create=is_new)
        self._disk.append(file, segment.tail)
        length = len(segment.tail)
        segment.written += length
        segment.tail = bytearray()
        self._tail_bytes -= length
        self._with_tail.pop(segment, None)
        self._dirty.add(segment)

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
        """A piece of the split, or of the index, of the first hour that is due, a few milliseconds;
        True if there is more.

        Raises CorruptionError; nothing has been moved by this piece then.
        """
        self._require_usable()
        hour = self._hours.first_due
        if hour is None:
            return False
        if self._hours.is_sparse(hour):
            self._index_piece(hour)
        elif self._tail_bytes > TAIL_BYTES_MAX // 2:
            # Else the tails of an hour's 3,600 slots would be written out at once, in a second.
            self.write_out()
        else:
            self._split_piece(hour)
        return self._hours.first_due is not None

    def _split_piece(self, hour: HourFile) -> None:
        moved = frames_at(self._reader, hour, hour.start)
        if not moved:
            require_all(hour, hour.count, hour.digest)
        with self._or_poisoned():
            for number, partition, offset, crc, topic, data in moved:
                slot = self._slots.get(number) or self._create_slot(number)
                if not slot.count:
                    self._slot_lines += 1
                self._add(slot, partition, offset, crc, data)
                hour.start += len(data)
                hour.count -= 1
                hour.digest -= crc
                self.counts.moved(number, topic)
            if moved:
                self._dirty.add(hour)
                if self._tail_bytes > TAIL_BYTES_MAX:
                    self._write_tails()
            else:
                self._forget(hour)

    def _index_piece(self, hour: HourFile) -> None:
        if self._indexing is None or self._indexing.hour is not hour:
            self._indexing = HourIndex(hour)
        found = self._indexing.advance(self._reader)
        for slot, topic in found:
            self.counts.indexed(slot, topic)
        if not found:
            for number, part in self._indexing.parts():
                whose = self._slots.get(number) or self._create_slot(number)
                whose.part = part
            self._hours.make_whole(hour)
            self._indexing = None

    def hold_splits(self) -> bool:
        """Let no frame move from an hour to its slots until `release_splits`, and unlink no file;
        False, and nothing is held, while there are near hours to be split."""
        return self._hours.hold_splits()

    def release_splits(self) -> None:
        """Split on; idempotent."""
        self._hours.holds_splits = False

    def hours(self) -> list[int]:
        """Hours of which a file is there, ascending: far, sparse, or not split yet."""
        self._require_usable()
        return self._hours.numbers.copy()

    def hour_info(self, hour: int) -> SlotInfo | None:
        """Of what of an hour is in its file, and was not moved to its slots; None if there is
        none."""
        self._require_usable()
        found = self._hours.files.get(hour)
        return None if found is None else found.info()

    # What is there.

    def slots(self, first: int = 0, last: int | None = None) -> list[int]:
        """The slots from `first` to `last`, both included, that hold frames; ascending. Those whose
        frames are all in the file of their hour are not among them: see `whole_below`."""
        self._require_usable()
        end = len(self._numbers) if last is None else bisect_left(self._numbers, last + 1)
        return self._numbers[bisect_left(self._numbers, first) : end]

    def next_slot(self, at_or_after: int) -> int | None:
        """The first slot from `at_or_after` on that holds frames."""
        self._require_usable()
        index = bisect_left(self._numbers, at_or_after)
        return self._numbers[index] if index < len(self._numbers) else None

    def info(self, slot: int) -> SlotInfo | None:
        """What it holds as of now; None when that is nothing. Of what is in the file of its hour
        the highest offsets are those of the whole hour."""
        self._require_usable()
        found = self._slots.get(slot)
        return None if found is None else found.info_of_all()

    def end_of(self, slot: int) -> int:
        """The position that the next frame of the slot will get in its own file."""
        self._require_usable()
        found = self._slots.get(slot)
        return 0 if found is None else found.end

    def index(self, slot: int) -> SlotIndex | None:
        """A new index of the slot's messages, empty as yet; None when the slot holds nothing."""
        self._require_usable()
        found = self._slots.get(slot)
        return None if found is None else SlotIndex(self._reader, found)

    def is_current(self, index: SlotIndex) -> bool:
        """Is the slot still there of which this is an index, or was it forgotten meanwhile?"""
        return self._slots.get(index.slot.number) is index.slot

    # Frames out.

    def read(self, entries: Sequence[Entry]) -> list[Frame]:
        """The frames of these entries, in the order given, every CRC verified.

        Memory: the frames, and one megabyte or one frame more. Raises CorruptionError with slot
        and byte range. An entry that is not in the wheel (any more) is a bug of the caller.
        """
        self._require_usable()
        frames: list[Frame] = []
        for number, entries_of_slot in _by_slot(entries):
            slot = self._slots.get(number)
            assert slot is not None, f"slot {number} is not in the wheel, or in its hour's file"
            frames += self._reader.frames(slot, entries_of_slot)
        return frames

    def pending_replies(self, from_offsets: Sequence[int]) -> list[Entry]:
        """Return pending replies with offset >= from_offsets[partition], by (partition, offset)."""
        self._require_usable()
        assert len(from_offsets) == self._partitions, "one offset per partition"
        return self._pending_replies.waiting(from_offsets)

    def freeze(self, names: Sequence[tuple[bool, int]]) -> list[FrozenSegment]:
        """Write out the tails of these segments, unsynced, and tell what their files hold by now.

        `names`: is it an hour, and its number. Those that hold nothing are left out. The bytes stay
        what they are, and the files where they are, until they are forgotten; hours are forgotten
        by splits, see `hold_splits`.
        """
        frozen = []
        with self._or_poisoned():
            for is_hour, number in names:
                held = self._hours.files if is_hour else self._slots
                segment: Segment | None = held.get(number)
                if segment is None or not segment.end:
                    continue
                if segment.tail:
                    self._write_tail(segment)
                start = segment.start if isinstance(segment, HourFile) else 0
                digest = segment.digest % DIGEST_MODULO
                frozen.append(
                    FrozenSegment(segment.name, start, segment.written, segment.count, digest)
                )
        return frozen

    @property
    def root(self) -> str:
        """The data directory."""
        return self._layout.root

    # Forgetting.

    def forget_pending_replies(self, below_offsets: Sequence[int]) -> None:
        """Drop the pending replies below these offsets; durable with the next checkpoint.

        Call it before their slots are forgotten: a reply whose frame is gone cannot be read.
        """
        self._require_usable()
        assert len(below_offsets) == self._partitions, "one offset per partition"
        self._pending_replies.forget(below_offsets)

    def forget(self, slots: Sequence[int], hours: Sequence[int] = ()) -> None:
        """Drop whole slots, and what is in the files of whole hours, at once; durable with the next
        checkpoint, unlinked after it."""
        self._require_usable()
        for number in slots:
            if number in self._slots:
                self._forget(self._slots[number])
        for number in hours:
            if number in self._hours.files:
                self._forget(self._hours.files[number])

    def _forget(self, segment: Segment) -> None:
        if isinstance(segment, HourFile):
            self._hours.remove(segment)
            self._forget_parts(segment)
            self._bytes += segment.start
        else:
            self._remove_slot(segment.number)
            if not segment.end:
                return
            self._slot_lines -= 1
        self._with_tail.pop(segment, None)
        self._dirty.discard(segment)
        self._dropped.add(segment.name[:2])
        self._frames -= segment.count
        self._bytes -= segment.end
        self._tail_bytes -= len(segment.tail)
        self._files.forget(segment)

    def _remove_slot(self, number: int) -> None:
        del self._slots[number]
        del self._numbers[bisect_left(self._numbers, number)]

    def _forget_parts(self, hour: HourFile) -> None:
        first = hour.number * HOUR_SLOTS
        for number in self.slots(first, first + HOUR_SLOTS - 1):
            slot = self._slots[number]
            slot.part = None
            if not slot.end:
                self._remove_slot(number)

    # Checkpoints.

    def begin_checkpoint(self, progress: Progress) -> PendingCheckpoint:
        """Capture everything until now, with `progress`. Then `sync`, then `finish_checkpoint`."""
        with self._or_poisoned():
            assert self._pending is None, "one checkpoint at a time"
            self._write_tails()
            dirty = sorted(self._dirty, key=lambda segment: segment.name)
            many = len(dirty) > FILES_SYNCED_ONE_BY_ONE_MAX
            paths = [self._layout.segment_file(segment.name) for segment in dirty]
            pending_replies, pending_replies_from = self._pending_replies.capture()
            batch = CatalogueBatch(
                progress=progress,
                totals=Totals(len(self._hours.files), self._slot_lines, self._frames),
                slots={s.number: s.line() for s in dirty if isinstance(s, Slot)},
                hours={h.number: h.line() for h in dirty if isinstance(h, HourFile)},
                dropped=tuple(self._dropped),
                pending_replies=pending_replies,
                pending_replies_from=pending_replies_from,
                notes={**self.ids.capture(), **self.counts.capture()},
            )
            self._pending = PendingCheckpoint(
                self._disk,
                self._catalogue,
                batch,
                files=[] if many else [self._descriptors.take(path) for path in paths],
                folders=self._files.take_new_names(),
                whole_volume=self._root if many else None,
                forgotten_files=self._files.take_forgotten(),
                on_failure=self._poison,
            )
            self._dirty = set()
            self._dropped = set()
        return self._pending

    def finish_checkpoint(self, pending: PendingCheckpoint) -> None:
        """Take note that `pending` is durable, and unlink a bounded number of forgotten files."""
        with self._or_poisoned():
            assert pending is self._pending, "another checkpoint is pending"
            assert pending.is_durable, "the checkpoint is not synced"
            self._pending = None
            self._progress = pending.progress
            self._pending_replies.settle()
            self.ids.settle()
            for file in pending.files:
                self._descriptors.give(file)
            self._files.release(pending.forgotten_files)
            for number, start in pending.split_to.items():
                hour = self._hours.files.get(number)
                if hour is not None:
                    self._files.punch(hour, start)
            if not self._hours.holds_splits:
                self._files.unlink_some()

    def stats(self) -> WheelStats:
        """Figures of now."""
        return WheelStats(
            slots=len(self._numbers),
            hours=len(self._hours.numbers),
            frames=self._frames,
            bytes=self._bytes,
            tail_bytes=self._tail_bytes,
            tail_segments=len(self._with_tail),
            open_files=len(self._descriptors),
            files_to_unlink=self._files.left_count,
        )

    def pass_to(self, slot: int) -> None:
        """The frontier has passed all slots below this one: they are not pending any more."""
        self._require_usable()
        whole_below = self.whole_below
        self.counts.pass_to(
            slot if whole_below is None else min(slot, whole_below), self.ids.kills_between
        )

    def free_bytes(self) -> int:
        """Bytes free on the volume."""
        self._require_usable()
        return self._disk.free_bytes(self._layout.root)

    def close(self) -> None:
        """Close without a checkpoint; what is not in the last one comes from the buffer again.

        Idempotent. No `sync` may be under way.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            for file in self._pending.files if self._pending else ():
                self._disk.close(file)
            self._descriptors.close()
            self._disk.close(self._root)
        finally:
            self._catalogue.close()

    # Failure.

    def _poison(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    @contextmanager
    def _or_poisoned(self) -> Iterator[None]:
        self._require_usable()
        try:
            yield
        except BaseException as error:
            self._poison(error)
            raise

    def _require_usable(self) -> None:
        assert not self._is_closed, "the wheel is closed"
        if self._failure is not None:
            raise DiskError(
                f"the wheel stopped after an earlier failure: {self._failure}",
                remedy="end the process; it goes on from the last checkpoint",
            ) from self._failure


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
