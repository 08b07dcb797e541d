"""Repair: damaged files of a stopped node's wheel are written again from the buffer.

    1. verify the wheel: find the damaged slots and hours
    2. copy the whole frames of a damaged file to a new one (`patching.py`)
    3. replay the buffer, which gives the other frames as ingest made them
    4. compare count, bytes and digest with the catalogue's line, and leave the old file alone if
       they differ. If the buffer has lost its beginning, ingest may decide differently about a few
       ids today: then take the few frames that fit
    5. sync the new file, which has the next generation; name it in place of the old one, and the
       new places of its pending replies, in one batch of LevelDB; remove the old file

A crash before the batch leaves the old file, a crash after it the new file; recovery removes the
other one. The catalogue itself cannot be repaired: nothing else lists the content of the wheel.
Source: docs/design/storage.md, "Repair".
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from delayd.bus import Bus
from delayd.bus.reading import read_between
from delayd.commands.examine.patching import Patch
from delayd.commands.examine.verifying import Damage, Findings, verify
from delayd.errors import ConfigError, CorruptionError, DiskError
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.node.replica.switching import behind
from delayd.request import Request, RequestLimits, parse
from delayd.runtime.clock import Clock
from delayd.wheel import Entry, Frame, FrameKind, Progress, SegmentLine
from delayd.wheel.catalogue import Catalogue, CatalogueBatch, Totals
from delayd.wheel.checking import Keep, WholeFrame, check_segment
from delayd.wheel.disk import SystemDisk
from delayd.wheel.layout import FORMAT_VERSION, Layout, SegmentName, hour_of
from delayd.wheel.recovery import remove_scratch
from delayd.wheel.stopped import format_in, locked, reading
from delayd.wheel.storage import Wheel
from replication.ingest import LogState
from replication.rank import slot_of
from replication.record import decode as decode_frontier
from replication.rules import Barrier, Rules
from replication.settings import Settings

RECORDS_MAX: Final = 2_000
CHECKPOINT_RECORDS: Final = 50_000
"""Records between checkpoints of the scratch wheel, whose memory of ids grows meanwhile."""
Tell = Callable[[str, int, int], None]
"""Gets the stage, how much is done, and the total."""
_Key = tuple[bool, int]
"""Is it an hour, and its number."""


class Log(NamedTuple):
    """The buffer of a cluster, with the settings and the key to read it."""

    bus: Bus
    settings: Settings
    proof_key: bytes
    clock: Clock
    timeout_ms: int
    """Longest time without progress."""


@dataclass(slots=True)
class Repair:
    """The result of a repair."""

    findings: Findings
    """The findings before the repair."""
    repaired: list[SegmentName] = field(default_factory=list)
    """Files that were written again, with their new generation."""
    frames: int = 0
    """Frames in these files."""
    from_buffer: int = 0
    """Frames of `frames` that were read from the buffer."""
    failed: list[str] = field(default_factory=list)
    """Damage that could not be repaired, and why."""

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is damaged any more."""
        return not self.failed


