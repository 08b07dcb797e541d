"""A running wheel with a checkpoint, its snapshots, and what a checkpoint is, for tests."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wheels_on_disk import Ingest, slot_at

from delayd.wheel.hours import HORIZON_S
from delayd.wheel.snapshot import Line, Snapshot
from delayd.wheel.stopped import locked, open_stopped

LINES_BYTES = 1_000
CHUNK_BYTES = 3_011
SOURCE = {"snapshot": "a"}


class Held:
    """A snapshot as a source of copies, in small chunks."""

    def __init__(self, snapshot: Snapshot, tick: Callable[[], object] = lambda: None) -> None:
        self.snapshot = snapshot
        self.catalogue_bytes = snapshot.catalogue_bytes
        self.calls = 0
        self._tick = tick

    def lines_after(self, key: bytes) -> Sequence[Line]:
        self.calls += 1
        self._tick()
        return self.snapshot.lines_after(key, LINES_BYTES)

    def bytes_at(self, position: int) -> bytes:
        self.calls += 1
        self._tick()
        return self.snapshot.bytes_at(position, CHUNK_BYTES)


def running(directory: Path, frames: int = 600, first: int = 0) -> Ingest:
    """A wheel with two checkpoints; it goes on."""
    ingest = Ingest(directory)
    ingest.append(frames, first)
    far = slot_at(0) + 10 * HORIZON_S
    for n in range(50):
        ingest.wheel.append([ingest.frame(far + n)._replace(append_ms=1)])
    ingest.checkpoint()
    ingest.append(frames, first)
    ingest.checkpoint()
    return ingest


def contents_of(directory: Path) -> tuple[Any, ...]:
    """All that a checkpoint is: the lines of the catalogue, and the bytes that they name."""
    with locked(directory) as layout, open_stopped(layout) as wheel:
        lines = list(wheel.catalogue._db)
        files = {
            str(line.name): Path(layout.segment_file(line.name)).read_bytes()[
                line.start : line.info.bytes
            ]
            for line in wheel.catalogue.segments()
        }
    return lines, files
