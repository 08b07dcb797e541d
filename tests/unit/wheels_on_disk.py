"""A wheel as a node leaves it when it ends without notice, for the tests of who looks at it."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from cluster_settings import LANES, PARTITIONS, SETTINGS
from wheel_reading import checkpoint

from delayd.wheel import Entry, Frame, FrameKind, Progress, SegmentLine
from delayd.wheel.frame import HEADER_BYTES, walk
from delayd.wheel.layout import Layout
from delayd.wheel.stopped import locked, open_stopped
from delayd.wheel.storage import Wheel
from replication.frontier import Frontier, first_frontier
from replication.ids import IdState, LiveMessage
from replication.rank import SLOT_MS, Rank
from replication.record import FrontierRecord, StepCounts, encode

FIRST_SLOT = 1_785_000_000
SLOTS = 120
SECONDS_APART = 61
"""So that they lie in three hours."""
FORGOTTEN_SLOTS = 5
ROUNDS = 4
FRAMES_PER_ROUND = 1_000


def slot_at(index: int) -> int:
    """The slot of this index, 0 to SLOTS - 1."""
    return FIRST_SLOT + index * SECONDS_APART


class Catalogued(NamedTuple):
    """What a catalogue says."""

    progress: Progress | None
    lines: dict[int, SegmentLine]
    pending_replies: list[Entry]


def catalogued(directory: Path) -> Catalogued:
    """What the catalogue of a stopped wheel says."""
    with locked(directory) as layout, open_stopped(layout) as wheel:
        lines = {line.name.number: line for line in wheel.catalogue.segment_lines(False)}
        return Catalogued(wheel.progress, lines, list(wheel.catalogue.pending_reply_lines()))


def slot_path(directory: Path, slot: int, line: SegmentLine) -> Path:
    return Path(Layout(str(directory)).segment_file(line.name))


def frames_of(directory: Path, slot: int, line: SegmentLine) -> list[Entry]:
    """The frames of the slot's file that belong to the checkpoint, by position."""
    data = slot_path(directory, slot, line).read_bytes()[: line.info.bytes]
    entries = []
    for due_ms, partition, offset, lane, kind, _, body, end, _ in walk(data, 0):
        position = body - HEADER_BYTES
        entries.append(Entry(due_ms, partition, offset, lane, kind, position, end - position))
    return entries


class Ingest:
    """Fills a wheel with messages and pending replies, and makes checkpoints."""

    def __init__(self, directory: Path, seed: int = 1) -> None:
        self.directory = directory
        self.wheel = Wheel.open(directory, partitions=PARTITIONS)
        self.random = Random(seed)
        self.offsets = [0] * PARTITIONS
        self.frontier = b""
        self.forgotten = b""

    def frame(self, slot: int, kind: FrameKind = FrameKind.MESSAGE) -> Frame:
        """The next one."""
        partition = self.random.randrange(PARTITIONS)
        offset = self.offsets[partition]
        self.offsets[partition] += self.random.randint(1, 3)
        due_ms = slot * SLOT_MS + self.random.randrange(SLOT_MS)
        value = self.random.randbytes(self.random.randrange(120))
        return Frame(due_ms, partition, offset, offset % LANES, kind, due_ms, (b"key", value))

    def append(self, frames: int, first: int = 0) -> None:
        """Append messages and, one of 50, pending replies, in the slots from this index on."""
        for n in range(frames):
            kind = FrameKind.PENDING_REPLY if n % 50 == 49 else FrameKind.MESSAGE
            frame = self.frame(slot_at(self.random.randrange(first, SLOTS)), kind)
            self.wheel.append([frame])
            if n % 10 == 0:
                live = LiveMessage(frame.due_ms, frame.offset, frame.lane, b"0" * 16)
                state = IdState((live,), (), -1)
                self.wheel.ids.remember(frame.partition, b"i%d" % n, state, 3_600_000)

    def progress(self) -> Progress:
        log_ms = tuple(FIRST_SLOT * SLOT_MS + offset for offset in self.offsets)
        epochs = (0,) * PARTITIONS
        return Progress(tuple(self.offsets), epochs, log_ms, self.frontier, (), self.forgotten, 1)

    def checkpoint(self, *, finish: bool = True) -> None:
        checkpoint(self.wheel, self.progress(), finish=finish)

    def end(self) -> None:
        """As a node that is stopped: with a last checkpoint."""
        self.checkpoint()
        self.wheel.close()

    def deliver(self, slots: int) -> None:
        """The frontier passes the first slots, and all that was taken in."""
        frontier = replace(
            first_frontier(0, PARTITIONS, LANES),
            cursors=(Rank(slot_at(slots) * SLOT_MS, 0, 0),) * LANES,
            offsets=tuple(self.offsets),
            step=slots,
        )
        self.frontier = record_of(frontier)


def record_of(frontier: Frontier) -> bytes:
    return encode(FrontierRecord(frontier, "n/1", 0, StepCounts(), 0, SETTINGS))


def abandoned_wheel(directory: Path, frames_per_round: int = FRAMES_PER_ROUND) -> Path:
    """A wheel with nearly 4,000 frames in 115 slots, and beside its last checkpoint: files of
    forgotten slots, longer files, new files."""
    ingest = Ingest(directory)
    for number in range(ROUNDS):
        if number == 2:
            # LevelDB makes a table of its log when it is opened; the rest stays in the next log.
            ingest.wheel.close()
            ingest.wheel = Wheel.open(directory, partitions=PARTITIONS)
        ingest.append(frames_per_round, first=FORGOTTEN_SLOTS if number == ROUNDS - 1 else 0)
        ingest.checkpoint()
    ingest.deliver(FORGOTTEN_SLOTS + 2)
    ingest.forgotten = ingest.frontier
    # All replies so far are written; the newer ones wait.
    ingest.wheel.forget_pending_replies(ingest.offsets)
    for index in range(SLOTS - 20, SLOTS):
        ingest.wheel.append([ingest.frame(slot_at(index), FrameKind.CANCEL_MARKER)])
    ingest.wheel.forget([slot_at(index) for index in range(FORGOTTEN_SLOTS)])
    ingest.checkpoint(finish=False)
    behind = [slot_at(index) for index in range(FORGOTTEN_SLOTS, SLOTS, 2)]
    behind += [slot_at(SLOTS + index) for index in range(10)]
    for slot in behind:
        ingest.wheel.append([ingest.frame(slot), ingest.frame(slot)])
    ingest.wheel.freeze([(False, slot) for slot in behind])
    ingest.wheel.close()
    return directory
