"""A wheel against a dictionary, through any mix of calls, crashes and losses of power."""

import copy
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from wheel_disks import PowerlessDisk, remaining_files
from wheel_reading import entries_in

from delayd.wheel import (
    Frame,
    FrameKind,
    Progress,
    SlotInfo,
    decoding,
    files,
    hours,
    near_hours,
    segments,
    slot_index,
)
from delayd.wheel import storage as storage_module
from delayd.wheel.checkpoint import PendingCheckpoint
from delayd.wheel.frame import encode
from delayd.wheel.kills import Kill
from delayd.wheel.storage import Wheel
from replication.rank import Rank

PARTITIONS = 2
SLOTS = [0, 1, 2, 3599, 3600, 3601, 7200, 36_000, 36_007, 39_600]
"""The last three are far until the wheel is told another time."""
HOURS = [10, 11]
LIMITS: list[tuple[Any, str, int]] = [
    (segments, "TAIL_BYTES_MAX", 2_000),
    (files, "UNLINKS_MAX", 2),
    (files, "PUNCH_BYTES_MIN", 200),
    (files, "_PAGE_BYTES", 16),
    (hours, "SPARSE_BYTES_MAX", 900),
    (storage_module, "FILES_SYNCED_ONE_BY_ONE_MAX", 2),
    (segments, "TAILS_PER_CALL", 2),
    (near_hours, "SPLIT_BYTES", 300),
    (slot_index, "SCAN_BYTES", 64),
    (slot_index, "LEAF_PLACES_MAX", 3),
    (decoding, "STRETCH_BYTES_MAX", 256),
    (decoding, "GAP_BYTES_MAX", 16),
]
"""Small limits, so that few frames reach them."""


@dataclass
class Model:
    """What a wheel holds."""

    progress: Progress | None = None
    slots: dict[int, list[Frame]] = field(default_factory=dict)
    floor: int = 0
    """Slots below it are passed."""
    killed: set[tuple[int, int]] = field(default_factory=set)
    late: set[tuple[int, int]] = field(default_factory=set)
    """What came to a slot that was passed."""
    hours: dict[int, list[Frame]] = field(default_factory=dict)
    """Of hours with a file: the frames that are left in it, as they came."""
    split_bytes: dict[int, int] = field(default_factory=dict)
    """Of hours whose split has begun: how far it is."""
    pending_replies: set[tuple[int, int]] = field(default_factory=set)


frames_of_a_batch = st.lists(
    st.tuples(
        st.sampled_from(SLOTS),
        st.integers(0, 999),
        st.integers(0, PARTITIONS - 1),
        st.sampled_from([FrameKind.MESSAGE, FrameKind.MESSAGE, FrameKind.PENDING_REPLY]),
        st.sampled_from([0, 1, 30, 500]),
    ),
    min_size=1,
    max_size=8,
)