def repair(directory: Path, log: Log, tell: Tell) -> Repair:
    """Repair this data directory as far as possible. Write nothing if it is whole.

    Raises ConfigError if it is of another cluster, DiskError if a node runs on it, if it is of an
    older format or if a file cannot be written, and the errors of `replay`. Damage that stays is
    returned, not raised.
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
                    progress.rules,
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
    """Remove the files that a killed repair has left, and refuse an older format."""
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
    """The repair of one directory."""

    def __init__(self, layout: Layout, catalogue: Catalogue, outcome: Repair) -> None:
        self._layout = layout
        self._disk = SystemDisk()
        self._catalogue = catalogue
        self._outcome = outcome
        self.patches: dict[_Key, Patch] = {}

    def plan(self, damage: Iterable[Damage]) -> None:
        """Begin a new file for each damaged slot and hour."""
        for each in damage:
            key = (True, each.hour) if each.hour is not None else (False, each.slot)
            if key[1] is None or each.file == "catalogue":
                self._outcome.failed.append(f"{each.file}: {each.why}")
            elif key not in self.patches:
                self._add(key[0], key[1], each)
        for patch in self.patches.values():
            self._look_elsewhere(patch)

    def _add(self, is_hour: bool, number: int, damage: Damage) -> None:
        line = self._catalogue.segment_line(is_hour, number)
        if line is None:
            self._outcome.failed.append(f"{damage.file}: {damage.why}")
        else:
            self.patches[is_hour, number] = Patch(self._disk, self._layout, line)

    def _look_elsewhere(self, patch: Patch) -> None:
        """Note whole frames in other files: a split leaves them in the hour file or in slots."""

        def note(frame: WholeFrame) -> None:
            if patch.old.name.holds(slot_of(frame.due_ms)):
                patch.elsewhere.add(frame)

        name = patch.old.name
        for line in self._catalogue.segment_lines(not name.is_hour):
            if line.name.hour == name.hour:
                self._check(line, note)

    def _check(self, line: SegmentLine, keep: Keep) -> None:
        """Hand the whole frames of a file to `keep`; none if it is missing."""
        with (
            suppress(DiskError),
            reading(self._disk, self._layout.segment_file(line.name)) as file,
        ):
            check_segment(self._disk, file, line, keep)

    def fill(self, frames: Iterable[Frame]) -> None:
        """Add the frames from the buffer to the new files where they belong."""
        for frame in frames:
            slot = slot_of(frame.due_ms)
            for key in ((False, slot), (True, hour_of(slot))):
                patch = self.patches.get(key)
                # What is no message never was in an hour's file.
                if patch is not None and not (key[0] and frame.kind != FrameKind.MESSAGE):
                    patch.add(frame)

    def salvage(self) -> None:
        """Add the whole frames of the damaged files to the new ones."""
        for patch in self.patches.values():
            self._check(patch.old, patch.salvage)

    def finish(self, progress: Progress, totals: Totals) -> None:
        """Put the new files that match the catalogue in place of the old ones."""
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
                lines=tuple(patch.line() for patch in good.values()),
                dropped=(),
                pending_replies=tuple(self._moved_replies(good, nothing)),
                pending_replies_from=nothing,
                notes={},
            )
        )
        for key, patch in good.items():
            del self.patches[key]
            old = self._layout.segment_file(patch.old.name)
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


def replay(
    log: Log,
    below: tuple[int, ...],
    barriers: tuple[Barrier, ...],
    scratch: Path,
    tell: Callable[[int, int], None],
) -> Iterator[Frame]:
    """Yield the frames of all records below these offsets that are still in the log, in log order.

    The decisions of ingest depend on the log alone, so they are the same again; `barriers` are
    those that the wheel knows. A scratch wheel
    remembers ids meanwhile; its folder `scratch` is created, and stays. `tell` gets the records
    read, and the approximate total. Raises KafkaUnreachableError if there is no progress,
    ConsumerError if the log is trimmed meanwhile, DiskError.
    """
    settings = log.settings
    rules = Rules(settings.rules_version, barriers)
    with closing(log.bus.cluster()) as kafka:
        starts = kafka.start_offsets(settings.buffer.name, log.timeout_ms)
    starts = {partition: starts.get(partition, 0) for partition in range(settings.partitions)}
    ends = dict(enumerate(below))
    total = sum(max(0, ends[p] - start) for p, start in starts.items())
    limits = RequestLimits.of(settings, log.proof_key, rules)
    states = [LogState(starts[p], 0) for p in range(settings.partitions)]
    read = 0
    with closing(Wheel.open(scratch, partitions=settings.partitions)) as memory:
        for records in read_between(
            log.bus,
            settings.buffer.name,
            starts,
            ends,
            log.clock,
            records_max=RECORDS_MAX,
            timeout_ms=log.timeout_ms,
        ):
            batch = IngestBatch(memory.ids, settings, states, None, rules)
            for record in records:
                asked = parse(record, limits)
                batch.add(record, asked)
                if isinstance(asked, Request) and asked.gate is not None:
                    limits = behind(limits, record, asked)
            batch.apply()
            states = batch.states
            for frame in batch.frames:
                assert isinstance(frame, Frame), "nothing was packed"
                yield frame
            if read // CHECKPOINT_RECORDS != (read + len(records)) // CHECKPOINT_RECORDS:
                _checkpoint(memory, states)
            read += len(records)
            tell(read, total)


def _checkpoint(memory: Wheel, states: list[LogState]) -> None:
    offsets = tuple(state.next_offset for state in states)
    log_ms = tuple(state.log_ms for state in states)
    pending = memory.begin_checkpoint(Progress(offsets, (-1,) * len(states), log_ms, b""))
    pending.sync()
    memory.finish_checkpoint(pending)
