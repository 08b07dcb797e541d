"""The wheel itself: frames in, frames out in rank order, checkpoints, forgetting.

Between checkpoints frames wait in memory and in files beyond their catalogued length; neither
survives a crash, and neither needs to: the buffer holds them, and ingest resumes where the last
checkpoint says. Source: docs/design, the wheel.

Not thread safe: the caller holds one lock around every call, except `PendingCheckpoint.sync`.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from delayd.errors import DiskError
from delayd.wheel import Entry, Frame, FrozenSlot, Progress, SlotInfo
from delayd.wheel.answers import WaitingAnswers
from delayd.wheel.catalogue import CatalogueBatch
from delayd.wheel.checkpoint import FILES_SYNCED_ONE_BY_ONE_MAX, PendingCheckpoint
from delayd.wheel.descriptors import OPEN_FILES_MAX, Descriptors
from delayd.wheel.disk import Disk, SystemDisk
from delayd.wheel.frame import PARTITIONS_MAX, encode
from delayd.wheel.id_memory import IdMemory
from delayd.wheel.layout import Layout, hour_of
from delayd.wheel.reader import Reader
from delayd.wheel.recovery import Recovered, recover
from delayd.wheel.slot import DIGEST_MODULO, Slot
from replication.rank import SLOT_MS

TAIL_BYTES_MAX = 32 * 1024 * 1024
"""Frames that wait in memory; beyond it they are written out to their files, unsynced."""
UNLINKS_MAX = 2000
"""Files unlinked per checkpoint, about 0.1 s; the rest waits for the next one."""
NO_FRAME = Frame(0, 0, 0, 0, 0, 0, ())
"""Fills a result until the frame that belongs there has been read."""


@dataclass(frozen=True, slots=True)
class WheelStats:
    """What the wheel holds now, not yet checkpointed frames included."""

    slots: int
    frames: int
    bytes: int
    tail_bytes: int
    """Of `bytes`, those that are in memory only."""
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
        self._slots = {n: Slot.from_line(n, line) for n, line in recovered.lines.items()}
        self._numbers = sorted(self._slots)
        self._answers = WaitingAnswers(self._catalogue, partitions)
        self.ids = IdMemory(self._catalogue)
        """What is remembered of ids; changes are durable with the next checkpoint."""
        self._tail_bytes = 0
        self._frames = sum(slot.count for slot in self._slots.values())
        self._bytes = sum(slot.written for slot in self._slots.values())
        self._hour_files = recovered.hours
        """Files per hour folder, those to be unlinked included. No entry: no folder."""
        self._dirty: set[int] = set()
        """Slots with frames since the last begin."""
        self._new_names: set[str] = set()
        """Folders with new names since the last begin."""
        self._dropped: set[int] = set()
        """Slots forgotten since the last begin: their catalogue lines go."""
        self._forgotten_files: list[tuple[int, int]] = []
        """(slot, generation) of their files; unlinked after the checkpoint that forgets them."""
        self._unlinkable: deque[tuple[int, int]] = deque()
        """Files that no durable catalogue names any more."""
        self._last_generations: dict[int, int] = {}
        """Of slots with a file still to be unlinked: the generation of the newest such file."""
        self._pending: PendingCheckpoint | None = None
        self._failure: BaseException | None = None
        self._is_closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        partitions: int,
        disk: Disk | None = None,
        open_files_max: int = OPEN_FILES_MAX,
    ) -> "Wheel":
        """Open, after recovery to exactly the last checkpoint (see `recover` for its steps).

        Raises DiskError: in use by another process, another format or partition count, I/O.
        Raises CorruptionError: a catalogued file or LevelDB itself is lost or damaged.
        """
        assert 0 < partitions <= PARTITIONS_MAX, f"{partitions} partitions"
        assert open_files_max > 0, f"{open_files_max} open files"
        disk = SystemDisk() if disk is None else disk
        layout = Layout(str(directory.absolute()))
        return cls(layout, disk, partitions, recover(layout, disk, partitions), open_files_max)

    @property
    def progress(self) -> Progress | None:
        """What the last finished checkpoint remembers of ingest; None for a new wheel."""
        return self._progress

    # Frames in.

    def append(self, frames: Sequence[Frame]) -> list[Entry]:
        """Store frames, in memory until they are too many; durable with the next checkpoint.

        Returns their entries in the order given. A frame that cannot be encoded is a bug of the
        caller; the wheel then holds half a batch and refuses everything, like after a failed write.
        """
        entries: list[Entry] = []
        with self._or_poisoned():
            for frame in frames:
                data, crc = encode(frame)
                due_ms, partition, offset, lane, kind, _, _ = frame
                number = due_ms // SLOT_MS
                slot = self._slots.get(number) or self._create(number)
                tail = slot.tail
                position = slot.written + len(tail)
                length = len(data)
                if not tail:
                    self._dirty.add(number)
                tail += data
                slot.count += 1
                slot.digest += crc
                if offset > slot.highest_offsets[partition]:
                    slot.highest_offsets[partition] = offset
                entry = Entry(due_ms, partition, offset, lane, kind, position, length)
                if kind:
                    self._answers.add(entry)
                entries.append(entry)
                self._frames += 1
                self._bytes += length
                self._tail_bytes += length
                if self._tail_bytes > TAIL_BYTES_MAX:
                    self._write_tails()
        return entries

    def _create(self, number: int) -> Slot:
        generation = self._last_generations.get(number, -1) + 1
        slot = Slot(number, generation, self._partitions)
        self._slots[number] = slot
        insort(self._numbers, number)
        return slot

    def _write_tails(self) -> None:
        for number in sorted(self._dirty):
            slot = self._slots[number]
            if slot.tail:
                self._write_tail(slot)
        assert self._tail_bytes == 0, f"{self._tail_bytes} tail bytes are in no dirty slot"

    def _write_tail(self, slot: Slot) -> None:
        path = self._layout.slot_file(slot.number, slot.generation)
        is_new = slot.written == 0
        if is_new:
            self._name_file(hour_of(slot.number))
        self._disk.append(self._descriptors.get(path, create=is_new), slot.tail)
        length = len(slot.tail)
        slot.written += length
        slot.tail = bytearray()
        self._tail_bytes -= length

    def _name_file(self, hour: int) -> None:
        folder = self._layout.hour_folder(hour)
        if hour not in self._hour_files:
            self._disk.make_folder(folder)
            self._new_names.add(self._layout.slots)
            self._hour_files[hour] = 0
        self._hour_files[hour] += 1
        self._new_names.add(folder)

    # What is there.

    def slots(self, first: int = 0, last: int | None = None) -> list[int]:
        """The slots from `first` to `last`, both included, that hold frames; ascending."""
        self._require_usable()
        end = len(self._numbers) if last is None else bisect_left(self._numbers, last + 1)
        return self._numbers[bisect_left(self._numbers, first) : end]

    def next_slot(self, at_or_after: int) -> int | None:
        """The first slot from `at_or_after` on that holds frames."""
        self._require_usable()
        index = bisect_left(self._numbers, at_or_after)
        return self._numbers[index] if index < len(self._numbers) else None

    def info(self, slot: int) -> SlotInfo | None:
        """The slot's line as of now; None when it holds nothing."""
        self._require_usable()
        found = self._slots.get(slot)
        return None if found is None else found.info()

    def entries(self, slot: int) -> list[Entry]:
        """All entries of a slot, by rank. Reads the whole file.

        Verifies the chain of frames, every CRC, and count and digest against the slot's line;
        raises CorruptionError with slot, byte range and count.
        """
        self._require_usable()
        found = self._slots.get(slot)
        if found is None:
            return []
        return self._reader.entries(found)

    # Frames out.

    def read(self, entries: Sequence[Entry]) -> list[Frame]:
        """The frames of these entries, in the order given, every CRC verified.

        Memory: the frames, and one megabyte or one frame more. Raises CorruptionError with slot
        and byte range. An entry that is not in the wheel (any more) is a bug of the caller.
        """
        self._require_usable()
        places_by_slot: dict[int, list[int]] = {}
        for place, entry in enumerate(entries):
            places_by_slot.setdefault(entry.due_ms // SLOT_MS, []).append(place)
        frames = [NO_FRAME] * len(entries)
        for number, places in places_by_slot.items():
            slot = self._slots.get(number)
            assert slot is not None, f"slot {number} is not in the wheel"
            self._reader.read(slot, entries, places, frames)
        return frames

    def answers(self, from_offsets: Sequence[int]) -> list[Entry]:
        """All answers with offset >= from_offsets[partition], by (partition, offset)."""
        self._require_usable()
        assert len(from_offsets) == self._partitions, "one offset per partition"
        return self._answers.waiting(from_offsets)

    def freeze(self, slots: Sequence[int]) -> list[FrozenSlot]:
        """Write out the tails of these slots, unsynced, and tell what their files hold by now.

        Those that hold nothing are left out. The bytes stay what they are, and the files where
        they are, until the slot is forgotten.
        """
        frozen = []
        with self._or_poisoned():
            for number in slots:
                slot = self._slots.get(number)
                if slot is None:
                    continue
                if slot.tail:
                    self._write_tail(slot)
                digest = slot.digest % DIGEST_MODULO
                frozen.append(FrozenSlot(number, slot.generation, slot.written, slot.count, digest))
        return frozen

    @property
    def root(self) -> str:
        """The data directory."""
        return self._layout.root

    # Forgetting.

    def forget_answers(self, below_offsets: Sequence[int]) -> None:
        """Drop the index of answers below these offsets; durable with the next checkpoint.

        Before their slots are forgotten: an answer whose frame is gone cannot be read.
        """
        self._require_usable()
        assert len(below_offsets) == self._partitions, "one offset per partition"
        self._answers.forget(below_offsets)

    def forget(self, slots: Sequence[int]) -> None:
        """Drop whole slots at once; durable with the next checkpoint, unlinked after it."""
        self._require_usable()
        for number in slots:
            slot = self._slots.pop(number, None)
            if slot is None:
                continue
            del self._numbers[bisect_left(self._numbers, number)]
            self._dirty.discard(number)
            self._dropped.add(number)
            self._frames -= slot.count
            self._bytes -= slot.written + len(slot.tail)
            self._tail_bytes -= len(slot.tail)
            if slot.written > 0:
                self._forgotten_files.append((number, slot.generation))
                self._last_generations[number] = slot.generation

    def _unlink_some(self) -> None:
        for _ in range(min(UNLINKS_MAX, len(self._unlinkable))):
            number, generation = self._unlinkable.popleft()
            path = self._layout.slot_file(number, generation)
            self._descriptors.drop(path)
            self._disk.unlink(path)
            if self._last_generations[number] == generation:
                del self._last_generations[number]
            hour = hour_of(number)
            self._hour_files[hour] -= 1
            if self._hour_files[hour] == 0:
                del self._hour_files[hour]
                self._disk.remove_folder(self._layout.hour_folder(hour))

    # Checkpoints.

    def begin_checkpoint(self, progress: Progress) -> PendingCheckpoint:
        """Capture everything until now, with `progress`. Then `sync`, then `finish_checkpoint`."""
        with self._or_poisoned():
            assert self._pending is None, "one checkpoint at a time"
            self._write_tails()
            dirty = sorted(self._dirty)
            many = len(dirty) > FILES_SYNCED_ONE_BY_ONE_MAX
            paths = [
                self._layout.slot_file(number, self._slots[number].generation) for number in dirty
            ]
            answers, answers_from = self._answers.capture()
            batch = CatalogueBatch(
                progress=progress,
                slots={number: self._slots[number].line() for number in dirty},
                dropped_slots=tuple(self._dropped),
                answers=answers,
                answers_from=answers_from,
                notes=self.ids.capture(),
            )
            self._pending = PendingCheckpoint(
                self._disk,
                self._catalogue,
                batch,
                files=[] if many else [self._descriptors.take(path) for path in paths],
                folders=sorted(self._new_names),
                whole_volume=self._root if many else None,
                forgotten_files=self._forgotten_files,
                on_failure=self._poison,
            )
            self._dirty = set()
            self._new_names = set()
            self._dropped = set()
            self._forgotten_files = []
        return self._pending

    def finish_checkpoint(self, pending: PendingCheckpoint) -> None:
        """Take note that `pending` is durable, and unlink a bounded number of forgotten files."""
        with self._or_poisoned():
            assert pending is self._pending, "another checkpoint is pending"
            assert pending.is_durable, "the checkpoint is not synced"
            self._pending = None
            self._progress = pending.progress
            self._answers.settle()
            self.ids.settle()
            for file in pending.files:
                self._descriptors.give(file)
            self._unlinkable.extend(pending.forgotten_files)
            self._unlink_some()

    def stats(self) -> WheelStats:
        """Figures of now."""
        return WheelStats(
            slots=len(self._numbers),
            frames=self._frames,
            bytes=self._bytes,
            tail_bytes=self._tail_bytes,
            open_files=len(self._descriptors),
            files_to_unlink=len(self._forgotten_files) + len(self._unlinkable),
        )

    def frames_from(self, slot: int) -> int:
        """How many frames the slots from this one on hold. May be asked without the lock, for a
        figure of about now; takes time by the slots before it, which are few: they are forgotten.
        """
        passed = self._numbers[: bisect_left(self._numbers, slot)]
        found = [self._slots.get(number) for number in passed]
        return self._frames - sum(each.count for each in found if each is not None)

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
