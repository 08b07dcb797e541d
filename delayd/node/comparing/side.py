"""One side of a comparison: what is asked of a node, and this node's own answers.

A side is the last checkpoint of a running wheel, as a snapshot holds it. The replica's lock is
taken to hold and release files, for some microseconds; all reading is done without it, in pieces
of READ_BYTES, and no faster than a `Pace` allows.

Source: docs/design/storage.md, "Comparing running nodes".
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

from delayd import __version__
from delayd.errors import CorruptionError, DiskError
from delayd.node.replica.held import held_snapshot
from delayd.node.replica.replica import Replica
from delayd.request.bodies import id_of
from delayd.runtime.clock import Clock
from delayd.wheel import FrameKind, Progress
from delayd.wheel.comparing.common_cut import CommonCut
from delayd.wheel.comparing.digest_tree import Digest, Level
from delayd.wheel.comparing.held import HeldWheel
from delayd.wheel.frame import read_body
from delayd.wheel.layout import FORMAT_VERSION
from delayd.wheel.snapshot import Snapshot
from replication.rank import slot_of
from replication.record import decode

READ_BYTES: Final = 256 * 1024
"""Of a file at once: some milliseconds of processor, in which other threads get their turn."""
BYTES_PER_S: Final = 8 * 1024 * 1024
"""How fast a node reads its files to be compared: some twentieth of a processor."""
KILL: Final = 256
"""The kind of what is no frame, but a line of the catalogue: a message that is killed."""
KILLS_AT_ONCE: Final = 50_000
"""Lines of killed messages that one question reads: some half a second of processor."""
_SPREAD: Final = 0x9E3779B1
"""A prime that spreads offsets over turns."""


class ComparisonError(Exception):
    """This side gives no answer now; its node is well, or will find out by itself."""


class Source(NamedTuple):
    """Which frame: its kind, and its record in the buffer. KILL: that the message is killed."""

    kind: int
    partition: int
    offset: int


class Value(NamedTuple):
    """What a frame says: two that have both in common have the same bytes."""

    due_ms: int
    crc: int
    """Of a killed message, the offset of the cancel marker that killed it."""


class HeldFrame(NamedTuple):
    """One frame that a side holds."""

    source: Source
    value: Value
    lane: int
    id: str | None


class Checkpoint(NamedTuple):
    """What two nodes must know of each other's checkpoint to agree on a cut."""

    offsets: tuple[int, ...]
    log_ms: tuple[int, ...]
    leap_ms: tuple[int, ...]
    forgotten: bytes

    @classmethod
    def of(cls, progress: Progress) -> "Checkpoint":
        """Return it of a wheel's progress."""
        return cls(progress.offsets, progress.log_ms, progress.leap_ms, progress.forgotten)

    @classmethod
    def read(cls, fields: Sequence[Any]) -> "Checkpoint":
        """Return what came over the network."""
        offsets, log_ms, leap_ms, forgotten = fields
        return cls(tuple(offsets), tuple(log_ms), tuple(leap_ms), bytes(forgotten))

    @property
    def progress(self) -> Progress:
        """Return it as far as a cut needs it."""
        return Progress(
            offsets=self.offsets,
            leader_epochs=(),
            log_ms=self.log_ms,
            frontier=b"",
            forgotten=self.forgotten,
            leap_ms=self.leap_ms,
        )


class About(NamedTuple):
    """What a side is."""

    node: str
    version: str
    format: int
    realm: str
    buffer: str
    partitions: int
    replayed: tuple[tuple[int, int], ...]
    """Messages about which it differed when it was rebuilt from the log: what it holds of them now,
    or not, is the log's word."""
    checkpoint: Checkpoint

    def is_comparable(self, other: "About") -> bool:
        """Return whether frames of both have the same bytes for the same record. Another release
        may write them otherwise."""
        return self[1:6] == other[1:6]


def cut_of(checkpoints: Sequence[Checkpoint], id_memory_ms: int) -> CommonCut:
    """Return what all must hold: the same for each that works it out, in whatever order."""
    forgotten = sorted({each.forgotten for each in checkpoints if each.forgotten})
    return CommonCut.of(
        [each.progress for each in checkpoints],
        tuple(decode(value).frontier for value in forgotten),
        id_memory_ms,
    )


