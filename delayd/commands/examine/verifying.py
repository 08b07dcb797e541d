"""Verification: every byte of a wheel is compared with its last checkpoint.

1. LevelDB's logs: a last record with a wrong length is damage, which LevelDB would drop silently.
2. All lines of the catalogue, checksums verified, up to the last one: a scan that does not see that
   one was cut short, which plyvel alone would not report. Their number must match the totals.
3. By hour: its file and the file of every slot must match their lines; files without a line.
4. Every pending reply: its frame must be where the catalogue says.

Bytes after the last checkpoint are no damage: recovery cuts them off, and ingest reads the records
again. A file without a line is of a slot that is newer than the checkpoint, of a split that the
checkpoint does not know, or of a forgotten slot. If it is none of these, and holds frames that the
checkpoint says were ingested, then its line is lost.

Source: docs/design/storage.md, "Recovery" and "What a crash leaves".
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from delayd.commands.examine.frontiers import frontier_if_known
from delayd.errors import CorruptionError, DiskError
from delayd.wheel import Entry, Progress, SegmentLine
from delayd.wheel.checking import check_segment
from delayd.wheel.decoding import decode_all
from delayd.wheel.frame import BrokenFrameError, walk
from delayd.wheel.layout import (
    HOUR_SLOTS,
    Layout,
    SegmentName,
    parse_hour,
    parse_segment_file,
)
from delayd.wheel.leveldb_log import torn_logs
from delayd.wheel.reader import SCAN_BYTES
from delayd.wheel.stopped import StoppedWheel, locked, open_stopped, reading
from replication.rank import slot_of

Tell = Callable[[int, int], None]
"""Gets the bytes read, and the total."""
DAMAGE_MAX = 1_000
"""Damaged ranges that are listed; further ones are counted."""
FOREIGN_MAX = 20
"""Names that are listed; further ones are counted."""


class Damage(NamedTuple):
    """Bytes that were not written so, or a missing file."""

    file: str
    """Path within the data directory."""
    why: str
    slot: int | None = None
    """None: of an hour's file, or of the wheel as a whole."""
    first_byte: int | None = None
    """None: of the file as a whole."""
    end_byte: int | None = None
    hour: int | None = None
    """Of an hour's file."""


@dataclass(slots=True)
class Findings:
    """The findings, which grow while a wheel is verified."""

    directory: str
    format: int | None = None
    """Format version of the directory."""
    partitions: int | None = None
    damage: list[Damage] = field(default_factory=list)
    damage_count: int = 0
    damaged_slots: int = 0
    frames_lost: int = 0
    """Frames that the catalogue counts and the files lack."""
    frames_suspect: int = 0
    """Whole frames in files that differ from the catalogue: they may be wrong ones."""
    is_complete: bool = False
    """Whether all of it was read. Without its catalogue a wheel cannot be."""
    slots: int = 0
    hours: int = 0
    """Hour files."""
    messages: int = 0
    pending_replies: int = 0
    slot_bytes: int = 0
    lines: Counter[bytes] = field(default_factory=Counter)
    """Lines of the catalogue, by kind."""
    behind_files: int = 0
    """Files with bytes after the last checkpoint."""
    behind_bytes: int = 0
    """Bytes after the last checkpoint: the next start cuts them off, and reads them again."""
    torn_log_bytes: int = 0
    """Bytes of LevelDB's logs that were being written when the node ended."""
    forgotten_files: int = 0
    """Files still to be removed, of slots that a checkpoint has forgotten or written again."""
    forgotten_bytes: int = 0
    foreign: list[str] = field(default_factory=list)
    """Foreign names, which are left alone."""
    foreign_count: int = 0

    @property
    def is_whole(self) -> bool:
        """Return whether everything is as the last checkpoint left it."""
        return self.is_complete and self.damage_count == 0

    def add(self, damage: Damage) -> None:
        """Note a damage."""
        self.damage_count += 1
        if len(self.damage) < DAMAGE_MAX:
            self.damage.append(damage)

    def add_foreign(self, name: str) -> None:
        """Note a foreign name."""
        self.foreign_count += 1
        if len(self.foreign) < FOREIGN_MAX:
            self.foreign.append(name)


