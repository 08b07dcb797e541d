"""The wheel: one node's storage of pending messages. One file per second slot, LevelDB beside it.

What is due in an hour that is far waits in one file per hour, and is split when the hour is near.
The wheel knows frames, slots and pending replies; it does not know what a body means, who is
master, or what has been delivered. It stores what ingest decided, returns it in rank order, and
forgets a slot when asked to. `storage.py` holds the wheel itself, `frame.py` the bytes, `layout.py`
every path, `catalogue.py` LevelDB, `disk.py` the door to the operating system.
Those who look at a stopped node's wheel begin at `stopped.py`, and at `checking.py` for one slot.

Invariants:
- after any crash the wheel is exactly its last checkpoint;
- a frame is given back byte for byte as it was stored, or CorruptionError is raised;
- a slot's file is unlinked only after the checkpoint that forgot it.
"""

from enum import IntEnum
from typing import Any, NamedTuple

from delayd.wheel.layout import SegmentName
from replication.entry import Entry
from replication.rules import Barrier
from replication.trimmed import Beginning

__all__ = ["Entry", "Frame", "FrameKind", "Progress", "SegmentLine", "SlotInfo"]


class FrameKind(IntEnum):
    """What a frame is."""

    MESSAGE = 0
    """A live message, filed under the slot of its rank's due time."""
    PENDING_REPLY = 1
    """A reply to a request that waits for its step, filed under the slot of its append time."""
    CANCEL_MARKER = 2
    """A cancel or replace, whose verdict its step decides; a pending reply, filed as one."""


class Frame(NamedTuple):
    """One stored record. For a pending reply, `due_ms` is the append time."""

    due_ms: int
    partition: int
    offset: int
    lane: int
    kind: int
    append_ms: int
    body: tuple[Any, ...]
    """Anything msgpack can carry; bytes stay bytes, str stays str."""


class SlotInfo(NamedTuple):
    """A slot's line in the catalogue."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    bytes: int
    digest: int
    """Sum of the frames' CRC32C modulo 2**64: the same on every replica, whatever the order."""
    highest_offsets: tuple[int, ...]
    """Highest offset held of each buffer partition, -1 for none."""


class SegmentLine(NamedTuple):
    """The catalogue's line of one slot or hour file."""

    name: SegmentName
    info: SlotInfo
    """`bytes` is of the whole file; count, digest and offsets are of the frames from `start` on,
    except that highest offsets do not fall while an hour is split."""
    start: int = 0
    """Frames before this byte have been moved to their slots; 0 for a slot."""


class Progress(NamedTuple):
    """What a checkpoint remembers of ingest, besides the frames; written with them atomically."""

    offsets: tuple[int, ...]
    """O of this node: 1 + the last ingested offset, by buffer partition."""
    leader_epochs: tuple[int, ...]
    """Leader epoch of the last ingested record, by buffer partition; -1 for none."""
    log_ms: tuple[int, ...]
    """Log time L, by buffer partition."""
    frontier: bytes
    """The newest frontier record acted on, as read from its topic; empty for none."""
    reached: tuple[int, ...] = ()
    """How far the buffer has been read, markers and aborted records included; empty if unknown."""
    forgotten: bytes = b""
    """The newest frontier record by which anything was forgotten or not stored; empty for none."""
    forgotten_ms: int = 0
    """Its append time."""
    leap_ms: tuple[int, ...] = ()
    """By buffer partition: the first append time of a leap that L has not followed; 0 if there is
    none. Empty if no partition has one."""
    rules: tuple[Barrier, ...] = ()
    """The barriers that have switched the rules, as far as this node knows."""
    began: tuple[Beginning, ...] = ()
    """By buffer partition: where a trimmed log began when this wheel was rebuilt from it; empty if
    it holds all that the log ever said."""
    full: tuple[tuple[int, str, int, int], ...] = ()
    """Partition, topic, limit and quota of each topic that takes no more there."""
