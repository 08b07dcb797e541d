"""The catalogue: what a checkpoint remembers besides the frames. The one door to LevelDB.

    key                              value (msgpack)
    "h" hour:u64                     generation start count bytes digest highest_offset*
                                     an hour file; frames before byte `start` were split off
    "s" slot:u64                     generation count bytes digest highest_offset*    a slot
    "t"                              hours slots frames                       totals of "h" and "s"
    "w" partition:u16 offset:u64     due_ms lane kind position length         a pending reply
    "e" "i" "k"                      see id_memory.py                         what is known of ids
    "z"                              see Progress                             progress

Integers in keys are big-endian, so that LevelDB sorts them by value. Only checkpoints write the
catalogue, each in one synced batch; every read verifies LevelDB's checksums. Every checkpoint
writes progress, whose key comes last on purpose: plyvel's iterator ends without an error when the
last block that it needs is damaged, so a scan that does not end at "z" was cut short.

LevelDB takes a damaged length at the end of its logs for a write that a crash cut short, and opens
without the rest. So recovery reads the logs first (`leveldb_log.py`), and compares the lines of
slots and hours with the totals.

Invariant: the catalogue is the last durable checkpoint, whole. LevelDB never returns half a batch.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from heapq import merge
from itertools import chain, islice
from struct import Struct
from typing import Any, NamedTuple

import msgpack
import plyvel

from delayd.errors import CorruptionError, DiskError
from delayd.wheel import Entry, Progress, SegmentLine, SlotInfo
from delayd.wheel.layout import SegmentName
from replication.rules import Barrier
from replication.trimmed import Beginning

WRITE_BUFFER_BYTES = 8 * 1024 * 1024
"""Bounds the log that LevelDB replays when it opens: 40 MB took 4.5 s."""
CACHE_BYTES = 2 * 1024 * 1024
"""Ids come in no order, so a larger cache has no more hits; the kernel caches the tables."""
BLOOM_BITS = 10
"""Bits of each key in the filters of LevelDB's tables: of the ids that are in none, one in a
hundred has a table read. Tables without a filter are read as before, until LevelDB rewrites
them."""
LINES_RUN = 2_000
"""Lines that a long scan reads at once: takes less than 2 ms."""

REBUILD = (
    "stop the node and try `delayd wheel repair`; or empty its data directory: "
    "at the next start the wheel is rebuilt from the buffer, or copied from another node"
)
"""Remedy for a wheel that is damaged as a whole."""

_SLOT_KEY = Struct(">cQ")
_PENDING_REPLY_KEY = Struct(">cHQ")
_HOUR = b"h"
_SLOT = b"s"
_TOTALS = b"t"
_PENDING_REPLY = b"w"
PROGRESS = b"z"
"""The key that comes last."""
_pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True).pack


class Totals(NamedTuple):
    """The number of lines, and of frames in them."""

    hours: int
    slots: int
    frames: int


class CatalogueBatch(NamedTuple):
    """All changes of one checkpoint, captured: they do not change any more."""

    progress: Progress
    totals: Totals
    lines: tuple[SegmentLine, ...]
    """Slots and hour files that are new or have changed."""
    dropped: tuple[tuple[bool, int], ...]
    """Slots and hours that are gone: is it an hour, and its number."""
    pending_replies: tuple[Entry, ...]
    pending_replies_from: tuple[int, ...]
    """By partition: the offset below which pending replies are dropped, before any is added."""
    notes: Mapping[bytes, bytes | None]
    """Changes to the lines of id memory; None deletes."""
    counts: Callable[[], Mapping[bytes, bytes | None]] = dict
    """Return those of the pending counts."""


class Catalogue:
    """LevelDB in one folder. Not thread safe, except that `write` may run beside
    `pending_replies`, and the runs of `lines` may be taken beside everything but `close`."""

    def __init__(self, path: str, *, create: bool, named: str | None = None) -> None:
        """Open the catalogue; `create` makes a new one if there is none. Errors call it `named`.

        Raises DiskError if another process holds it, CorruptionError if it is lost or damaged.
        """
        self._path = path
        self._named = named or path
        self._pending_replies_from: tuple[int, ...] = ()
        """Pending replies below were dropped by a checkpoint of this process."""
        with self._translated():
            self._db = plyvel.DB(
                path,
                create_if_missing=create,
                paranoid_checks=True,
                write_buffer_size=WRITE_BUFFER_BYTES,
                lru_cache_size=CACHE_BYTES,
                bloom_filter_bits=BLOOM_BITS,
                compression=None,  # It would cost a third of what a new id does.
            )

    def progress(self) -> Progress | None:
        """Return the progress of ingest at the last checkpoint; None before the first one.

        Raises DiskError if a newer release wrote more than this one knows.
        """
        value = self.note(PROGRESS)
        values = () if value is None else _unpack(value)
        if len(values) > len(Progress._fields):
            raise DiskError(
                f"the checkpoint in {self._named} has {len(values)} values, and this version of "
                f"delayd knows {len(Progress._fields)}",
                remedy="run the newest version of delayd that has run on this data directory; or "
                "empty it: the wheel is rebuilt from the buffer",
            )
        if not values:
            return None
        progress = Progress(*values)
        return progress._replace(
            rules=tuple(Barrier(*barrier) for barrier in progress.rules),
            began=tuple(Beginning(*beginning) for beginning in progress.began),
            full=tuple(
                (number, topic, limit, most) for number, topic, limit, most in progress.full
            ),
        )

    def segments(self) -> list[SegmentLine]:
        """Return all lines of slots and of hours.

        Raises CorruptionError, also if the last checkpoint counted others.
        """
        return list(self.counted_lines())

    def counted_lines(self) -> Iterator[SegmentLine]:
        """Yield what `segments` returns: hours, then slots, each ascending. Raise likewise, at the
        end."""
        found = (each for each in self._scan(_HOUR) if each[0][:1] in (_HOUR, _SLOT))
        return self._counted(_segment_line(*each) for each in found)

    def _counted(self, lines: Iterable[SegmentLine]) -> Iterator[SegmentLine]:
        """Yield these lines. Raise CorruptionError at the end if the last checkpoint counted
        others."""
        hours = slots = frames = 0
        for line in lines:
            hours += line.name.is_hour
            slots += not line.name.is_hour
            frames += line.info.count
            yield line
        found, expected = Totals(hours, slots, frames), self.totals()
        # A wheel of format 4 has none before its first checkpoint as one of format 5.
        if expected is not None and expected != found:
            raise CorruptionError(
                f"LevelDB in {self._named} is lost or damaged: it tells of {_told(found)}, "
                f"the last checkpoint counted {_told(expected)}",
                remedy=REBUILD,
            )

    def segment_lines(self, is_hour: bool, first: int = 0) -> Iterator[SegmentLine]:
        """Yield the lines of hour files, or of slots, from this number on, in little memory. Raise
        CorruptionError."""
        for run in self.lines(_HOUR if is_hour else _SLOT, _segment_key(is_hour, first)):
            yield from (_segment_line(key, value) for key, value in run)

    def lines_by_hour(self, first_slot: int = 0, first_hour: int = 0) -> Iterator[SegmentLine]:
        """Return the lines of the hour files and of the slots from these on, by hour; of each hour
        its file first."""
        both = self.segment_lines(True, first_hour), self.segment_lines(False, first_slot)
        return merge(*both, key=lambda line: line.name.hour)

    def counted_lines_by_hour(self) -> Iterator[SegmentLine]:
        """Return all lines by hour. Raise CorruptionError, also at the end if the last checkpoint
        counted others."""
        return self._counted(self.lines_by_hour())

    def pending_reply_lines(self) -> Iterator[Entry]:
        """Yield all pending replies by (partition, offset), likewise."""
        for run in self.lines(_PENDING_REPLY, _PENDING_REPLY):
            yield from (_pending_reply_line(key, value) for key, value in run)

    def segment_line(self, is_hour: bool, number: int) -> SegmentLine | None:
        """Return the line of one slot or hour file; None if there is none."""
        key = _segment_key(is_hour, number)
        value = self.note(key)
        return None if value is None else _segment_line(key, value)

    def totals(self) -> Totals | None:
        """Return the totals of the last checkpoint; None in a wheel of format 4."""
        value = self.note(_TOTALS)
        return None if value is None else Totals(*_unpack(value))

    def lines_by_kind(self) -> Counter[bytes]:
        """Return the number of lines of each kind. Reads and so verifies the whole database.

        Raises CorruptionError, also for lines that no checkpoint wrote.
        """
        return Counter(key[:1] for key, _ in self._scan())

    def pending_replies(self, from_offsets: Sequence[int]) -> list[Entry]:
        """Return pending replies with offset >= from_offsets[partition], by (partition, offset)."""
        replies = self.pending_reply_lines()
        return [entry for entry in replies if entry.offset >= from_offsets[entry.partition]]

    def note(self, key: bytes) -> bytes | None:
        """Return the value of one line of id memory."""
        return self.each_note((key,))[0]

    def each_note(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of these lines of id memory, in their order."""
        get = self._db.get
        with self._translated():
            return [get(key, verify_checksums=True) for key in keys]

    def notes(self, first: bytes, stop: bytes, count_max: int) -> list[tuple[bytes, bytes]]:
        """Return up to so many lines of id memory, from `first` up to `stop`. May be cut short."""
        with (
            self._translated(),
            self._db.iterator(
                start=first, stop=stop, verify_checksums=True, fill_cache=False
            ) as lines,
        ):
            return list(islice(lines, count_max))

    def lines(self, kind: bytes, first: bytes) -> Generator[list[tuple[bytes, bytes]], None, None]:
        """Return all lines of a kind from `first` on, as of this call, in runs of LINES_RUN.

        Any thread may take the runs, beside everything but `close`. Raises CorruptionError.
        """
        is_empty = self.progress() is None
        with self._translated():
            # An iterator sees the database as it was when it was made.
            found = self._db.iterator(start=first, verify_checksums=True, fill_cache=False)
        return self._runs(found, kind, is_empty)

    def _runs(
        self, found: Any, kind: bytes, is_empty: bool
    ) -> Generator[list[tuple[bytes, bytes]], None, None]:
        with self._translated(), found:
            while run := list(islice(found, LINES_RUN)):
                if run[-1][0][:1] == kind:
                    yield run
                    continue
                if run := [line for line in run if line[0][:1] == kind]:
                    yield run
                return
        if not is_empty:
            # Progress comes after all lines: whoever did not get beyond them was cut short.
            raise self._cut_short(kind)

    def _cut_short(self, key: bytes) -> CorruptionError:
        return CorruptionError(
            f"LevelDB in {self._named} is lost or damaged: it ends at {key!r}", remedy=REBUILD
        )

    def _scan(self, first: bytes = b"\0") -> Iterator[tuple[bytes, bytes]]:
        """Yield all lines from a key on, to the end: see the top of this file."""
        key = b""
        with (
            self._translated(),
            self._db.iterator(start=first, verify_checksums=True, fill_cache=False) as lines,
        ):
            for key, value in lines:
                yield key, value
        if key not in (b"", PROGRESS) or (key == b"") != (self.progress() is None):
            raise self._cut_short(key)

    def write(self, batch: CatalogueBatch) -> None:
        """Write a checkpoint, whole or not at all; durable on return."""
        with self._translated():
            write = self._db.write_batch(sync=True)
            for key in self._keys_to_drop(batch.pending_replies_from):
                write.delete(key)
            for entry in batch.pending_replies:
                write.put(
                    _PENDING_REPLY_KEY.pack(_PENDING_REPLY, entry.partition, entry.offset),
                    _pack(
                        (entry.due_ms, entry.lane, int(entry.kind), entry.position, entry.length)
                    ),
                )
            for is_hour, number in batch.dropped:
                write.delete(_segment_key(is_hour, number))
            for name, info, start in batch.lines:
                begin = (name.generation, start) if name.is_hour else (name.generation,)
                value = _pack((*begin, *info[:3], *info.highest_offsets))
                write.put(_segment_key(name.is_hour, name.number), value)
            for key, note in chain(batch.notes.items(), batch.counts().items()):
                if note is None:
                    write.delete(key)
                else:
                    write.put(key, note)
            write.put(_TOTALS, _pack(batch.totals))
            progress = batch.progress
            write.put(PROGRESS, _packed(progress))
            write.write()
        self._pending_replies_from = batch.pending_replies_from

    def _keys_to_drop(self, pending_replies_from: Sequence[int]) -> Iterator[bytes]:
        # From where the last checkpoint came: what was deleted below slows a scan for hours.
        done = self._pending_replies_from or (0,) * len(pending_replies_from)
        for partition, (begin, end) in enumerate(zip(done, pending_replies_from, strict=True)):
            if begin < end:
                first, stop = (
                    _PENDING_REPLY_KEY.pack(_PENDING_REPLY, partition, at) for at in (begin, end)
                )
                how = {"include_value": False, "verify_checksums": True, "fill_cache": False}
                with self._db.iterator(start=first, stop=stop, **how) as keys:
                    yield from keys

    # Copies.

    def snapshot(self) -> "Catalogue":
        """Return the catalogue as its last checkpoint left it, to read from, whatever is written
        later. Any one thread may use it, beside all others; close it before this one."""
        found = copy(self)
        with self._translated():
            found._db = self._db.snapshot()
        return found

    def about_bytes(self) -> int:
        """Return the size of the tables on the disk, roughly; not of a snapshot."""
        with self._translated():
            size: int = self._db.approximate_size(b"\0", b"\xff")
        return size

    def lines_after(self, key: bytes, bytes_max: int) -> list[tuple[bytes, bytes]]:
        """Return the lines after this key, in order, until they have so many bytes. Those that
        reach the end end with progress; CorruptionError if they do not."""
        found, size = [], 0
        with (
            self._translated(),
            self._db.iterator(
                start=key, include_start=False, verify_checksums=True, fill_cache=False
            ) as lines,
        ):
            for line in lines:
                found.append(line)
                size += len(line[0]) + len(line[1])
                if size >= bytes_max:
                    return found
        if not found or found[-1][0] != PROGRESS:
            raise self._cut_short(found[-1][0] if found else key)
        return found

    def put_lines(self, lines: Iterable[tuple[bytes, bytes]]) -> None:
        """Add lines that another catalogue gave, whole or not at all; durable on return."""
        with self._translated():
            write = self._db.write_batch(sync=True)
            for key, value in lines:
                write.put(key, value)
            write.write()

    def last_key(self) -> bytes:
        """Return the key of the last line; empty if there is none."""
        with self._translated(), self._db.iterator(reverse=True, verify_checksums=True) as lines:
            return next(lines, (b"", b""))[0]

    def close(self) -> None:
        """Close; idempotent."""
        self._db.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except plyvel.Error as error:
            raise _translate(self._path, self._named, error) from error


