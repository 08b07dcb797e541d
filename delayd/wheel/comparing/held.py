"""One side of a comparison: the digests of a wheel's checkpoint, and its frames where they differ.

The checkpoint is that of a stopped wheel, or of a running one's snapshot. Digests come from the
catalogue's lines where these are enough. Otherwise the file is read, and must match its line. A
read takes `read_bytes` or one frame of memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

from delayd.errors import CorruptionError
from delayd.wheel import FrameKind, SegmentLine
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.comparing.common_cut import CommonCut
from delayd.wheel.comparing.digest_tree import HOURS_OF_A_DAY, NOTHING, Digest, Level
from delayd.wheel.disk import OpenFile, SystemDisk
from delayd.wheel.frame import BrokenFrameError, read_body
from delayd.wheel.kills import KILLS, kill_key, kill_of, rank_of
from delayd.wheel.layout import HOUR_MS, HOUR_SLOTS, Layout
from delayd.wheel.reader import SCAN_BYTES, FoundFrame, read_frames
from delayd.wheel.segment import DIGEST_MODULO
from delayd.wheel.stopped import reading
from replication.rank import SLOT_MS, Rank

_CANCEL_MARKER: Final = int(FrameKind.CANCEL_MARKER)


class Checkpointed(Protocol):
    """A checkpoint that stays as it is: of a stopped wheel, or a snapshot of a running one."""

    @property
    def layout(self) -> Layout:
        """Where its files are."""

    @property
    def catalogue(self) -> Catalogue:
        """Its lines."""


class HeldWheel:
    """One side. The wheel stays open meanwhile."""

    def __init__(
        self,
        wheel: Checkpointed,
        cut: CommonCut,
        tell: Callable[[int], None],
        read_bytes: int = SCAN_BYTES,
        *,
        has_kills: bool = False,
    ) -> None:
        """`tell` gets the bytes of each read, of `read_bytes` unless a frame is longer, before it
        is done. With `has_kills` the digests of what all must hold are of frames and kills.
        Raises CorruptionError: the catalogue."""
        self._wheel = wheel
        self._cut = cut
        self._tell = tell
        self._read_bytes = read_bytes
        self._has_kills = has_kills
        self._held: dict[int, Digest] = {}
        """The digest of all frames, by hour: some thousands."""
        self.bytes = 0
        """Bytes of all lines."""
        for name, info, start in self._wheel.catalogue.counted_lines_by_hour():
            self.bytes += info.bytes - start
            held = self._held.get(name.hour, NOTHING)
            self._held[name.hour] = _sum(held, info.count, info.digest)

    # Digests: see `digest_tree.Replica`.

    def digests(self, level: Level, parents: Sequence[int]) -> dict[int, Digest]:
        """See the port. Raises CorruptionError: a file does not match its line."""
        found: dict[int, Digest] = {}
        if level is Level.DAY:
            for hour, digest in self._held.items():
                day = hour // HOURS_OF_A_DAY
                found[day] = _sum(found.get(day, NOTHING), *digest)
        elif level is Level.HOUR:
            for day in parents:
                hours = range(day * HOURS_OF_A_DAY, (day + 1) * HOURS_OF_A_DAY)
                found.update((hour, self._held[hour]) for hour in hours if hour in self._held)
        else:
            for hour in parents:
                self._add_hour(hour, found, by_slot=level is Level.SLOT)
        return found

    def _add_hour(self, hour: int, found: dict[int, Digest], *, by_slot: bool) -> None:
        for rank, marker_offset in self.kills_of(hour) if self._has_kills else ():
            node = rank.due_ms // SLOT_MS if by_slot else hour
            crc = _kill_crc(rank, marker_offset)
            found[node] = _sum(found.get(node, NOTHING), 1, crc)
        for file in self._files_of(hour):
            name, info, _ = file
            is_one_node = not (by_slot and name.is_hour)
            if is_one_node and self._cut.holds_all(name, info):
                node = name.number if by_slot else hour
                found[node] = _sum(found.get(node, NOTHING), info.count, info.digest)
                continue
            for frame in self._frames_in(file):
                node = frame.due_ms // SLOT_MS if by_slot else hour
                found[node] = _sum(found.get(node, NOTHING), 1, frame.crc)

    def _files_of(self, hour: int) -> Iterator[SegmentLine]:
        catalogue, first = self._wheel.catalogue, hour * HOUR_SLOTS
        if (line := catalogue.segment_line(True, hour)) is not None:
            yield line
        slots = catalogue.segment_lines(False, first)
        yield from takewhile(lambda line: line.name.hour == hour, slots)

    # Frames.

    def frames(self, hour: int, slots: frozenset[int]) -> Iterator[FoundFrame]:
        """Yield the frames of these slots that all must hold; the CRC of a cancel marker is
        `CommonCut.cancel_marker_crc`. Raises CorruptionError."""
        for file in self._files_of(hour):
            if not file.name.is_hour and file.name.number not in slots:
                continue
            for frame in self._frames_in(file):
                if frame.due_ms // SLOT_MS in slots:
                    yield frame

    def kills(self) -> Iterator[tuple[Rank, int]]:
        """Yield the kills that all must know, by rank, with the offset of the cancel marker."""
        for kill in self._kills_from(KILLS):
            if self._cut.holds_kill(*kill):
                yield kill

    def kills_of(self, hour: int) -> Iterator[tuple[Rank, int]]:
        """Yield those of messages that are due in one hour."""
        for rank, marker_offset in self._kills_from(_first_kill_of(hour)):
            if rank.due_ms // HOUR_MS > hour:
                return
            if self._cut.holds_kill(rank, marker_offset):
                yield rank, marker_offset

    def kill_digests(self, first_hour: int, lines_max: int) -> tuple[dict[int, Digest], int | None]:
        """Return the digest of the kills that all must know, by hour of the due time from this hour
        on; and the hour behind them, which is the next to ask for. None: these were all. It ends
        with an hour in which `lines_max` lines were read."""
        found: dict[int, Digest] = {}
        hour = first_hour
        for lines, (rank, marker_offset) in enumerate(self._kills_from(_first_kill_of(first_hour))):
            if rank.due_ms // HOUR_MS > hour:
                if lines >= lines_max:
                    return found, hour + 1
                hour = rank.due_ms // HOUR_MS
            if self._cut.holds_kill(rank, marker_offset):
                found[hour] = _sum(found.get(hour, NOTHING), 1, _kill_crc(rank, marker_offset))
        return found, None

    def _kills_from(self, first: bytes) -> Iterator[tuple[Rank, int]]:
        with closing(self._wheel.catalogue.lines(KILLS, first)) as runs:
            for run in runs:
                if self._has_kills:
                    self._tell(sum(len(key) + len(value) for key, value in run))
                for key, value in run:
                    yield rank_of(key), kill_of(value).marker_offset

    def _frames_in(self, file: SegmentLine) -> Iterator[FoundFrame]:
        """Yield the frames of a file that all must hold. Read and verify the whole file."""
        name, info, start = file
        layout, disk = self._wheel.layout, SystemDisk()
        path = layout.segment_file(name)
        if not Path(path).exists():
            raise self._damaged(f"{path} is missing")
        count, crcs = 0, 0
        try:
            with reading(disk, path) as opened:
                read = partial(self._read, disk, opened)
                for frame in read_frames(read, start, info.bytes, self._read_bytes):
                    count += 1
                    crcs += frame.crc
                    if not name.holds(frame.due_ms // SLOT_MS):
                        raise frame.broken("belongs elsewhere")
                    if self._cut.holds(*frame[:5]):
                        yield self._held_frame(frame)
        except BrokenFrameError as error:
            raise self._damaged(
                f"{path}: the frame at bytes {error.position} to "
                f"{error.position + error.length} {error.why}"
            ) from error
        if count != info.count or (crcs - info.digest) % DIGEST_MODULO != 0:
            raise self._damaged(
                f"{path}: bytes {start} to {info.bytes} hold {count} frames, which are not the "
                f"{info.count} of the catalogue's line"
            )

    def _read(self, disk: SystemDisk, file: OpenFile, size_bytes: int, position: int) -> bytes:
        self._tell(size_bytes)
        return disk.pread(file, size_bytes, position)

    def _held_frame(self, frame: FoundFrame) -> FoundFrame:
        if frame.kind != _CANCEL_MARKER:
            return frame
        try:
            crc = self._cut.cancel_marker_crc(frame.due_ms, read_body(frame.body))
        except (ValueError, TypeError) as error:
            raise frame.broken("is no mark") from error
        return frame._replace(crc=crc)

    def _damaged(self, what: str) -> CorruptionError:
        root = self._wheel.layout.root
        return CorruptionError(
            what, remedy=f"a damaged wheel cannot be compared: run delayd wheel verify {root}"
        )


def _first_kill_of(hour: int) -> bytes:
    return kill_key(Rank(hour * HOUR_MS, 0, 0))


def _kill_crc(rank: Rank, marker_offset: int) -> int:
    return crc32(repr((*rank, marker_offset)).encode())


def _sum(digest: Digest, frames: int, crcs: int) -> Digest:
    return Digest(digest.frames + frames, (digest.crcs + crcs) % DIGEST_MODULO)
