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

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from delayd.commands.examine.findings import Damage, Findings
from delayd.commands.examine.patching import Patch
from delayd.commands.examine.replaying import Log, replay
from delayd.commands.examine.verifying import verify
from delayd.errors import ConfigError, CorruptionError, DiskError
from delayd.wheel import Entry, Frame, FrameKind, Progress, SlotInfo
from delayd.wheel.catalogue import Catalogue, CatalogueBatch, HourLine, SlotLine, Totals
from delayd.wheel.checking import WholeFrame, check_segment
from delayd.wheel.disk import SystemDisk
from delayd.wheel.layout import FORMAT_VERSION, Layout, SegmentName, hour_of
from delayd.wheel.scratch import remove_scratch
from delayd.wheel.stopped import format_in, locked, reading
from replication.rank import slot_of
from replication.record import decode as decode_frontier

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


class _Work:
    """What is repaired in one directory."""

    def __init__(self, layout: Layout, catalogue: Catalogue, outcome: Repair) -> None:
        self._layout = layout
        self._disk = SystemDisk()
        self._catalogue = catalogue
        self._outcome = outcome
        self.patches: dict[_Key, Patch] = {}

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
        self.patches[is_hour, number] = Patch(self._disk, self._layout, name, line.info, start)

    def _line(self, is_hour: bool, number: int) -> HourLine | SlotLine | None:
        find = self._catalogue.hour_line if is_hour else self._catalogue.slot_line
        return find(number)

    def _look_elsewhere(self, is_hour: bool, patch: Patch) -> None:
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

    def _note_sources(self, patch: Patch, name: SegmentName, info: SlotInfo, start: int) -> None:
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

    def _salvage(self, patch: Patch) -> None:
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
        good: dict[_Key, Patch] = {}
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
        self, good: dict[_Key, Patch], from_offsets: tuple[int, ...]
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
