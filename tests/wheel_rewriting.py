"""A stopped wheel whose content is changed with all checksums right: only other nodes can tell."""

from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import msgpack

from delayd.wheel import FrameKind, SegmentLine
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.frame import encode_fields, read_body, walk
from delayd.wheel.kills import KILLS, rank_of
from delayd.wheel.layout import Layout
from delayd.wheel.segment import DIGEST_MODULO
from replication.rank import Rank


class Held(NamedTuple):
    """A message as a wheel holds it."""

    due_ms: int
    partition: int
    offset: int
    lane: int
    append_ms: int
    fields: tuple[Any, ...]
    """Of its body."""


Change = Callable[[Held], Sequence[Held]]
"""Returns what takes the place of a message: nothing, one, or more."""


def rewrite(directory: Path, change: Change, since_ms: int = 0) -> int:
    """Change the messages in files of which nothing is due before that time, and nothing was split
    off. Return how many files changed."""
    catalogue = Catalogue(Layout(str(directory)).catalogue, create=False)
    try:
        lines = [line for is_hour in (True, False) for line in catalogue.segment_lines(is_hour)]
        return sum(_rewritten(directory, catalogue, line, change, since_ms) for line in lines)
    finally:
        catalogue.close()


def messages_in(directory: Path, since_ms: int) -> list[Held]:
    """The messages that `rewrite` would ask for."""
    found: list[Held] = []

    def note(held: Held) -> list[Held]:
        found.append(held)
        return [held]

    rewrite(directory, note, since_ms)
    return sorted(found)


def killed_in(directory: Path, since_ms: int) -> list[tuple[bytes, Rank]]:
    """The killed messages that are due from a time on, with the keys of their lines."""
    catalogue = Catalogue(Layout(str(directory)).catalogue, create=False)
    try:
        keys = [key for run in catalogue.lines(KILLS, KILLS) for key, _ in run]
        return [(key, rank_of(key)) for key in keys if rank_of(key).due_ms >= since_ms]
    finally:
        catalogue.close()


def forget_kill(directory: Path, key: bytes) -> None:
    """Let a killed message live."""
    catalogue = Catalogue(Layout(str(directory)).catalogue, create=False)
    assert catalogue.note(key) is not None, "it is killed"
    catalogue._db.delete(key)
    catalogue.close()


def _rewritten(
    directory: Path, catalogue: Catalogue, line: SegmentLine, change: Change, since_ms: int
) -> bool:
    path = Path(Layout(str(directory)).segment_file(line.name))
    before = path.read_bytes()[: line.info.bytes]
    found = list(walk(before, 0)) if line.start == 0 else []
    kinds = {kind for _, _, _, _, kind, *_ in found}
    if kinds != {int(FrameKind.MESSAGE)} or any(due_ms < since_ms for due_ms, *_ in found):
        return False
    data, count, digest, highest = b"", 0, 0, [-1] * len(line.info.highest_offsets)
    for due_ms, partition, offset, lane, kind, append_ms, body, end, _ in found:
        fields = read_body(before[body:end])
        for held in change(Held(due_ms, partition, offset, lane, append_ms, tuple(fields))):
            frame, crc = encode_fields(
                1 | kind << 8,
                held.lane,
                held.partition,
                held.offset,
                held.append_ms,
                held.due_ms,
                held.fields,
            )
            data, count, digest = data + frame, count + 1, digest + crc
            highest[held.partition] = max(highest[held.partition], held.offset)
    if data == before or not data:
        return False
    path.write_bytes(data)
    _put_line(catalogue, line, count, len(data), digest % DIGEST_MODULO, *highest)
    totals = catalogue.totals()
    assert totals is not None
    frames = totals.frames + count - line.info.count
    catalogue._db.put(b"t", msgpack.packb(totals._replace(frames=frames)))
    return True


def _put_line(catalogue: Catalogue, line: SegmentLine, *sums: int) -> None:
    name = line.name
    key = Struct(">cQ").pack(b"h" if name.is_hour else b"s", name.number)
    value = (name.generation, 0, *sums) if name.is_hour else (name.generation, *sums)
    catalogue._db.put(key, msgpack.packb(value))
