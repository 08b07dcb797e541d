"""The frames of a slot's or an hour's file that are pending at the cut, as rows: an export's hot
path.

Frames are judged by their headers; only the bodies of pending ones are decoded. A difference from
what the node froze (a CRC, a length, the count, the digest) is a DamagedSegmentError with its
bytes.
"""

import os
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any
from zlib import crc32

from delayd.node.export.rows import Rows
from delayd.wheel import FrameKind, SegmentLine
from delayd.wheel.frame import BrokenFrameError, read_body, walk
from delayd.wheel.layout import HOUR_SLOTS
from delayd.wheel.segment import DIGEST_MODULO
from replication.frontier import Frontier
from replication.rank import SLOT_MS, Rank

READ_BYTES = 1024 * 1024
"""How much of a file is in memory; a longer frame takes its length."""
KILLS_MAX = 200_000
"""Killed messages of one slot held at once, about 20 MB; with more it is read once more."""

_MESSAGE = int(FrameKind.MESSAGE)
TEXTS_MAX = 10_000
"""Topics and header names remembered with their length in front."""
_LENGTHS = tuple(n.to_bytes(4, "big") for n in range(4096))
_NULL = b"\xff\xff\xff\xff"
_NOBODY: frozenset[int] = frozenset()


class DamagedSegmentError(Exception):
    """A file of a slot or of an hour is not what the node wrote."""


class Kills:
    """The killed messages of one segment after the other, out of one stream by rank."""

    def __init__(self, lines: Iterable[tuple[Rank, int]], cut: Frontier) -> None:
        self._lines = (
            rank for rank, marker_offset in lines if marker_offset < cut.offsets[rank.partition]
        )
        self._next = next(self._lines, None)

    def take(self, first: int, slots: int) -> tuple[frozenset[int] | set[int], Rank | None]:
        """Return the killed messages of so many slots from the first on (see `_source`), and the
        first killed one that is not among them; None if those are all. Called in ascending
        order."""
        first_ms, stop_ms = first * SLOT_MS, (first + slots) * SLOT_MS
        rank = self._next
        if rank is None or rank.due_ms >= stop_ms:
            return _NOBODY, None
        found: set[int] = set()
        while rank is not None and rank.due_ms < stop_ms and len(found) < KILLS_MAX:
            if rank.due_ms >= first_ms:
                found.add(_source(rank.partition, rank.offset))
            rank = next(self._lines, None)
        self._next = rank
        return found, rank if rank is not None and rank.due_ms < stop_ms else None


def _source(partition: int, offset: int) -> int:
    """Return a message's place in the buffer as one number: its rank follows from it."""
    return offset << 16 | partition


