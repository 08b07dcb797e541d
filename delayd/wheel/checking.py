"""Checking every frame of a file against its line in the catalogue: what is lost, and where.

A reader stops at the first broken frame; a check goes on behind it. It finds the next whole frame
by its form, its slot and its CRC, so each damage has its own byte range.

    lost      frames of the line that are not in the file any more
    suspect   whole frames in a file that differs from its line: they may not be those that were
              stored

Invariant: memory is bounded by SCAN_BYTES or the longest whole frame, whatever a length says.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from delayd.errors import DiskError
from delayd.wheel import FrameKind, SegmentLine, SlotInfo
from delayd.wheel.disk import OpenFile, SystemDisk
from delayd.wheel.frame import (
    HEADER_BYTES,
    PREFIX,
    BrokenFrameError,
    Header,
    crc_of,
    header_at,
    possible_headers,
    read_body,
    walk,
)
from delayd.wheel.layout import SegmentName
from delayd.wheel.reader import SCAN_BYTES
from delayd.wheel.segment import DIGEST_MODULO
from replication.rank import slot_of

SPANS_MAX = 100
"""Damaged ranges that are reported of one file; the last one includes all further ones."""


class WholeFrame(NamedTuple):
    """A frame that is whole and of its segment, as bytes."""

    partition: int
    offset: int
    due_ms: int
    kind: int
    crc: int
    data: bytes


Keep: TypeAlias = Callable[[WholeFrame], object]


class Span(NamedTuple):
    """A range of damaged bytes."""

    first_byte: int
    end_byte: int
    why: str


@dataclass(slots=True)
class FramesFound:
    """The content of a file, up to the length in its line."""

    messages: int = 0
    pending_replies: int = 0
    """Cancel markers included."""
    digest: int = 0
    highest_offsets: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    lost: int = 0
    suspect: int = 0

    @property
    def whole(self) -> int:
        """Frames that are whole and of this slot."""
        return self.messages + self.pending_replies


def check_segment(
    disk: SystemDisk, file: OpenFile, line: SegmentLine, keep: Keep | None = None
) -> FramesFound:
    """Read the file from its start up to the length in its line, and compare it with the line.
    Damage is returned, not raised. `keep` gets every whole frame."""
    name, info, start = line
    found = FramesFound(highest_offsets=[-1] * len(info.highest_offsets))
    end = info.bytes
    position = start
    while position < end:
        try:
            position = _Stretch(disk, file, name, end, found, keep).read(position)
        except DiskError as error:
            _add(found, Span(position, end, error.message))
            break
    _judge(found, info, start)
    return found


def _judge(found: FramesFound, info: SlotInfo, start: int) -> None:
    # What was split may have been the highest of a partition.
    highest = zip(found.highest_offsets, info.highest_offsets, strict=True)
    is_within = all(seen <= told if start else seen == told for seen, told in highest)
    found.lost = max(0, info.count - found.whole)
    is_alike = (
        found.whole == info.count
        and (found.digest - info.digest) % DIGEST_MODULO == 0
        and is_within
    )
    if is_alike and not found.spans:
        return
    if not found.spans:
        why = f"hold {found.whole} frames, which are not the {info.count} of the catalogue's line"
        _add(found, Span(start, info.bytes, why))
        found.suspect = found.whole
    elif found.lost == 0:
        # Something is damaged, and yet there are as many as there should be: not the same ones.
        found.suspect = found.whole


class _Stretch(NamedTuple):
    """One check of a file, which `read` advances."""

    disk: SystemDisk
    file: OpenFile
    name: SegmentName
    end: int
    found: FramesFound
    keep: Keep | None

    def read(self, position: int) -> int:
        """Check the frames from `position` on, as far as one read goes; return where to go on."""
        data = self.disk.pread(self.file, min(SCAN_BYTES, self.end - position), position)
        if not data:
            _add(self.found, Span(position, self.end, "are missing: the file is cut off"))
            return self.end
        try:
            after = self._take(data, position)
        except BrokenFrameError as error:
            return self._skip(error.position, error.why)
        return after if after > position else self._take_long(data, position)

    def _take(self, data: bytes, position: int) -> int:
        """Check the whole frames of `data`; return where the last of them ends in the file."""
        after = position
        found = self.found
        highest = found.highest_offsets
        for due_ms, partition, offset, _, kind, _, start, end, crc in walk(data, position):
            at = position + start - HEADER_BYTES
            if not self.name.holds(slot_of(due_ms)) or partition >= len(highest):
                raise BrokenFrameError(at, position + end - at, "is of another slot")
            try:
                read_body(data[start:end])
            except (ValueError, TypeError) as error:
                raise BrokenFrameError(at, position + end - at, "has no body") from error
            if kind == FrameKind.MESSAGE:
                found.messages += 1
            else:
                found.pending_replies += 1
            found.digest += crc
            highest[partition] = max(highest[partition], offset)
            after = position + end
            if self.keep is not None:
                whole = data[start - HEADER_BYTES : end]
                self.keep(WholeFrame(partition, offset, due_ms, kind, crc, whole))
        return after

    def _take_long(self, data: bytes, position: int) -> int:
        """Check the frame at `position`, which does not end within `data`."""
        if len(data) < HEADER_BYTES:
            return self._skip(position, "is cut off")
        header = header_at(data, 0)
        if position + header.length > self.end:
            return self._skip(position, "goes on beyond the end of the slot")
        if not self._is_whole(position, header):
            return self._skip(position, "is cut off or has a wrong CRC")
        whole = self.disk.pread(self.file, header.length, position)
        try:
            after = self._take(whole, position)
        except BrokenFrameError as error:
            return self._skip(error.position, error.why)
        assert after > position, "a whole frame was not taken in"
        return after

    def _is_whole(self, position: int, header: Header) -> bool:
        first = position + PREFIX.size
        end = position + header.length
        lengths = []

        def pieces() -> Iterator[bytes]:
            for at in range(first, end, SCAN_BYTES):
                piece = self.disk.pread(self.file, min(SCAN_BYTES, end - at), at)
                lengths.append(len(piece))
                yield piece

        return crc_of(pieces()) == header.crc and sum(lengths) == end - first

    def _skip(self, broken: int, why: str) -> int:
        """Note broken bytes up to the next whole frame of the slot; return where that begins."""
        after = self._next_frame(broken + 1)
        _add(self.found, Span(broken, after, why))
        return after

    def _next_frame(self, position: int) -> int:
        while position < self.end:
            data = self.disk.pread(self.file, min(SCAN_BYTES, self.end - position), position)
            for header in possible_headers(data):
                at = position + header.at
                if (
                    at + header.length <= self.end
                    and self.name.holds(slot_of(header.due_ms))
                    and header.partition < len(self.found.highest_offsets)
                    and self._is_whole(at, header)
                ):
                    return at
            if len(data) <= HEADER_BYTES:
                break
            position += len(data) - HEADER_BYTES + 1
        return self.end


def _add(found: FramesFound, span: Span) -> None:
    if len(found.spans) < SPANS_MAX:
        found.spans.append(span)
    else:
        last = found.spans[-1]
        found.spans[-1] = Span(last.first_byte, span.end_byte, "are damaged in many places")