def verify(directory: Path, tell: Tell) -> tuple[Findings, Progress | None]:
    """Read all of the wheel in this data directory; return the findings and its last checkpoint.

    Raises ConfigError if there is no wheel, DiskError if a node runs on it, if it is of another
    format, or if it is unreadable. Damage is not raised.
    """
    with locked(directory) as layout:
        findings = Findings(layout.root)
        progress = None
        try:
            _check_logs(layout, findings)
            with open_stopped(layout) as wheel:
                progress = wheel.progress
                findings.format, findings.partitions = wheel.format, wheel.partitions
                _Verification(wheel, findings, tell).run()
                findings.is_complete = True
        except CorruptionError as error:
            file = layout.format if layout.format in error.message else layout.catalogue
            findings.add(Damage(_within(layout, file), error.message))
        return findings, progress


def _check_logs(layout: Layout, findings: Findings) -> None:
    for file, end in torn_logs(layout.catalogue):
        if end.is_damaged:
            name = _within(layout, f"{layout.catalogue}/{file}")
            why = "are a record of LevelDB with a wrong length: what it says would be dropped"
            findings.add(Damage(name, why, None, end.first_byte, end.end_byte))
        else:
            findings.torn_log_bytes += end.end_byte - end.first_byte


class _Verification:
    """One pass over an open wheel."""

    def __init__(self, wheel: StoppedWheel, findings: Findings, tell: Tell) -> None:
        self._wheel = wheel
        self._layout = wheel.layout
        self._disk = wheel.disk
        self._findings = findings
        self._tell = tell
        self._forgotten_below = _forgotten_below(wheel.progress)
        self._with_lines: set[tuple[bool, int]] = set()
        """Hours with lines of slots (False), and hours with a line of their own (True)."""

    def run(self) -> None:
        """Steps 2 to 4."""
        catalogue = self._wheel.catalogue
        findings = self._findings
        findings.lines = catalogue.lines_by_kind()
        total_bytes = self._count_lines()
        for hour, lines in self._by_hour():
            self._check_hour(hour, lines)
            self._tell(findings.slot_bytes, total_bytes)
        damaged = {damage.slot for damage in findings.damage}
        for entry in catalogue.pending_reply_lines():
            if slot_of(entry.due_ms) not in damaged:
                self._check_pending_reply(entry)

    def _count_lines(self) -> int:
        """Return the bytes of all lines."""
        size = 0
        try:
            for name, info, _ in self._wheel.catalogue.counted_lines_by_hour():
                size += info.bytes
                self._with_lines.add((name.is_hour, name.hour))
        except CorruptionError as error:
            self._findings.add(Damage("catalogue", error.message))
        return size

    def _by_hour(self) -> Iterator[tuple[int, list[SegmentLine]]]:
        """Yield each hour with a folder or a line, and its lines, 3,601 at most."""
        folders = set(self._hour_folders())
        lines = self._wheel.catalogue.lines_by_hour()
        for hour, group in groupby(lines, key=lambda line: line.name.hour):
            for passed in sorted(folder for folder in folders if folder < hour):
                folders.discard(passed)
                yield passed, []
            folders.discard(hour)
            yield hour, list(group)
        for hour in sorted(folders):
            yield hour, []

    def _hour_folders(self) -> list[int]:
        hours = []
        if Path(self._layout.slots).is_dir():
            for item in self._disk.list_folder(self._layout.slots):
                hour = parse_hour(item.name)
                if hour is not None and item.is_folder:
                    hours.append(hour)
                else:
                    self._findings.add_foreign(f"slots/{item.name}")
        return hours

    def _check_hour(self, hour: int, lines: list[SegmentLine]) -> None:
        files = self._files_of(hour)
        for line in sorted(lines):
            self._check_segment(line, files.pop(line.name, None))
        generations = {line.name[:2]: line.name.generation for line in lines}
        for name, size in sorted(files.items()):
            self._check_left_over(name, size, generations.get(name[:2], -1))

    def _files_of(self, hour: int) -> dict[SegmentName, int]:
        folder = self._layout.hour_folder(hour)
        files: dict[SegmentName, int] = {}
        if Path(folder).is_dir():
            for item in self._disk.list_folder(folder):
                name = parse_segment_file(item.name, hour)
                if name is not None and not item.is_folder:
                    files[name] = item.bytes
                else:
                    self._findings.add_foreign(_within(self._layout, f"{folder}/{item.name}"))
        return files

    def _check_segment(self, line: SegmentLine, size: int | None) -> None:
        findings = self._findings
        name, info, start = line
        path = self._layout.segment_file(name)
        findings.slots += not name.is_hour
        findings.hours += name.is_hour
        findings.slot_bytes += info.bytes
        try:
            if size is None:
                raise DiskError("are missing: there is no such file")
            with reading(self._disk, path) as file:
                found = check_segment(self._disk, file, line)
        except DiskError as error:
            self._add(name, error.message, start, info.bytes)
            findings.frames_lost += info.count
            findings.damaged_slots += 1
            return
        findings.messages += found.messages
        findings.pending_replies += found.pending_replies
        findings.frames_lost += found.lost
        findings.frames_suspect += found.suspect
        findings.damaged_slots += bool(found.spans)
        for span in found.spans:
            self._add(name, span.why, span.first_byte, span.end_byte)
        if size > info.bytes:
            findings.behind_files += 1
            findings.behind_bytes += size - info.bytes

    def _add(self, name: SegmentName, why: str, first_byte: int, end_byte: int) -> None:
        slot, hour = (None, name.number) if name.is_hour else (name.number, None)
        file = _within(self._layout, self._layout.segment_file(name))
        self._findings.add(Damage(file, why, slot, first_byte, end_byte, hour))

    def _check_left_over(self, name: SegmentName, size: int, newest: int) -> None:
        """`newest`: the generation in the line of this segment; -1 if it has none."""
        findings = self._findings
        taken_in = self._count_taken_in(name)
        last = (name.number + 1) * HOUR_SLOTS - 1 if name.is_hour else name.number
        if last < self._forgotten_below or name.generation < newest:
            findings.forgotten_files += 1
            findings.forgotten_bytes += size
        elif taken_in and not self._is_of_a_split(name):
            why = "is not in the catalogue, though the checkpoint says that its frames were stored"
            self._add(name, why, 0, size)
            findings.frames_lost += taken_in
            findings.damaged_slots += 1
        else:
            findings.behind_files += 1
            findings.behind_bytes += size

    def _is_of_a_split(self, name: SegmentName) -> bool:
        """Return whether a split may have left its frames in another file, too."""
        return (not name.is_hour, name.hour) in self._with_lines

    def _count_taken_in(self, name: SegmentName) -> int:
        """Return how many frames at the beginning of a file the checkpoint says were ingested and
        has not forgotten."""
        progress = self._wheel.progress
        if progress is None:
            return 0
        offsets = progress.offsets
        count = position = 0
        with reading(self._disk, self._layout.segment_file(name)) as file:
            while data := self._disk.pread(file, SCAN_BYTES, position):
                whole_bytes = 0
                try:
                    for due_ms, partition, offset, _, _, _, _, end, _ in walk(data, position):
                        whole_bytes = end
                        slot = slot_of(due_ms)
                        if name.holds(slot) and partition < len(offsets):
                            is_forgotten = slot < self._forgotten_below
                            count += offset < offsets[partition] and not is_forgotten
                except BrokenFrameError:
                    break
                if whole_bytes == 0:
                    # What is behind a checkpoint may be anything; a frame this long is none.
                    break
                position += whole_bytes
        return count

    def _check_pending_reply(self, entry: Entry) -> None:
        slot = slot_of(entry.due_ms)
        line = self._wheel.catalogue.segment_line(False, slot)
        end = entry.position + entry.length
        if line is None or end > line.info.bytes:
            why = f"answer {entry.partition}/{entry.offset} waits, and no slot holds its frame"
            self._findings.add(Damage("catalogue", why, slot, entry.position, end))
            return
        path = self._layout.segment_file(line.name)
        with reading(self._disk, path) as file:
            data = self._disk.pread(file, entry.length, entry.position)
        try:
            decode_all([entry], lambda size, position: data)
        except BrokenFrameError:
            why = f"are not the frame of answer {entry.partition}/{entry.offset}, which waits"
            self._findings.add(Damage(_within(self._layout, path), why, slot, entry.position, end))


def _forgotten_below(progress: Progress | None) -> int:
    """Return the slot below which a checkpoint may have forgotten delivered messages."""
    frontier = None if progress is None else frontier_if_known(progress.forgotten)
    return 0 if frontier is None else slot_of(frontier.lowest_cursor.due_ms)


def _within(layout: Layout, path: str) -> str:
    return path.removeprefix(f"{layout.root}/")