def line_of(key: bytes, value: bytes) -> SegmentLine | Entry | None:
    """Return what the line of a slot, an hour or a pending reply says; None for any other line."""
    if key[:1] in (_HOUR, _SLOT):
        return _segment_line(key, value)
    return _pending_reply_line(key, value) if key[:1] == _PENDING_REPLY else None


def _segment_key(is_hour: bool, number: int) -> bytes:
    return _SLOT_KEY.pack(_HOUR if is_hour else _SLOT, number)


def _segment_line(key: bytes, value: bytes) -> SegmentLine:
    kind, number = _SLOT_KEY.unpack(key)
    is_hour = kind == _HOUR
    generation, *values = _unpack(value)
    start = values.pop(0) if is_hour else 0
    count, size, digest, *highest = values
    info = SlotInfo(count, size, digest, tuple(highest))
    return SegmentLine(SegmentName(is_hour, number, generation), info, start)


def _told(totals: Totals) -> str:
    return f"{totals.slots} slots and {totals.hours} hours with {totals.frames} frames"


def _pending_reply_line(key: bytes, value: bytes) -> Entry:
    _, partition, offset = _PENDING_REPLY_KEY.unpack(key)
    due_ms, lane, kind, position, length = _unpack(value)
    return Entry(due_ms, partition, offset, lane, kind, position, length)


def _packed(progress: Progress) -> bytes:
    """Return the value of a checkpoint's progress, which older releases read as long as they know
    all that is in it."""
    values = list(progress)
    for last in (progress.full, progress.began, progress.rules, progress.leap_ms):
        if last:
            break
        values.pop()
    return _pack(values)


def _unpack(value: bytes) -> tuple[Any, ...]:
    values: tuple[Any, ...] = msgpack.unpackb(value, use_list=False)
    return values


def _translate(opened: str, path: str, error: Exception) -> DiskError:
    # plyvel raises LevelDB's status text; its class alone tells a held lock from a failed device.
    detail = error.args[0] if error.args else ""
    text = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
    text = text.replace(opened, path)
    if isinstance(error, plyvel.IOError) and "/LOCK: " in text:
        return DiskError(
            f"the wheel in {path} is in use by another process",
            remedy="one node per data directory: stop the other one, or set another directory",
        )
    if isinstance(error, plyvel.IOError) and "No such file" not in text:
        return DiskError(
            f"LevelDB in {path} failed: {text}",
            remedy="look at the volume (free space, rights, health), then start the node again",
        )
    return CorruptionError(f"LevelDB in {path} is lost or damaged: {text}", remedy=REBUILD)
