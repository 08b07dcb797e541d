"""A wheel that is fed from the log, with every call that these tests make of it."""

from collections.abc import Callable
from pathlib import Path

from cluster_settings import SETTINGS

from crashes.fed_log import (
    KEEP_MS,
    LANES,
    PARTITIONS,
    Fed,
    FedLog,
    answers_before,
    count_before,
    offsets_after,
    time_of,
)
from delayd.wheel import Frame, Progress
from delayd.wheel.disk import Disk
from delayd.wheel.layout import HOUR_SLOTS
from delayd.wheel.storage import Wheel
from replication.frontier import Frontier
from replication.rank import SLOT_MS, Rank
from replication.record import FrontierRecord, StepCounts, encode

OPEN_FILES_MAX = 6
HORIZON_S = 600
"""So that hours are split all the time."""

Reach = Callable[[str], None]


class FedWheel:
    """One life of a wheel."""

    def __init__(self, directory: Path, log: FedLog, disk: Disk | None = None) -> None:
        """Open the wheel at its last checkpoint."""
        self.wheel = Wheel.open(
            directory,
            partitions=PARTITIONS,
            disk=disk,
            open_files_max=OPEN_FILES_MAX,
            horizon_s=HORIZON_S,
        )
        self._log = log
        progress = self.wheel.progress
        self.count = 0 if progress is None else count_before(progress.offsets)
        """Records ingested."""
        self._forgotten = b"" if progress is None else progress.forgotten

    def take(self, count: int) -> None:
        """Ingest the next records."""
        frames: list[Frame] = []
        taken: list[Fed] = []
        for number in range(self.count, self.count + count):
            fed = self._log.record(number)
            if fed.forgets_before_ms is not None:
                self._store(frames, taken)
                self._forget(fed.forgets_before_ms, number)
                frames, taken = [], []
            frames.append(fed.frame)
            taken.append(fed)
        self._store(frames, taken)
        self.count += count

    def _store(self, frames: list[Frame], taken: list[Fed]) -> None:
        self.wheel.append(frames)
        for fed in taken:
            if fed.name is not None:
                self.wheel.ids.remember(fed.frame.partition, fed.name, fed.state, KEEP_MS)
            if fed.killed is not None:
                self.wheel.ids.note_kill(fed.killed, fed.kill)

    def _forget(self, floor_ms: int, number: int) -> None:
        cut = cut_at(floor_ms, number)
        self._forgotten = encode(FrontierRecord(cut, "n/1", 0, StepCounts(), 0, SETTINGS))
        self.wheel.ids.forget(cut, (floor_ms,) * PARTITIONS, floor_ms)
        self.wheel.forget_pending_replies(answers_before(floor_ms))
        slot = floor_ms // SLOT_MS
        passed = [hour for hour in self.wheel.hours() if (hour + 1) * HOUR_SLOTS <= slot]
        self.wheel.forget(self.wheel.slots(0, slot - 1), passed)

    def split(self) -> None:
        """Do a piece of the split of a near hour, if there is one."""
        self.wheel.advance(time_of(self.count))
        self.wheel.split_some()

    def write_out(self) -> None:
        """Write some tails to their files before the checkpoint."""
        self.wheel.write_out()

    def checkpoint(self, reach: Reach, meanwhile: int = 0) -> None:
        """Make a checkpoint; ingest `meanwhile` more records before it is synced.

        `reach` gets each step: begin, sync, finish, done.
        """
        reach("begin")
        now = (time_of(self.count),) * PARTITIONS
        offsets = offsets_after(self.count)
        frontier = self._forgotten
        progress = Progress(offsets, (0,) * PARTITIONS, now, frontier, (), frontier, now[0])
        pending = self.wheel.begin_checkpoint(progress)
        self.take(meanwhile)
        reach("sync")
        pending.sync()
        reach("finish")
        self.wheel.finish_checkpoint(pending)
        reach("done")


def cut_at(time_ms: int, count: int) -> Frontier:
    """Return the frontier that has delivered all before this time, with O after `count` records."""
    cursor = Rank(time_ms, 0, 0)
    offsets = offsets_after(count)
    return Frontier(0, (cursor,) * LANES, offsets, (-1,) * PARTITIONS, 1, 1)
