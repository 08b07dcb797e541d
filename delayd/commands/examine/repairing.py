"""Damaged files of a stopped node's wheel, written once more from the buffer.

    1. verify: which slots and hours are damaged?
    2. what is whole of a damaged file goes to a new one
    3. replay the buffer: the other frames of that slot or hour, as ingest made them
    4. count, bytes and digest must be those of the catalogue's line, or the old file is left alone.
       Where the buffer has lost its beginning, so that ingest would decide otherwise about a few
       ids today, those few are taken that fit
    5. the new file, of the next generation, is synced; one batch of LevelDB names it in place of
       the old one, with the new places of its pending replies; the old file goes

A crash before the batch leaves the old file, one after it the new file: recovery removes the other.
The catalogue itself cannot be repaired: without it nobody knows what there should be.
Source: docs/design/storage.md, "Repair".
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from delayd.commands.examine.findings import Damage, Findings
from delayd.commands.examine.replaying import Log, replay
from delayd.commands.examine.sources import Sources
from delayd.commands.examine.verifying import verify
from delayd.errors import ConfigError, CorruptionError, DiskError
from delayd.wheel import Entry, Frame, FrameKind, Progress, SlotInfo
from delayd.wheel.catalogue import Catalogue, CatalogueBatch, HourLine, SlotLine, Totals
from delayd.wheel.checking import WholeFrame, check_segment
from delayd.wheel.disk import OpenFile, SystemDisk
from delayd.wheel.frame import encode
from delayd.wheel.hours import HORIZON_S
from delayd.wheel.layout import FORMAT_VERSION, Layout, SegmentName, hour_of, parse_segment_file
from delayd.wheel.scratch import remove_scratch
from delayd.wheel.segment import DIGEST_MODULO
from delayd.wheel.stopped import format_in, locked, reading
from replication.rank import SLOT_MS, slot_of
from replication.record import decode as decode_frontier

CANDIDATES_MAX = 64
CHOICES_MAX = 20_000
"""Ways to choose among frames of the buffer that are tried: bytes and a digest of 32 bits must fit
by chance before a wrong choice is made, one in 200,000 at worst."""
WRITE_BYTES = 1024 * 1024
"""Frames of a new file that wait in memory."""

Tell = Callable[[str, int, int], None]
"""Is told what is done, how much of it is, and of how much."""
_Key = tuple[bool, int]
"""Is it an hour, and its number."""


@dataclass(slots=True)
class Repair:
    """What came of it."""

    findings: Findings
    """As they were."""
    repaired: list[SegmentName] = field(default_factory=list)
    """Files that were written once more: of the new generation."""
    frames: int = 0
    """In them."""
    from_buffer: int = 0
    """Of `frames`, those that were read from the buffer."""
    failed: list[str] = field(default_factory=list)
    """What could not be repaired, and why."""

    @property
    def is_whole(self) -> bool:
        """Is nothing damaged any more?"""
        return not self.failed


def repair(directory: Path, log: Log, tell: Tell) -> Repair:
    """Repair what can be repaired in this data directory. Nothing is written if all is whole.

    Raises ConfigError if it is of another cluster, DiskError if a node runs on it, if it is of an
    older format or if a file cannot be written, and what `replay` raises. Damage that stays is not
    raised.
    """
    _prepare(directory)
    findings, progress = verify(directory, lambda done, total: tell("verifying", done, total))
    outcome = Repair(findings)
    if findings.is_whole:
        return outcome
    if progress is None or not findings.is_complete:
        outcome.failed += [damage.why for damage in findings.damage]
        return outcome
    _refuse_other_cluster(findings.directory, progress, log)
    layout = Layout(findings.directory)
    with closing(Catalogue(layout.catalogue, create=False)) as catalogue:
        totals = catalogue.totals()
        if totals is None:
            raise _too_old(layout)  # A node took it over, and ended before its first checkpoint.
        work = _Work(layout, catalogue, outcome)
        work.plan(findings.damage)
        work.salvage()
        try:
            if work.patches:
                frames = replay(
                    log,
                    progress.offsets,
                    Path(layout.scratch),
                    lambda done, total: tell("reading", done, total),
                )
                work.fill(frames)
                work.finish(progress, totals)
        finally:
            work.discard()
            remove_scratch(layout)
    if findings.damage_count > len(findings.damage):
        outcome.failed.append("there was more damage than is listed at once: run it again")
    return outcome


def _prepare(directory: Path) -> None:
    """Remove what a killed repair has left, and see that there is something to repair."""
    with locked(directory) as layout:
        remove_scratch(layout)
        with suppress(CorruptionError):  # It will be found, and told with all other damage.
            version, _ = format_in(layout)
            if version not in (None, FORMAT_VERSION):
                raise _too_old(layout)


def _too_old(layout: Layout) -> DiskError:
    return DiskError(
        f"{layout.root} is of an older wheel format, which cannot be repaired",
        remedy="if `delayd wheel verify` finds it whole, start the node, which takes it over; "
        "otherwise empty the directory, and the wheel is rebuilt from the buffer",
    )


def _refuse_other_cluster(directory: str, progress: Progress, log: Log) -> None:
    settings = log.settings
    if len(progress.offsets) != settings.partitions:
        raise ConfigError(
            f"{directory} belongs to a buffer of {len(progress.offsets)} partitions, not "
            f"{settings.partitions}",
            remedy="take the configuration of the node whose directory it is",
        )
    if not progress.frontier:
        return
    known = decode_frontier(progress.frontier).settings
    if (known.cluster, known.buffer) != (settings.cluster, settings.buffer):
        raise ConfigError(
            f"{directory} belongs to the cluster {known.cluster!r} with buffer "
            f"{known.buffer.name} ({known.buffer.topic_id}), not to this one",
            remedy="take the configuration of the node whose directory it is",
        )


class _Sums(NamedTuple):
    """What a line says of frames."""

    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which nothing needs
    bytes: int = 0
    digest: int = 0

    def with_(self, frame: WholeFrame) -> "_Sums":
        """And of one more."""
        digest = (self.digest + frame.crc) % DIGEST_MODULO
        return _Sums(self.count + 1, self.bytes + len(frame.data), digest)


def _that_fit(
    candidates: list[WholeFrame], salvaged: _Sums, wanted: _Sums
) -> tuple[WholeFrame, ...] | None:
    """Those of the candidates that, with what is salvaged, are what is wanted. None if that would
    be a guess: there are too many ways to choose."""
    missing = wanted.count - salvaged.count
    if len(candidates) > CANDIDATES_MAX or not 0 <= missing <= len(candidates):
        return None
    if math.comb(len(candidates), missing) > CHOICES_MAX:
        return None
    for chosen in combinations(candidates, missing):
        if reduce(_Sums.with_, chosen, salvaged) == wanted:
            return chosen
    return None


class _Patch:
    """The new file of one segment, being written."""

    def __init__(
        self, disk: SystemDisk, layout: Layout, old: SegmentName, info: SlotInfo, start: int
    ) -> None:
        self.old = old
        self.info = info
        self.start = start
        self.name = old._replace(generation=_next_generation(disk, layout, old))
        self.path = layout.segment_file(self.name)
        disk.make_folder(layout.hour_folder(old.hour))
        self._disk = disk
        # Not kept open: there may be more than a process may have open.
        disk.close(disk.open(self.path, create=True))
        self._tail = bytearray()
        self._sums = _Sums()
        self._salvaged_sources = Sources()
        self._salvaged = _Sums()
        self._highest = [-1] * len(info.highest_offsets)
        self._salvaged_highest = self._highest
        self._candidates: list[WholeFrame] = []
        """The first frames from the buffer."""
        self.elsewhere = Sources()
        """Frames that lie in other files of the same hour, whole."""
        self.pending_replies: dict[tuple[int, int], tuple[int, int]] = {}
        """Place and length of pending replies, by partition and offset."""

    def add(self, frame: Frame) -> None:
        """A frame from the buffer."""
        data, crc = encode(frame)
        due_ms, partition, offset, _, kind, _, _ = frame
        made = WholeFrame(partition, offset, due_ms, kind, crc, data)
        # The log has each source once.
        if made in self._salvaged_sources or made in self.elsewhere:
            return
        if not self._was_near(frame):
            self._put(made)
        if len(self._candidates) <= CANDIDATES_MAX:
            self._candidates.append(made)

    def _was_near(self, frame: Frame) -> bool:
        # It went to its slot then, which may be forgotten. A batch goes by the append time of its
        # last record: another one of it may have got into the hour's file and be a candidate only.
        near = hour_of(frame.append_ms // SLOT_MS + HORIZON_S)
        return self.old.is_hour and near >= self.old.number

    def salvage(self, frame: WholeFrame) -> None:
        """A whole frame of the damaged file; before those of the buffer."""
        if frame not in self.elsewhere and self._salvaged_sources.add(frame):
            self._put(frame)
            self._salvaged, self._salvaged_highest = self._sums, list(self._highest)

    @property
    def count(self) -> int:
        """Frames in the new file."""
        return self._sums.count

    @property
    def from_buffer(self) -> int:
        """Of those, the ones that were not whole in the damaged file."""
        return self._sums.count - self._salvaged.count

    def _put(self, frame: WholeFrame) -> None:
        if frame.kind != FrameKind.MESSAGE:
            self.pending_replies[frame.partition, frame.offset] = (
                self._sums.bytes,
                len(frame.data),
            )
        self._tail += frame.data
        self._highest[frame.partition] = max(self._highest[frame.partition], frame.offset)
        self._sums = self._sums.with_(frame)
        if len(self._tail) >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        with self._opened() as file:
            self._disk.append(file, self._tail)
        self._tail = bytearray()

    def problem(self) -> str | None:
        """Why it is not what the catalogue tells of; None if it is, or has been made so."""
        info = self.info
        wanted = _Sums(info.count, info.bytes - self.start, info.digest)
        if self._sums == wanted:
            return None
        few = _that_fit(self._candidates, self._salvaged, wanted)
        if few is not None:
            self._write()
            self._disk.truncate(self.path, self._salvaged.bytes)
            self._sums, self._highest = self._salvaged, list(self._salvaged_highest)
            for frame in few:
                self._put(frame)
            return None
        told = f"{self.count} frames, which are not the {self.info.count} of its line"
        return f"{self.old}: the buffer and what is whole of the file give {told}"

    def sync(self) -> None:
        """All of it is on the disk afterwards."""
        self._write()
        with self._opened() as file:
            self._disk.fdatasync(file)

    def line_info(self) -> SlotInfo:
        """Of the new file: what was split of an hour counts no more for its highest offsets."""
        return SlotInfo(*self._sums, tuple(self._highest))

    @contextmanager
    def _opened(self) -> Iterator[OpenFile]:
        file = self._disk.open(self.path, create=False)
        try:
            yield file
        finally:
            self._disk.close(file)


class _Work:
    """What is repaired in one directory."""

    def __init__(self, layout: Layout, catalogue: Catalogue, outcome: Repair) -> None:
        self._layout = layout
        self._disk = SystemDisk()
        self._catalogue = catalogue
        self._outcome = outcome
        self.patches: dict[_Key, _Patch] = {}

    def plan(self, damage: Iterable[Damage]) -> None:
        """Decide what is written once more."""
        for each in damage:
            key = (True, each.hour) if each.hour is not None else (False, each.slot)
            if key[1] is None or each.file == "catalogue":
                self._outcome.failed.append(f"{each.file}: {each.why}")
            elif key not in self.patches:
                self._add(key[0], key[1], each)
        for (is_hour, _), patch in self.patches.items():
            self._look_elsewhere(is_hour, patch)

    def _add(self, is_hour: bool, number: int, damage: Damage) -> None:
        line = self._line(is_hour, number)
        if line is None:
            self._outcome.failed.append(f"{damage.file}: {damage.why}")
            return
        name = SegmentName(is_hour, number, line.generation)
        start = line.start if isinstance(line, HourLine) else 0
        self.patches[is_hour, number] = _Patch(self._disk, self._layout, name, line.info, start)

    def _line(self, is_hour: bool, number: int) -> HourLine | SlotLine | None:
        find = self._catalogue.hour_line if is_hour else self._catalogue.slot_line
        return find(number)

    def _look_elsewhere(self, is_hour: bool, patch: _Patch) -> None:
        """While an hour is split its frames are in its file or in its slots."""
        if not is_hour:
            line = self._catalogue.hour_line(patch.old.hour)
            if line is not None:
                hour = SegmentName(True, patch.old.hour, line.generation)
                self._note_sources(patch, hour, line.info, line.start)
            return
        for slot, slot_line in self._catalogue.slot_lines():
            if hour_of(slot) == patch.old.number:
                name = SegmentName(False, slot, slot_line.generation)
                self._note_sources(patch, name, slot_line.info, 0)

    def _note_sources(self, patch: _Patch, name: SegmentName, info: SlotInfo, start: int) -> None:
        def note(frame: WholeFrame) -> None:
            if patch.old.holds(slot_of(frame.due_ms)):
                patch.elsewhere.add(frame)

        try:
            with reading(self._disk, self._layout.segment_file(name)) as file:
                check_segment(self._disk, file, name, info, start, note)
        except DiskError:
            return  # It is missing: a patch of its own is made of it.

    def fill(self, frames: Iterable[Frame]) -> None:
        """Take in what belongs there."""
        for frame in frames:
            slot = slot_of(frame.due_ms)
            for key in ((False, slot), (True, hour_of(slot))):
                patch = self.patches.get(key)
                # What is no message never was in an hour's file.
                if patch is not None and not (key[0] and frame.kind != FrameKind.MESSAGE):
                    patch.add(frame)

    def salvage(self) -> None:
        """Take in what is whole of the damaged files."""
        for patch in self.patches.values():
            self._salvage(patch)

    def _salvage(self, patch: _Patch) -> None:
        try:
            with reading(self._disk, self._layout.segment_file(patch.old)) as file:
                check_segment(
                    self._disk,
                    file,
                    patch.old,
                    patch.info,
                    patch.start,
                    patch.salvage,
                )
        except DiskError:
            return  # There is no such file: nothing can be whole of it.

    def finish(self, progress: Progress, totals: Totals) -> None:
        """Put the new files in place of the old ones, where they are what they should be."""
        good: dict[_Key, _Patch] = {}
        for key, patch in self.patches.items():
            problem = patch.problem()
            if problem is None:
                patch.sync()
                good[key] = patch
            else:
                self._outcome.failed.append(problem)
        if not good:
            return
        for hour in {patch.name.hour for patch in good.values()}:
            self._disk.sync_folder(self._layout.hour_folder(hour))
        self._disk.sync_folder(self._layout.slots)
        nothing = (0,) * len(progress.offsets)
        self._catalogue.write(
            CatalogueBatch(
                progress=progress,
                totals=totals,
                slots={
                    number: SlotLine(patch.name.generation, patch.line_info())
                    for (is_hour, number), patch in good.items()
                    if not is_hour
                },
                hours={
                    number: HourLine(patch.name.generation, 0, patch.line_info())
                    for (is_hour, number), patch in good.items()
                    if is_hour
                },
                dropped=(),
                pending_replies=tuple(self._moved_replies(good, nothing)),
                pending_replies_from=nothing,
                notes={},
            )
        )
        for key, patch in good.items():
            del self.patches[key]
            old = self._layout.segment_file(patch.old)
            if Path(old).exists():
                self._disk.unlink(old)
            self._outcome.repaired.append(patch.name)
            self._outcome.frames += patch.count
            self._outcome.from_buffer += patch.from_buffer

    def _moved_replies(
        self, good: dict[_Key, _Patch], from_offsets: tuple[int, ...]
    ) -> Iterable[Entry]:
        for entry in self._catalogue.pending_replies(from_offsets):
            patch = good.get((False, slot_of(entry.due_ms)))
            place = (
                None
                if patch is None
                else patch.pending_replies.get((entry.partition, entry.offset))
            )
            if place is not None:
                yield entry._replace(position=place[0], length=place[1])

    def discard(self) -> None:
        """Remove new files that were not put in place."""
        for patch in self.patches.values():
            self._disk.unlink(patch.path)
        self.patches = {}


def _next_generation(disk: SystemDisk, layout: Layout, name: SegmentName) -> int:
    """Of a file that no file of the folder has the name of."""
    folder = layout.hour_folder(name.hour)
    highest = name.generation
    if Path(folder).is_dir():
        for item in disk.list_folder(folder):
            found = parse_segment_file(item.name, name.hour)
            if found is not None and found[:2] == name[:2]:
                highest = max(highest, found.generation)
    return highest + 1