class SegmentsReader:
    """Reads frozen slots and hours by time, against one cut.

    A sparse hour, or one that is half split, lies in its file and in its slots: both go through the
    kills by themselves.
    """

    def __init__(
        self,
        cut: Frontier,
        kills: Callable[[], Iterable[tuple[Rank, int]]],
        write: Callable[[Rows], None],
    ) -> None:
        """`kills`: by rank, from the beginning each time that it is called."""
        self._cut = cut
        self._kills = {is_hour: Kills(kills(), cut) for is_hour in (True, False)}
        self._write = write
        self._rows = Rows()
        self._passed_ms = cut.highest_cursor.due_ms
        self._cursors = [cut.cursors_of(partition) for partition in range(len(cut.offsets))]
        """K by partition and lane."""

    def read(self, path: str, segment: SegmentLine) -> None:
        """Write the rows of this slot or hour, as soon as they fill a group."""
        name = segment.name
        first, slots = (name.number * HOUR_SLOTS, HOUR_SLOTS) if name.is_hour else (name.number, 1)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DamagedSegmentError(
                f"{name}: {path} cannot be opened: {error.strerror}; bytes {segment.start} to "
                f"{segment.info.bytes} are missing"
            ) from error
        try:
            low: Rank | None = None
            while True:
                kills, high = self._kills[name.is_hour].take(first, slots)
                self._read_between(file, segment, kills, low, high)
                if high is None:
                    return
                low = high
        except BrokenFrameError as error:
            raise DamagedSegmentError(
                f"{name}: the frame at bytes {error.position} to "
                f"{error.position + error.length} {error.why}"
            ) from error
        finally:
            os.close(file)

    def finish(self) -> None:
        """Write the last group."""
        self._write(self._rows)

    def _read_between(
        self,
        file: int,
        segment: SegmentLine,
        kills: Container[int],
        low: Rank | None,
        high: Rank | None,
    ) -> None:
        """Read frames with low <= rank < high; the whole file is verified."""
        name, info, position = segment
        end = info.bytes
        count = digest = 0
        wanted_bytes = READ_BYTES
        while position < end:
            data = _read_at(file, min(wanted_bytes, end - position), position)
            used, frames, crcs = self._collect(data, position, kills, low, high)
            if used == 0 and position + len(data) == end:
                raise BrokenFrameError(position, end - position, "ends too early")
            wanted_bytes = READ_BYTES if used else 2 * wanted_bytes
            position += used
            count += frames
            digest += crcs
            rows = self._rows
            rows.slot.extend(due_ms // SLOT_MS for due_ms in rows.due_ms[len(rows.slot) :])
            if rows.is_full():
                self._write(rows)
                self._rows = Rows()
        if count != info.count or (digest - info.digest) % DIGEST_MODULO != 0:
            raise DamagedSegmentError(
                f"{name}: bytes {segment.start} to {end} hold {count} frames, "
                f"which are not the {info.count} that the node has"
            )

    def _collect(
        self,
        data: bytes,
        position: int,
        kills: Container[int],
        low: Rank | None,
        high: Rank | None,
    ) -> tuple[int, int, int]:
        """Add rows of the pending ones; return bytes, number and sum of CRCs of the whole frames in
        `data`."""
        offsets, passed_ms = self._cut.offsets, self._passed_ms
        cursors = self._cursors
        rows = self._rows
        add_due, add_partition, add_offset = (
            rows.due_ms.append,
            rows.partition.append,
            rows.offset.append,
        )
        add_lane, add_topic, add_append = rows.lane.append, rows.topic.append, rows.append_ms.append
        add_id, add_digest, add_crc = rows.id.append, rows.digest.append, rows.payload_crc.append
        used = count = digest = text_bytes = 0
        for due_ms, partition, offset, lane, kind, append_ms, start, used, crc in walk(
            data, position
        ):
            count += 1
            digest += crc
            if kind != _MESSAGE or offset >= offsets[partition]:
                continue
            if due_ms <= passed_ms and (due_ms, partition, offset) < cursors[partition][lane]:
                continue
            if low is not None and (due_ms, partition, offset) < low:
                continue
            if high is not None and (due_ms, partition, offset) >= high:
                continue
            if kills and (offset << 16 | partition) in kills:
                continue
            topic, _, key, value, pairs, target_partition, id, sent, *_ = read_body(
                data[start:used]
            )
            add_due(due_ms)
            add_partition(partition)
            add_offset(offset)
            add_lane(lane)
            add_topic(topic)
            add_append(append_ms)
            add_id(id)
            add_digest(None if id is None else sent)
            add_crc(payload_crc(topic, key, value, pairs, target_partition))
            text_bytes += len(topic) if id is None else len(topic) + len(id)
        rows.text_bytes += text_bytes
        return used, count, digest


def _read_at(file: int, size_bytes: int, position: int) -> bytes:
    data = os.pread(file, size_bytes, position)
    while len(data) < size_bytes:
        more = os.pread(file, size_bytes - len(data), position + len(data))
        if not more:
            raise BrokenFrameError(position + len(data), size_bytes - len(data), "is cut off")
        data += more
    return data


class _Texts(dict[str, bytes]):
    """By text: its length and its UTF-8."""

    def __missing__(self, text: str) -> bytes:
        if len(self) >= TEXTS_MAX:
            self.clear()
        data = text.encode()
        made = self[text] = len(data).to_bytes(4, "big") + data
        return made


_texts = _Texts()


def payload_crc(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    pairs: Sequence[tuple[str, bytes | None]] | Sequence[Any],
    partition: int | None,
) -> int:
    """Return what a message carries as one number; `pairs` are the user's headers in their order.

    The pieces that repeat (topics, names of headers, lengths) are made once.
    Source: docs/design/audit.md, "Payload CRC".
    """
    parts = [_texts[topic]]
    add = parts.append
    for content in (key, value):
        if content is None:
            add(_NULL)
        else:
            size = len(content)
            add(_LENGTHS[size] if size < 4096 else size.to_bytes(4, "big"))
            add(content)
    for name, content in pairs:
        add(_texts[name])
        if content is None:
            add(_NULL)
        else:
            size = len(content)
            add(_LENGTHS[size] if size < 4096 else size.to_bytes(4, "big"))
            add(content)
    add(_NULL if partition is None else _texts[str(partition)])
    return crc32(b"".join(parts))
