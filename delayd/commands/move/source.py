"""The pending messages in the wheel of a stopped node, in the order of their ranks.

Pending is what the wheel holds, is not in Done(K, O) of the cut, and no cancel marker that the
wheel holds has killed. That goes beyond an export at the cut: requests behind O are pending, too,
and cancels behind O count, because no step will come. A message that another one in the wheel
continues is over, too: the step that requeued it may be newer than the cut, if that is only what
the wheel knows.

Memory: a line for each pending message of the fullest hour, about 200 bytes, and another one for
each message of the wheel that waits for a retry or a turn.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from delayd.cluster.time_kind import refuse_other_time
from delayd.commands.examine.frontiers import record_of
from delayd.errors import ConfigError, CorruptionError
from delayd.request import source_of
from delayd.request.bodies import TOPIC, is_requeued, origin_of, reason_of
from delayd.wheel import FrameKind, Progress, SegmentLine
from delayd.wheel.disk import OpenFile
from delayd.wheel.frame import HEADER_BYTES, BrokenFrameError, read_body
from delayd.wheel.id_memory import STATES, held_of
from delayd.wheel.kills import KILLS, kill_of, rank_of
from delayd.wheel.layout import HOUR_SLOTS
from delayd.wheel.reader import FoundFrame, read_frames
from delayd.wheel.segment import DIGEST_MODULO
from delayd.wheel.stopped import StoppedWheel, reading
from replication.frontier import Frontier
from replication.rank import SLOT_MS, Rank
from replication.record import FrontierRecord

_MESSAGE = int(FrameKind.MESSAGE)
_REPLY = int(FrameKind.PENDING_REPLY)
LETTERS_MAX: Final = 10_000
_HOUR_MS = HOUR_SLOTS * SLOT_MS


class Message(NamedTuple):
    """A pending message."""

    rank: Rank
    crc: int
    """Of its frame: the same in every wheel of the cluster."""
    body: tuple[Any, ...]


class Stored(NamedTuple):
    """A frame that a frontier does not cover."""

    kind: int
    lane: int
    rank: Rank
    """Of a pending reply: its append time and place."""
    body: tuple[Any, ...]
    killed_by: int = -1
    """Offset of the cancel marker that killed the message; -1 if none did."""
    is_continued: bool = False


class Letter(NamedTuple):
    """A dead letter that the old cluster had still to write."""

    source: str
    """In the old cluster."""
    reason: str


class _Place(NamedTuple):
    """A pending message's rank, CRC, file among those of its hour, and the bytes of its body."""

    rank: Rank
    crc: int
    file: int
    position: int
    length: int