class Side(Protocol):
    """One node's checkpoint. Every method raises ComparisonError."""

    about: About

    def agree(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Compare by the cut of these from now on; its own is among them."""

    def digests(self, level: Level, parents: Sequence[int]) -> Mapping[int, Digest]:
        """Return the nodes of this level of the tree of digests below these parents."""

    def frames(
        self, hour: int, slots: Collection[int], turn: int, turns: int
    ) -> Sequence[HeldFrame]:
        """Return the frames of these slots that all must hold, and the messages in them that all
        must know to be killed, in one of so many turns."""

    def kill_digests(self, first_hour: int) -> tuple[Mapping[int, Digest], int | None]:
        """Return the digests of killed messages, by hour from this one on, and where to go on;
        None: these were all."""

    def end(self) -> None:
        """Let go of the checkpoint; idempotent."""


class Pace:
    """How fast a node reads, all its comparisons together. Thread safe."""

    def __init__(self, clock: Clock, bytes_per_s: int = BYTES_PER_S) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_ms = 0
        self.read_bytes = 0

    def pause_s(self, size_bytes: int) -> float:
        """Return how long a read of so many bytes must wait."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            self.read_bytes += size_bytes
            at_ms = max(now_ms, self._free_at_ms)
            self._free_at_ms = at_ms + -(-size_bytes * 1000 // self._bytes_per_s)
        return (at_ms - now_ms) / 1000


class OwnSide:
    """This node's last checkpoint. `end` may be called from any thread, the rest from one at a
    time."""

    def __init__(
        self,
        replica: Replica,
        node: str,
        pace: Pace,
        replayed: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Hold the checkpoint. `replayed`: see `About`. ComparisonError if there is none, or no
        room to hold it."""
        if replica.room.is_low:
            raise ComparisonError("the disk is short")
        self._replica = replica
        self._pace = pace
        self._ending = threading.Event()
        self._lock = threading.Lock()
        """Held by whoever reads."""
        self._held: HeldWheel | None = None
        self._snapshot: Snapshot | None = self._opened()
        settings = replica.settings
        self.about = About(
            node,
            __version__,
            FORMAT_VERSION,
            settings.realm,
            settings.buffer.topic_id,
            settings.partitions,
            tuple(replayed),
            Checkpoint.of(self._snapshot.progress),
        )

    def _opened(self) -> Snapshot:
        try:
            return held_snapshot(self._replica)
        except DiskError as error:
            raise ComparisonError(str(error)) from error

    def agree(self, checkpoints: Sequence[Checkpoint]) -> None:
        """See `Side`."""
        with self._reading() as snapshot:
            if self.about.checkpoint not in checkpoints:
                raise ComparisonError("the cut is of other checkpoints")
            cut = cut_of(checkpoints, self._replica.settings.id_memory_ms)
            self._held = HeldWheel(snapshot, cut, self._wait, READ_BYTES, has_kills=True)

    def digests(self, level: Level, parents: Sequence[int]) -> Mapping[int, Digest]:
        """See `Side`."""
        with self._reading():
            return self._agreed().digests(level, parents)

    def frames(
        self, hour: int, slots: Collection[int], turn: int, turns: int
    ) -> Sequence[HeldFrame]:
        """See `Side`."""
        with self._reading():
            held, slots = self._agreed(), frozenset(slots)
            frames = [
                HeldFrame(
                    Source(frame.kind, frame.partition, frame.offset),
                    Value(frame.due_ms, frame.crc),
                    frame.lane,
                    _id_in(frame.body) if frame.kind == FrameKind.MESSAGE else None,
                )
                for frame in held.frames(hour, slots)
                if _turn_of(frame.offset, turns) == turn
            ]
            kills = [
                HeldFrame(
                    Source(KILL, rank.partition, rank.offset),
                    Value(rank.due_ms, marker_offset),
                    0,
                    None,
                )
                for rank, marker_offset in held.kills_of(hour)
                if slot_of(rank.due_ms) in slots and _turn_of(rank.offset, turns) == turn
            ]
            return frames + kills

    def kill_digests(self, first_hour: int) -> tuple[Mapping[int, Digest], int | None]:
        """See `Side`."""
        with self._reading():
            return self._agreed().kill_digests(first_hour, KILLS_AT_ONCE)

    def end(self) -> None:
        """See `Side`. A read that is under way ends within a moment, and lets go itself."""
        self._ending.set()
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        if self._snapshot is None:
            return
        self._snapshot.close()
        self._snapshot = self._held = None
        with self._replica.changed:
            self._replica.wheel.snapshots.release()

    @contextmanager
    def _reading(self) -> Iterator[Snapshot]:
        try:
            with self._lock:
                if self._snapshot is None or self._ending.is_set():
                    raise ComparisonError("the comparison has ended")
                yield self._snapshot
        except CorruptionError:
            # Damage is this node's own matter: it ends by it where it meets it.
            raise
        except DiskError as error:
            raise ComparisonError(str(error)) from error
        finally:
            if self._ending.is_set():
                self.end()

    def _agreed(self) -> HeldWheel:
        if self._held is None:
            raise ComparisonError("no cut has been agreed on")
        return self._held

    def _wait(self, size_bytes: int) -> None:
        if self._ending.wait(self._pace.pause_s(size_bytes)):
            raise ComparisonError("the comparison has ended")


def _turn_of(offset: int, turns: int) -> int:
    return (offset * _SPREAD >> 16) % turns


def _id_in(body: bytes) -> str | None:
    try:
        return id_of(read_body(body))
    except (ValueError, TypeError, IndexError):
        return None