class WheelMachine(RuleBasedStateMachine):
    """Every rule happens to both; the invariants compare them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module, name, value in LIMITS:
            self.patch.setattr(module, name, value)
        self.root = Path(tempfile.mkdtemp(prefix="wheel-model-"))
        (self.root / "graves").mkdir()
        self.disk = PowerlessDisk(self.root / "graves")
        self.live = Model()
        self.durable = Model()
        self.pending: PendingCheckpoint | None = None
        self.captured = Model()
        self.checkpoints = 0
        self.next_offset = 0
        self.near_hours = 0
        self.due_hours = 0
        self.indexed: set[int] = set()
        """Sparse hours that can be read slot by slot."""
        self.forgotten: set[int] = set()
        """Slots of these that were forgotten: what is in the hour's file does not count."""
        self.holds = False
        self.open()

    def open(self) -> None:
        self.holds = False
        self.due_hours = 0
        self.indexed = set()
        self.forgotten = set()
        self.near_hours = max((slot // 3600 + 1 for slot in self.live.slots), default=0)
        if self.live.progress is not None:
            self.near_hours = max(self.near_hours, 3)
        self.wheel = Wheel.open(
            self.root / "wheel", partitions=PARTITIONS, disk=self.disk, open_files_max=3
        )

    def teardown(self) -> None:
        self.wheel.close()
        self.patch.undo()
        shutil.rmtree(self.root)

    @rule(batch=frames_of_a_batch)
    def append(self, batch: list[tuple[int, int, int, FrameKind, int]]) -> None:
        frames = []
        near_hours = self.near_hours = max(self.near_hours, 3)
        for slot, ms, partition, kind, size in batch:
            offset = self.next_offset
            self.next_offset += 1
            due_ms = 1_000 * slot + ms
            body = (f"topic-{offset % 3}", b"v" * size)
            frames.append(Frame(due_ms, partition, offset, offset % 64, kind, 1, body))
            if slot < self.live.floor:
                self.live.late.add((partition, offset))
            if kind is FrameKind.PENDING_REPLY or slot // 3600 < near_hours:
                self.live.slots.setdefault(slot, []).append(frames[-1])
                self.near_hours = max(self.near_hours, slot // 3600 + 1)
            else:
                self.live.hours.setdefault(slot // 3600, []).append(frames[-1])
            if kind is FrameKind.PENDING_REPLY:
                self.live.pending_replies.add((partition, offset))
        entries = self.wheel.append(frames)
        placed = [(e, f) for e, f in zip(entries, frames, strict=True) if e.position >= 0]
        assert self.wheel.read([e for e, _ in placed]) == [f for _, f in placed]
        assert [e[:5] for e in entries] == [f[:5] for f in frames]

    @rule(hour=st.sampled_from(HOURS))
    def advance(self, hour: int) -> None:
        self.wheel.advance(3_600_000 * (hour - 2))
        self.near_hours = max(self.near_hours, hour + 1)
        self.due_hours = max(self.due_hours, hour + 1)

    def is_sparse(self, hour: int) -> bool:
        size = sum(len(encode(frame)[0]) for frame in self.live.hours[hour])
        return size <= 900 and hour not in self.live.split_bytes

    @property
    def partial(self) -> list[int]:
        return sorted(hour for hour in self.live.hours if hour not in self.indexed)

    @property
    def first_due(self) -> int | None:
        first = min(self.partial, default=self.due_hours)
        if first >= self.due_hours or (self.holds and not self.is_sparse(first)):
            return None
        return first

    @property
    def readable(self) -> list[int]:
        """Slots that hold anything."""
        of_parts = {f.due_ms // 1000 for hour in self.indexed for f in self.live.hours[hour]}
        return sorted(self.live.slots.keys() | (of_parts - self.forgotten))

    def all_of(self, slot: int) -> list[Frame]:
        """What can be read of a slot."""
        hour = slot // 3600
        part = self.live.hours[hour] if hour in self.indexed else []
        return [
            *self.live.slots.get(slot, []),
            *(f for f in part if f.due_ms // 1000 == slot and slot not in self.forgotten),
        ]

    @rule()
    def split(self) -> None:
        hour = self.first_due
        before = self.wheel.stats()
        more = self.wheel.split_some()
        if hour is not None and self.is_sparse(hour):
            if self.wheel.whole_below != 3600 * hour:
                self.indexed.add(hour)
        elif hour is not None:
            info = self.wheel.hour_info(hour)
            frames = self.live.hours[hour]
            moved = len(frames) - (0 if info is None else info.count)
            assert moved > 0 or info is None or before.tail_bytes > 1_000, "tails go first"
            for frame in frames[:moved]:
                self.live.slots.setdefault(frame.due_ms // 1000, []).append(frame)
                self.live.split_bytes[hour] = 1
            del frames[:moved]
            if info is None:
                del self.live.hours[hour]
                del self.live.split_bytes[hour]
        assert more == (self.first_due is not None)
        after = self.wheel.stats()
        assert (after.frames, after.bytes) == (before.frames, before.bytes)

    @rule()
    def hold(self) -> None:
        due = [hour for hour in self.partial if hour < self.due_hours]
        self.holds = self.holds or all(self.is_sparse(hour) for hour in due)
        assert self.wheel.hold_splits() == self.holds

    @rule()
    def release(self) -> None:
        self.wheel.release_splits()
        self.holds = False

    @rule()
    def write_out(self) -> None:
        self.wheel.write_out()

    @rule(hour=st.sampled_from(HOURS))
    def forget_hour(self, hour: int) -> None:
        if hour == min(self.live.hours, default=hour):
            self.wheel.forget([], [hour])
            self.live.hours.pop(hour, None)
            self.live.split_bytes.pop(hour, None)
            self.indexed.discard(hour)
            self.pass_to(3600 * (hour + 1))

    @rule(slot=st.sampled_from([slot + 1 for slot in SLOTS]))
    def pass_to(self, slot: int) -> None:
        self.wheel.pass_to(slot)
        whole_below = min((3600 * hour for hour in self.partial), default=slot)
        self.live.floor = max(self.live.floor, min(slot, whole_below))

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        both = (*self.live.slots.values(), *self.live.hours.values())
        messages = [f for frames in both for f in frames if f.kind is FrameKind.MESSAGE]
        if messages:
            frame = data.draw(st.sampled_from(messages))
            kill = Kill(10**6, data.draw(st.booleans()), frame.body[0])
            self.wheel.ids.note_kill(Rank(*frame[:3]), kill)
            self.live.killed.add((frame.partition, frame.offset))

    @invariant()
    def counts_what_is_pending(self) -> None:
        expected: dict[int, Counter[str]] = {}
        both = (*self.live.slots.values(), *self.live.hours.values())
        for frame in (frame for frames in both for frame in frames):
            source = (frame.partition, frame.offset)
            slot = frame.due_ms // 1000
            is_left_out = source in self.live.killed or source in self.live.late
            if frame.kind is FrameKind.MESSAGE and slot >= self.live.floor and not is_left_out:
                expected.setdefault(slot // 3600, Counter())[frame.body[0]] += 1
        counts = self.wheel.counts
        assert counts.hours == expected
        assert counts.topics == sum(expected.values(), Counter())
        assert counts.total == sum(counts.topics.values())

    @rule(slots=st.lists(st.sampled_from(SLOTS), max_size=4))
    def forget(self, slots: list[int]) -> None:
        # Only what is passed is ever forgotten.
        self.pass_to(max(slots, default=-1) + 1)
        slots = [slot for slot in slots if slot < self.live.floor]
        gone = [f for slot in slots for f in self.live.slots.get(slot, [])]
        # A pending reply is forgotten before its slot: that is the caller's part of the contract.
        replies = [f for f in gone if f.kind == FrameKind.PENDING_REPLY]
        below = [0] * PARTITIONS
        for frame in replies:
            below[frame.partition] = max(below[frame.partition], frame.offset + 1)
        self.forget_replies_below(below)
        self.wheel.forget(slots)
        for slot in slots:
            self.live.slots.pop(slot, None)
            if slot // 3600 in self.indexed:
                self.forgotten.add(slot)

    @rule(back=st.tuples(st.integers(0, 20), st.integers(0, 20)))
    def forget_pending_replies(self, back: tuple[int, int]) -> None:
        self.forget_replies_below([max(0, self.next_offset - n) for n in back])

    def forget_replies_below(self, below: list[int]) -> None:
        self.wheel.forget_pending_replies(below)
        self.live.pending_replies = {a for a in self.live.pending_replies if a[1] >= below[a[0]]}

    @precondition(lambda self: self.pending is None)
    @rule()
    def begin(self) -> None:
        self.checkpoints += 1
        frontier = b"frontier %d" % self.checkpoints
        n = self.checkpoints
        self.live.progress = Progress((n, n), (-1, 0), (n, n), frontier)
        self.captured = copy.deepcopy(self.live)
        self.pending = self.wheel.begin_checkpoint(self.live.progress)

    @precondition(lambda self: self.pending is not None and not self.pending.is_durable)
    @rule()
    def sync(self) -> None:
        assert self.pending is not None
        self.pending.sync()
        self.durable = self.captured

    @precondition(lambda self: self.pending is not None and self.pending.is_durable)
    @rule()
    def finish(self) -> None:
        assert self.pending is not None
        self.wheel.finish_checkpoint(self.pending)
        self.pending = None
        assert self.wheel.progress == self.durable.progress

    @precondition(lambda self: self.pending is None)
    @rule(forgotten_meanwhile=st.lists(st.sampled_from(SLOTS), max_size=2))
    def checkpoint(self, forgotten_meanwhile: list[int]) -> None:
        self.begin()
        self.forget(forgotten_meanwhile)
        self.sync()
        self.finish()

    @rule()
    def crash(self) -> None:
        self.wheel.close()
        self.start_again()

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        self.wheel.close()
        self.disk.lose_power(Random(seed))
        self.start_again()

    def start_again(self) -> None:
        self.pending = None
        self.live = copy.deepcopy(self.durable)
        self.open()
        assert self.wheel.progress == self.durable.progress
        files = {path.partition(".")[0] for path in self.files()}
        expected = {f"{slot // 3600}/{slot}" for slot in self.live.slots}
        assert files == expected | {f"{hour}/hour" for hour in self.live.hours}
        assert len(self.files()) == len(files)

    def files(self) -> set[str]:
        return remaining_files(self.root / "wheel")

    @invariant()
    def holds_the_same_frames_in_rank_order(self) -> None:
        slots = self.readable
        assert self.wheel.slots() == slots
        for slot in slots:
            frames = self.all_of(slot)
            by_rank = sorted(frames, key=lambda frame: frame[:3])
            assert self.wheel.read(entries_in(self.wheel, slot)) == by_rank
            info = self.wheel.info(slot)
            assert info is not None
            expected = info_of(frames)
            assert info[:3] == expected[:3]
            pairs = zip(info.highest_offsets, expected.highest_offsets, strict=True)
            is_exact = slot // 3600 not in self.indexed
            assert all(a == b if is_exact else a >= b for a, b in pairs)
        assert self.wheel.hours() == sorted(self.live.hours)
        for hour, frames in self.live.hours.items():
            info = self.wheel.hour_info(hour)
            assert info is not None
            assert (info.count, info.digest) == (len(frames), info_of(frames).digest)
            stored = self.wheel._hours.files[hour]
            data = self.wheel._reader.bytes_at(stored, stored.start, stored.end)
            assert data == b"".join(encode(frame)[0] for frame in frames)
        first = min(self.partial, default=None)
        assert self.wheel.whole_below == (None if first is None else 3600 * first)
        assert self.wheel.next_slot(3) == min((s for s in slots if s >= 3), default=None)

    @invariant()
    def holds_the_same_replies(self) -> None:
        for first in (0, self.next_offset // 2):
            expected = sorted(reply for reply in self.live.pending_replies if reply[1] >= first)
            entries = self.wheel.pending_replies([first] * PARTITIONS)
            assert [(entry.partition, entry.offset) for entry in entries] == expected
            assert [frame.offset for frame in self.wheel.read(entries)] == [a[1] for a in expected]

    @invariant()
    def counts_what_it_holds(self) -> None:
        stats = self.wheel.stats()
        both = (*self.live.slots.values(), *self.live.hours.values())
        frames = [frame for frames in both for frame in frames]
        assert (stats.slots, stats.hours) == (len(self.readable), len(self.live.hours))
        assert stats.frames == len(frames)
        assert stats.bytes == sum(len(encode(frame)[0]) for frame in frames)
        assert 0 <= stats.tail_bytes <= 2_000
        assert stats.open_files <= 3


def info_of(frames: list[Frame]) -> SlotInfo:
    encoded = [encode(frame) for frame in frames]
    highest = [
        max((f.offset for f in frames if f.partition == partition), default=-1)
        for partition in range(PARTITIONS)
    ]
    return SlotInfo(
        len(frames),
        sum(len(data) for data, _ in encoded),
        sum(crc for _, crc in encoded) % 2**64,
        tuple(highest),
    )


TestWheelAgainstADictionary = pytest.mark.long(WheelMachine.TestCase)
TestWheelAgainstADictionary.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, print_blob=True
)
