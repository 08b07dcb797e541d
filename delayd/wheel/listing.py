"""Pending messages of one checkpoint, page by page: for people, while the wheel goes on.

A page begins where the one before it ended, and reads a bounded number of bytes. The order is: by
hour, within an hour its file and then its slots, within a file as messages were stored. So
messages of an hour are not sorted by due time; no page has to know what lies before it.

A message that stays pending is on a page, whatever happens between two pages. One whose hour was
split between them may be on two: its frame has moved from the file of the hour to its slot.

Not here: which messages are killed or delivered (the caller's `keep` decides), and who holds the
checkpoint's files meanwhile.

Source: docs/design/storage.md, "Listing".
"""

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from delayd.errors import CorruptionError
from delayd.wheel import FrameKind, SegmentLine
from delayd.wheel.catalogue import REBUILD, Catalogue
from delayd.wheel.counts import OTHER, topics_in
from delayd.wheel.disk import SystemDisk
from delayd.wheel.frame import HEADER_BYTES, BrokenFrameError, read_body
from delayd.wheel.kills import kill_key
from delayd.wheel.layout import HOUR_SLOTS, Layout, hour_of
from delayd.wheel.reader import FoundFrame, read_frames
from delayd.wheel.stopped import reading
from replication.rank import SLOT_MS, Rank, slot_of

READ_BYTES: Final = 64 * 1024
"""Of a file at once: a millisecond of processor, in which other threads get their turn."""

_MESSAGE: Final = int(FrameKind.MESSAGE)


class Cursor(NamedTuple):
    """Where a page begins: in which hour, in which of its files, at which byte."""

    hour: int
    """Hours since 1970."""
    slot: int = 0
    """0: the file of the hour; else the slot."""
    generation: int = 0
    position: int = 0
    """Of another generation of the file: begin it again."""


class _FullError(Exception):
    """The page has read its bytes."""


class Listed(Protocol):
    """A checkpoint that stays as it is."""

    @property
    def layout(self) -> Layout:
        """Where its files are."""

    @property
    def catalogue(self) -> Catalogue:
        """Its lines."""


class Listing:
    """One page. Iterate over `messages`, and take `next` afterwards."""

    def __init__(
        self,
        wheel: Listed,
        begin: Cursor,
        *,
        from_ms: int,
        until_ms: int,
        topic: str | None,
        bytes_max: int,
        text: str | None = None,
    ) -> None:
        """List what is due from `from_ms` until before `until_ms` (Unix ms). With a topic, hours
        that count none of it are not read; with a text, frames without it are not decoded. About
        `bytes_max` are read, but one frame at least."""
        self._wheel = wheel
        self._begin = max(begin, Cursor(hour_of(slot_of(from_ms))))
        self._from_ms = from_ms
        self._until_ms = until_ms
        self._topic = topic
        self._text = (text or "").encode()
        self._bytes_left = bytes_max
        self.next: Cursor | None = self._begin
        """Behind the last message that was taken; None when all were."""

    def messages(self) -> Generator[tuple[FoundFrame, tuple[Any, ...]], None, None]:
        """Yield messages that were not killed, each with its body, until the page is full. The
        caller may stop at any of them. Raises CorruptionError."""
        try:
            for line in self._lines():
                yield from self._messages_in(line)
        except _FullError:
            return
        self.next = None

    def _messages_in(self, line: SegmentLine) -> Iterator[tuple[FoundFrame, tuple[Any, ...]]]:
        start, begun = line.start, self._cursor_of(line, 0)
        if begun[:3] == self._begin[:3]:
            start = max(start, self._begin.position)
        self.next = begun._replace(position=start)
        for frame in self._frames(line, start):
            self.next = begun._replace(position=frame.position + HEADER_BYTES + len(frame.body))
            if frame.kind != _MESSAGE or not self._from_ms <= frame.due_ms < self._until_ms:
                continue
            if self._text not in frame.body:  # msgpack has texts as they are
                continue
            rank = Rank(frame.due_ms, frame.partition, frame.offset)
            if self._wheel.catalogue.note(kill_key(rank)) is None:
                yield frame, read_body(frame.body)

    def _cursor_of(self, line: SegmentLine, position: int) -> Cursor:
        name = line.name
        slot = 0 if name.is_hour else name.number
        return Cursor(name.hour, slot, name.generation, position)

    def _lines(self) -> Iterator[SegmentLine]:
        """Yield the lines of files from the cursor on, by hour, each hour's own file first."""
        hour, slot = self._begin.hour, self._begin.slot
        first = max(slot, hour * HOUR_SLOTS)
        first = max(first, slot_of(self._from_ms))
        for line in self._wheel.catalogue.lines_by_hour(first, hour):
            name = line.name
            first_slot = name.hour * HOUR_SLOTS if name.is_hour else name.number
            if name.hour * HOUR_SLOTS * SLOT_MS >= self._until_ms:
                return
            is_done = name.is_hour and slot and name.hour == hour
            if not is_done and first_slot * SLOT_MS < self._until_ms and self._may_hold(name.hour):
                yield line

    def _may_hold(self, hour: int) -> bool:
        """Return whether messages of the topic may be in this hour, by the counts."""
        if self._topic is None:
            return True
        topics = topics_in(self._wheel.catalogue, hour)
        return topics is None or not topics.keys().isdisjoint((self._topic, OTHER, ""))

    def _frames(self, line: SegmentLine, start: int) -> Iterator[FoundFrame]:
        layout, disk = self._wheel.layout, SystemDisk()
        path = layout.segment_file(line.name)
        try:
            with reading(disk, path) as file:
                read = partial(self._read, partial(disk.pread, file))
                yield from read_frames(read, start, line.info.bytes, READ_BYTES)
        except BrokenFrameError as error:
            raise CorruptionError(
                f"{path}: the frame at bytes {error.position} to "
                f"{error.position + error.length} {error.why}",
                remedy=REBUILD,
            ) from error

    def _read(self, pread: Callable[[int, int], bytes], size_bytes: int, position: int) -> bytes:
        # A frame that is longer than a piece is read to its end all the same.
        if self._bytes_left <= 0 and size_bytes <= READ_BYTES:
            raise _FullError
        self._bytes_left -= size_bytes
        return pread(size_bytes, position)
