"""A wheel driven as a node drives it: ingest, checkpoints, the passing of time, retention.

All calls that the benchmark makes of the wheel are here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from delayd.bench.wheels.load import PARTITIONS, Batch
from delayd.wheel import Frame, Progress
from delayd.wheel.layout import hour_of
from delayd.wheel.storage import Wheel, WheelStats
from replication.frontier import Frontier
from replication.ids import NOTHING
from replication.rank import SLOT_MS, Rank, slot_of
from replication.settings import LANES

ID_MEMORY_MS: Final = 3_600_000
READ_FRAMES: Final = 10_000
"""Frames to read at once: as many as a step delivers."""


class DrivenWheel:
    """One wheel. `now_ms` is what it is told of the time."""

    def __init__(self, directory: Path, now_ms: int) -> None:
        """Open it, or make a new one."""
        self._wheel = Wheel.open(directory, partitions=PARTITIONS)
        self._now_ms = now_ms
        progress = self._wheel.progress
        self.offsets = (0,) * PARTITIONS if progress is None else progress.offsets

    @property
    def stored(self) -> int:
        """Return how many messages were ever stored."""
        return sum(self.offsets)

    @property
    def stats(self) -> WheelStats:
        """Return what it holds."""
        return self._wheel.stats()

    def store(self, batch: Batch, offsets: tuple[int, ...]) -> None:
        """Take in what ingest decided; `offsets` are those behind it."""
        ids = self._wheel.ids
        for partition, name, _ in batch.ids:
            assert ids.state(partition, name) == NOTHING, "an id of the load was used before"
        self._wheel.append(batch.frames)
        self._wheel.split_some()
        for partition, name, state in batch.ids:
            ids.remember(partition, name, state, ID_MEMORY_MS)
        self.offsets = offsets

    def checkpoint(self) -> None:
        """Make a whole checkpoint, synced, in this thread, as the ingest thread does."""
        while self._wheel.write_out():
            pass
        log_ms = (self._now_ms,) * PARTITIONS
        pending = self._wheel.begin_checkpoint(
            Progress(self.offsets, (0,) * PARTITIONS, log_ms, b"")
        )
        pending.sync()
        self._wheel.finish_checkpoint(pending)

    def pass_time(self, now_ms: int) -> None:
        """Set the time, and do all that the wheel does in the background because of that."""
        self._now_ms = now_ms
        self._wheel.advance(now_ms)
        while self._wheel.split_some():
            pass

    def forget_due(self) -> None:
        """Forget all slots before now: they are delivered, and old enough."""
        slot = slot_of(self._now_ms)
        cursor = Rank(self._now_ms, 0, 0)
        cut = Frontier(0, (cursor,) * LANES, self.offsets, (-1,) * PARTITIONS, 1, 1)
        self._wheel.ids.forget(cut, (self._now_ms,) * PARTITIONS, self._now_ms)
        hours = [hour for hour in self._wheel.hours() if hour < hour_of(slot)]
        self._wheel.forget(self._wheel.slots(0, slot - 1), hours)

    def read_slot(self, slot: int) -> Iterator[list[Frame]]:
        """Yield the messages of a slot as frames, in rank order."""
        index = self._wheel.index(slot)
        assert index is not None, f"slot {slot} holds nothing"
        while not index.is_complete:
            index.advance(READ_FRAMES)
        since, end = Rank(slot * SLOT_MS, 0, 0), Rank((slot + 1) * SLOT_MS, 0, 0)
        while since < end:
            run = index.run(since, READ_FRAMES)
            yield self._wheel.read(run.entries)
            since = run.until

    def close(self) -> None:
        """Close it without a checkpoint."""
        self._wheel.close()
