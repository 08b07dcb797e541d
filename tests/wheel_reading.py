"""Checkpoints of a wheel, and what a slot holds, for tests."""

from collections.abc import Iterator

from delayd.wheel import Entry, FrameKind, Progress
from delayd.wheel.frame import HEADER_BYTES, walk
from delayd.wheel.place import IN_HOUR
from delayd.wheel.segment import Segment
from delayd.wheel.storage import Wheel
from replication.rank import SLOT_MS, Rank, slot_of

PROGRESS = Progress((10, 20), (0, -1), (1_000, 2_000), b"frontier")


def checkpoint(wheel: Wheel, progress: Progress = PROGRESS, *, finish: bool = True) -> None:
    """All of a checkpoint, or all but the note that it is durable."""
    pending = wheel.begin_checkpoint(progress)
    pending.sync()
    if finish:
        wheel.finish_checkpoint(pending)


def split_all(wheel: Wheel, now_ms: int = 10**13) -> None:
    """Split or index the hours that are due at this time, or all. Raises CorruptionError."""
    wheel.advance(now_ms)
    while wheel.split_some():
        pass


def entries_in(wheel: Wheel, slot: int) -> list[Entry]:
    """All entries of a slot, answers too, by rank; none if it holds nothing. They are read off its
    bytes; its index must give the same messages."""
    index = wheel.index(slot)
    if index is None:
        return []
    while not index.is_complete:
        index.advance(1_000)
    messages: list[Entry] = []
    since = Rank(slot * SLOT_MS, 0, 0)
    while since < Rank((slot + 1) * SLOT_MS, 0, 0):
        run = index.run(since, 1_000)
        messages += run.entries
        since = run.until
    entries = list(_entries_of(wheel, index.slot, 0))
    part = index.slot.part
    if part is not None:
        whole_hour = _entries_of(wheel, part.hour, IN_HOUR)
        entries += [entry for entry in whole_hour if slot_of(entry.due_ms) == slot]
    entries.sort()
    assert messages == [entry for entry in entries if entry.kind == FrameKind.MESSAGE]
    return entries


def _entries_of(wheel: Wheel, segment: Segment, first_position: int) -> Iterator[Entry]:
    data = wheel._reader.bytes_at(segment, 0, segment.end)
    for due_ms, partition, offset, lane, kind, _, body, end, _ in walk(data, 0):
        at = body - HEADER_BYTES
        yield Entry(due_ms, partition, offset, lane, kind, first_position + at, end - at)
