"""The process that is killed: it ingests records, makes checkpoints, forgets and unlinks.

    python -m crashes.worker DIR MARKER SEED [CALLS]

MARKER is a file of two MARKs that the process updates in turns, in mapped memory that outlives it:
a kill from outside may hit the writing of one, and then the other one counts. With CALLS the
process kills itself before that call of the disk, or between two stages; otherwise its starter
kills it.
"""

import mmap
import os
import signal
import sys
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

from wheel_disks import DISK_CALLS, CountingDisk

from crashes.fed_log import FedLog
from crashes.feeding import FedWheel
from delayd.wheel import (
    catalogue,
    checkpoint,
    files,
    hours,
    near_hours,
    segments,
    slot_index,
    storage,
)
from delayd.wheel.catalogue import Catalogue, CatalogueBatch

MARK: Final = Struct("<QBBxxxxxxQQ")
"""number of the mark, stage, last call, records in the last finished checkpoint and in the last
begun one; then its CRC"""
MARK_BYTES: Final = MARK.size + 8
STAGES: Final = (
    "starting",
    "opening",
    "ingest",
    "split",
    "begin",
    "sync",
    "batch",
    "finish",
    "done",
)
CHECKPOINT: Final = frozenset({"begin", "sync", "batch", "finish"})
CALLS: Final = ("none", "create", *DISK_CALLS)
SMALL: Final[list[tuple[Any, str, int]]] = [
    (segments, "TAIL_BYTES_MAX", 20_000),
    (files, "UNLINKS_MAX", 12),
    (segments, "TAILS_PER_CALL", 2),
    (near_hours, "SPLIT_BYTES", 3_000),
    (hours, "SPARSE_BYTES_MAX", 40_000),
    (files, "PUNCH_BYTES_MIN", 8_192),
    (storage, "FILES_SYNCED_ONE_BY_ONE_MAX", 6),
    (checkpoint, "FILES_SYNCED_ONE_BY_ONE_MAX", 6),
    (catalogue, "WRITE_BUFFER_BYTES", 64 * 1024),
    (slot_index, "SCAN_BYTES", 4_096),
]
"""Limits that a few records reach, so that kills come between any two steps. LevelDB's own write
buffer is among them: it makes tables of its log, and merges them, all the time."""


class Marker(NamedTuple):
    """The state of a worker when it died."""

    stage: str
    call: str
    finished: int
    begun: int

    @classmethod
    def read(cls, path: Path) -> "Marker":
        """Return the newest mark that is whole."""
        data = path.read_bytes()
        marks = [data[:MARK_BYTES], data[MARK_BYTES:]]
        whole = [mark for mark in marks if crc32(mark[: MARK.size]) == _crc_in(mark)]
        _, stage, call, finished, begun = max(MARK.unpack_from(mark) for mark in whole)
        return cls(STAGES[stage], CALLS[call], finished, begun)

    @staticmethod
    def clear(path: Path) -> None:
        """Write the marks of a worker that has not started."""
        path.write_bytes(2 * _mark_bytes(0, 0, 0, 0, 0))


def _mark_bytes(*fields: int) -> bytes:
    mark = MARK.pack(*fields)
    return mark + crc32(mark).to_bytes(8, "little")


def _crc_in(mark: bytes) -> int:
    return int.from_bytes(mark[MARK.size :], "little")


class Marking:
    """The writer of the marker; it kills its process at the chosen call."""

    def __init__(self, path: Path, calls: int | None) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 2 * MARK_BYTES)
        self._calls = calls
        self._number = self._stage = self._call = self.finished = self.begun = 0

    def stage(self, name: str) -> None:
        self._stage = STAGES.index(name)
        self._die_or_go_on()

    def call(self, name: str, path: str) -> None:
        self._call = CALLS.index(name)
        self._die_or_go_on()

    def durable(self) -> None:
        self.finished = self.begun
        self._write()

    def _die_or_go_on(self) -> None:
        self._write()
        if self._calls is not None:
            self._calls -= 1
            if self._calls < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def _write(self) -> None:
        self._number += 1
        first = self._number % 2 * MARK_BYTES
        self._memory[first : first + MARK_BYTES] = _mark_bytes(
            self._number, self._stage, self._call, self.finished, self.begun
        )


def work(directory: Path, marker: Path, seed: int, calls: int | None) -> None:
    """Feed a wheel until killed, or until the starter has ended."""
    starter = os.getppid()
    make_small()
    marking = Marking(marker, calls)
    disk = CountingDisk(marking.call)
    random = Random()
    write = Catalogue.write

    def marked_write(self: Catalogue, batch: CatalogueBatch) -> None:
        marking.stage("batch")
        write(self, batch)

    Catalogue.write = marked_write  # type: ignore[method-assign]

    def reach(step: str) -> None:
        if step == "begin":
            marking.begun = fed.count
        marking.stage(step)
        if step == "finish":
            marking.durable()

    marking.stage("opening")
    fed = FedWheel(directory, FedLog(seed), disk)
    marking.finished = marking.begun = fed.count
    while os.getppid() == starter:
        marking.stage("ingest")
        for _ in range(random.randint(1, 4)):
            fed.take(random.randint(1, 30))
            if random.random() < 0.2:
                fed.write_out()
        marking.stage("split")
        for _ in range(random.randint(0, 4)):
            fed.split()
        fed.checkpoint(reach, meanwhile=random.choice((0, 0, 5)))


def make_small() -> None:
    """Set the small limits in this process."""
    for module, name, value in SMALL:
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)


def main() -> None:
    """Run the worker with the arguments of the command line."""
    directory, marker, seed, *calls = sys.argv[1:]
    work(Path(directory), Path(marker), int(seed), int(calls[0]) if calls else None)


if __name__ == "__main__":
    main()
