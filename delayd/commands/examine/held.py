"""One side of a comparison: the digests of a stopped wheel, and its frames where they differ.

Digests come from the catalogue's lines where these are enough. Otherwise the file is read, and must
match its line. A read takes SCAN_BYTES or one frame of memory.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from delayd.commands.examine.common_cut import CommonCut
from delayd.commands.examine.digest_tree import HOURS_OF_A_DAY, NOTHING, Digest, Level
from delayd.commands.examine.listed import ListedFile, all_listed_files
from delayd.errors import CorruptionError
from delayd.wheel import FrameKind
from delayd.wheel.frame import HEADER_BYTES, BrokenFrameError, read_body, walk
from delayd.wheel.kills import KILLS, kill_of, rank_of
from delayd.wheel.layout import HOUR_SLOTS, SegmentName
from delayd.wheel.reader import SCAN_BYTES
from delayd.wheel.segment import DIGEST_MODULO
from delayd.wheel.stopped import StoppedWheel, reading
from replication.rank import SLOT_MS, Rank

_CANCEL_MARKER: Final = int(FrameKind.CANCEL_MARKER)


class HeldFrame(NamedTuple):
    """A frame that both replicas must hold."""

    kind: int
    partition: int
    offset: int
    due_ms: int
    crc: int
    """Of a cancel marker: see `CommonCut.cancel_marker_crc`."""


class HeldWheel:
    """One side. The wheel stays open meanwhile."""

    def __init__(self, wheel: StoppedWheel, cut: CommonCut, tell: Callable[[int], None]) -> None:
        """`tell` gets the bytes of each read. Raises CorruptionError: the catalogue."""
        self._wheel = wheel
        self._cut = cut
        self._tell = tell
        self._held: dict[int, Digest] = {}
        """The digest of all frames, by hour: some thousands."""
        self.bytes = 0
        """Bytes of all lines."""
        for name, info, start in all_listed_files(self._wheel.catalogue):
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

    def _files_of(self, hour: int) -> Iterator[ListedFile]:
        line = self._wheel.catalogue.hour_line(hour)
        if line is not None:
            yield ListedFile(SegmentName(True, hour, line.generation), line.info, line.start)
        first = hour * HOUR_SLOTS
        lines = self._wheel.catalogue.slot_lines(first)
        for slot, found in takewhile(lambda each: each[0] < first + HOUR_SLOTS, lines):
            yield ListedFile(SegmentName(False, slot, found.generation), found.info, 0)

    # Frames.

    def frames(self, hour: int, slots: frozenset[int]) -> Iterator[HeldFrame]:
        """Yield the frames of these slots that both must hold. Raises CorruptionError."""
        for file in self._files_of(hour):
            if not file.name.is_hour and file.name.number not in slots:
                continue
            for frame in self._frames_in(file):
                if frame.due_ms // SLOT_MS in slots:
                    yield frame

    def kills(self) -> Iterator[tuple[Rank, int]]:
        """Yield the kills that both must know, by rank, with the offset of the cancel marker."""
        for run in self._wheel.catalogue.lines(KILLS, KILLS):
            for key, value in run:
                rank, marker_offset = rank_of(key), kill_of(value).marker_offset
                if self._cut.holds_kill(rank, marker_offset):
                    yield rank, marker_offset

    def _frames_in(self, file: ListedFile) -> Iterator[HeldFrame]:
        """Yield the frames of a file that both must hold. Read and verify the whole file."""
        name, info, start = file
        layout, disk = self._wheel.layout, self._wheel.disk
        path = layout.segment_file(name)
        if not Path(path).exists():
            raise self._damaged(f"{path} is missing")
        position, count, crcs = start, 0, 0
        wanted_bytes = SCAN_BYTES
        try:
            with reading(disk, path) as opened:
                while position < info.bytes:
                    size = min(wanted_bytes, info.bytes - position)
                    data = disk.pread(opened, size, position)
                    if len(data) < size:
                        raise BrokenFrameError(position, size, "is cut off")
                    used = 0
                    for due_ms, partition, offset, lane, kind, _, body, used, crc in walk(
                        data, position
                    ):
                        count += 1
                        crcs += crc
                        if not name.holds(due_ms // SLOT_MS):
                            raise _broken(position, body, used, "belongs elsewhere")
                        if self._cut.holds(kind, lane, due_ms, partition, offset):
                            if kind == _CANCEL_MARKER:
                                try:
                                    crc = self._cut.cancel_marker_crc(
                                        due_ms, read_body(data[body:used])
                                    )
                                except (ValueError, TypeError) as error:
                                    raise _broken(position, body, used, "is no mark") from error
                            yield HeldFrame(kind, partition, offset, due_ms, crc)
                    if used == 0 and position + size == info.bytes:
                        raise BrokenFrameError(position, info.bytes - position, "ends too early")
                    self._tell(used)
                    position += used
                    wanted_bytes = SCAN_BYTES if used else 2 * wanted_bytes
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

    def _damaged(self, what: str) -> CorruptionError:
        root = self._wheel.layout.root
        return CorruptionError(
            what, remedy=f"a damaged wheel cannot be compared: run delayd wheel verify {root}"
        )


def _broken(position: int, body: int, end: int, why: str) -> BrokenFrameError:
    return BrokenFrameError(position + body - HEADER_BYTES, end - body + HEADER_BYTES, why)


def _sum(digest: Digest, frames: int, crcs: int) -> Digest:
    return Digest(digest.frames + frames, (digest.crcs + crcs) % DIGEST_MODULO)
