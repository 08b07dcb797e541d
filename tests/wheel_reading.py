"""What a slot of a wheel holds, for tests that look into one."""

from delayd.wheel import Entry, FrameKind
from delayd.wheel.frame import HEADER_BYTES, walk
from delayd.wheel.storage import Wheel
from replication.rank import SLOT_MS, Rank


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
    data = wheel._reader.bytes_at(index.slot, 0, index.slot.end)
    entries = []
    for due_ms, partition, offset, lane, kind, _, body, end, _ in walk(data, 0):
        position = body - HEADER_BYTES
        entries.append(Entry(due_ms, partition, offset, lane, kind, position, end - position))
    entries.sort()
    assert messages == [entry for entry in entries if entry.kind == FrameKind.MESSAGE]
    return entries