class Source:
    """One stopped wheel. It stays open meanwhile."""

    def __init__(self, wheel: StoppedWheel) -> None:
        """Raise ConfigError if the wheel knows no frontier: nobody can tell what is pending; and
        VirtualClusterError if its cluster's time is of another kind than this program's."""
        self._wheel = wheel
        if wheel.progress is None or not wheel.progress.frontier:
            raise ConfigError(
                f"{wheel.layout.root} knows no frontier: what is pending in it cannot be told",
                remedy="take the data_dir of a node that was ready once",
            )
        self.progress: Progress = wheel.progress
        self.known: FrontierRecord = record_of(wheel, wheel.progress.frontier)
        """The newest frontier that its checkpoint knows."""
        self.forgotten: FrontierRecord | None = None
        """The newest frontier by which anything was forgotten: the wheel holds all that it does not
        cover, with what has killed it. None: the wheel holds all that it ever took in."""
        if wheel.progress.forgotten:
            self.forgotten = record_of(wheel, wheel.progress.forgotten)
        refuse_other_time(self.known.settings)
        self.replies_open = 0
        """Pending replies behind the cut's O that the last walk has met: nobody writes them."""
        self.letters: list[Letter] = []
        """The dead letters among them, the first LETTERS_MAX."""
        self._newest: dict[tuple[str, int], int] | None = None
        """See `_continuations`."""

    @property
    def root(self) -> str:
        """Return the directory."""
        return self._wheel.layout.root

    @property
    def seen_ms(self) -> int:
        """Return a time at which the old cluster was alive for sure, by the brokers' clocks (Unix
        ms): the log time of the buffer, or the cursor."""
        cursor = self.known.frontier.highest_cursor  # exclusive
        return max(*self.progress.log_ms, cursor.due_ms - 1)

    @property
    def reached(self) -> tuple[int, ...]:
        """Return how far the buffer has been read, by partition."""
        return self.progress.reached or self.progress.offsets

    def messages(
        self, cut: Frontier, tell: Callable[[int, int], None] = lambda done, total: None
    ) -> Iterator[Message]:
        """Yield what is pending, by rank. `tell` gets the bytes read, and the total.

        Raises CorruptionError, at the end too: then what was yielded is not all.
        """
        catalogue = self._wheel.catalogue
        total = sum(info.bytes - start for _, info, start in catalogue.counted_lines_by_hour())
        self.replies_open = done = 0
        self.letters = []
        if self._newest is None:
            self._newest = self._continuations()
        kills = self._kills()
        killed = next(kills, None)
        lines = catalogue.counted_lines_by_hour()
        for hour, found in groupby(lines, key=lambda line: line.name.hour):
            dead: set[Rank] = set()
            while killed is not None and killed.due_ms < (hour + 1) * _HOUR_MS:
                dead.add(killed)
                killed = next(kills, None)
            files = list(found)
            yield from self._of_hour(files, cut, dead)
            done += sum(info.bytes - start for _, info, start in files)
            tell(done, total)

    def stored(
        self, known: Frontier, tell: Callable[[int, int], None] = lambda done, total: None
    ) -> Iterator[Stored]:
        """Yield all that is stored and that a frontier does not cover, killed or not, by hour.
        `tell` and errors as of `messages`."""
        catalogue = self._wheel.catalogue
        total = sum(info.bytes - start for _, info, start in catalogue.counted_lines_by_hour())
        done = 0
        if self._newest is None:
            self._newest = self._continuations()
        killed: dict[Rank, int] = {}
        for run in catalogue.lines(KILLS, KILLS):
            killed |= {rank_of(key): kill_of(value).marker_offset for key, value in run}
        for rank in self._held():
            killed.pop(rank, None)
        for line in catalogue.counted_lines_by_hour():
            path = self._wheel.layout.segment_file(line.name)
            self._require(path)
            with reading(self._wheel.disk, path) as file:
                for frame in self._frames(file, line):
                    rank = Rank(frame.due_ms, frame.partition, frame.offset)
                    is_message = frame.kind == _MESSAGE
                    if is_message and known.covers(frame.lane, rank):
                        continue
                    if not is_message and frame.offset < known.offsets[frame.partition]:
                        continue
                    body = read_body(frame.body)
                    yield Stored(
                        frame.kind,
                        frame.lane,
                        rank,
                        body,
                        killed.get(rank, -1),
                        is_message and self._is_continued(rank, body),
                    )
            done += line.info.bytes - line.start
            tell(done, total)

    def topics(self) -> set[str]:
        """Return the targets of all that is stored, delivered or not."""
        found: set[str] = set()
        for line in self._wheel.catalogue.counted_lines_by_hour():
            with reading(self._wheel.disk, self._wheel.layout.segment_file(line.name)) as file:
                for frame in self._frames(file, line):
                    if frame.kind == _MESSAGE:
                        found.add(read_body(frame.body)[TOPIC])
        return found

    def _continuations(self) -> dict[tuple[str, int], int]:
        """Return the offset of the last message that continues another one, by the source of the
        user's request and partition: a message and what continues it share both.

        Also if it was killed since, or is delivered: what it continues is over anyway.
        """
        found: dict[tuple[str, int], int] = {}
        for line in self._wheel.catalogue.counted_lines_by_hour():
            path = self._wheel.layout.segment_file(line.name)
            self._require(path)
            with reading(self._wheel.disk, path) as file:
                for frame in self._frames(file, line):
                    if frame.kind == _MESSAGE and is_requeued(body := read_body(frame.body)):
                        key = (origin_of(body, frame.partition, frame.offset), frame.partition)
                        found[key] = max(found.get(key, -1), frame.offset)
        return found

    def _is_continued(self, rank: Rank, body: tuple[Any, ...]) -> bool:
        if not self._newest:
            return False
        origin = origin_of(body, rank.partition, rank.offset)
        return self._newest.get((origin, rank.partition), -1) > rank.offset

    def _kills(self) -> Iterator[Rank]:
        """Yield the ranks of what was killed for good: what a reschedule holds goes on."""
        held = self._held()
        for run in self._wheel.catalogue.lines(KILLS, KILLS):
            yield from (rank for rank in (rank_of(key) for key, _ in run) if rank not in held)

    def _held(self) -> frozenset[Rank]:
        lines = self._wheel.catalogue.lines(STATES, STATES)
        return frozenset(rank for run in lines for each in run for rank in held_of(*each))

    def _of_hour(
        self, files: Sequence[SegmentLine], cut: Frontier, killed: set[Rank]
    ) -> Iterator[Message]:
        """Yield what is pending in an hour: its file and its slots hold parts of it."""
        disk, layout = self._wheel.disk, self._wheel.layout
        places: list[_Place] = []
        for number, line in enumerate(files):
            self._require(layout.segment_file(line.name))
            with reading(disk, layout.segment_file(line.name)) as file:
                places += self._pending(file, number, line, cut, killed)
        places.sort()
        with ExitStack() as stack:
            opened: dict[int, OpenFile] = {}
            for rank, crc, number, position, length in places:
                if number not in opened:
                    path = layout.segment_file(files[number].name)
                    opened[number] = stack.enter_context(reading(disk, path))
                body = read_body(disk.pread(opened[number], length, position))
                if not self._is_continued(rank, body):
                    yield Message(rank, crc, body)

    def _pending(
        self, file: OpenFile, number: int, line: SegmentLine, cut: Frontier, killed: set[Rank]
    ) -> Iterator[_Place]:
        """Yield the places of one file. Raise CorruptionError."""
        for frame in self._frames(file, line):
            rank = Rank(frame.due_ms, frame.partition, frame.offset)
            if frame.kind != _MESSAGE:
                if frame.offset >= cut.offsets[frame.partition]:
                    self._note_reply(frame)
            elif not cut.covers(frame.lane, rank) and rank not in killed:
                at = frame.position + HEADER_BYTES
                yield _Place(rank, frame.crc, number, at, len(frame.body))

    def _note_reply(self, frame: FoundFrame) -> None:
        self.replies_open += 1
        if frame.kind == _REPLY and len(self.letters) < LETTERS_MAX:
            dead = read_body(frame.body)[0]
            if dead is not None:
                source = source_of(frame.partition, frame.offset)
                self.letters.append(Letter(source, reason_of(dead)))

    def _frames(self, file: OpenFile, line: SegmentLine) -> Iterator[FoundFrame]:
        """Yield the frames of one file. Read and verify all of it. Raise CorruptionError."""
        name, info, start = line
        path = self._wheel.layout.segment_file(name)
        count = digest = 0
        try:
            pread = partial(self._wheel.disk.pread, file)
            for frame in read_frames(pread, start, info.bytes):
                count += 1
                digest += frame.crc
                yield frame
        except BrokenFrameError as error:
            raise self._damaged(
                f"{path}: the frame at bytes {error.position} to "
                f"{error.position + error.length} {error.why}"
            ) from error
        if count != info.count or (digest - info.digest) % DIGEST_MODULO != 0:
            raise self._damaged(
                f"{path}: bytes {start} to {info.bytes} hold {count} frames, which are not the "
                f"{info.count} of the catalogue's line"
            )

    def _require(self, path: str) -> None:
        if not Path(path).exists():
            raise self._damaged(f"{path} is missing")

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(
            what,
            remedy=f"a damaged wheel is not moved: run delayd wheel verify {self.root}, and take "
            "another node's wheel",
        )
