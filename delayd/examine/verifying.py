"""Every byte of a wheel against its last checkpoint.

1. LevelDB's logs: does one end in a record whose length is wrong? LevelDB would drop it silently.
2. All lines of the catalogue, checksums verified, up to the last one: whoever does not see that one
   was cut short, which plyvel alone would not report.
3. By hour: the file of every slot against its line; files without a line.
4. Every waiting answer: is its frame where the catalogue says?

What lies behind the last checkpoint is no damage: recovery cuts it off, and ingest reads it again.
A file without a line is of a slot that came after the checkpoint, or of one that was forgotten; if
it is neither, and holds what the checkpoint says it took in, then its line is lost.

Source: docs/design/storage.md, "Recovery" and "What a crash leaves".
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from delayd.errors import CorruptionError, DiskError
from delayd.examine.findings import Damage, Findings
from delayd.wheel import Entry, Progress
from delayd.wheel.catalogue import SlotLine
from delayd.wheel.checking import check_slot
from delayd.wheel.frame import BrokenFrameError, decode, walk
from delayd.wheel.layout import Layout, hour_of, is_leveldb_log, parse_hour, parse_slot_file
from delayd.wheel.leveldb_log import torn_end
from delayd.wheel.reader import SCAN_BYTES
from delayd.wheel.stopped import StoppedWheel, locked, open_stopped, reading
from replication.rank import slot_of
from replication.record import FrontierFormatError
from replication.record import decode as decode_frontier

Tell = Callable[[int, int], None]
"""Is told the bytes read, and how many there are."""


def verify(directory: Path, tell: Tell) -> tuple[Findings, Progress | None]:
    """Read all of the wheel in this data directory; what was found, and its last checkpoint.

    Raises ConfigError if there is none, DiskError if a node runs on it, if it is of another format,
    or if it cannot be read. Damage is not raised.
    """
    with locked(directory) as layout:
        findings = Findings(layout.root)
        progress = None
        try:
            _check_logs(layout, findings)
            with open_stopped(layout) as wheel:
                progress = wheel.progress
                findings.partitions = wheel.partitions
                _Verification(wheel, findings, tell).run()
                findings.is_complete = True
        except CorruptionError as error:
            file = layout.format if layout.format in error.message else layout.catalogue
            findings.add(Damage(_within(layout, file), error.message))
        return findings, progress


def _check_logs(layout: Layout, findings: Findings) -> None:
    folder = Path(layout.catalogue)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not is_leveldb_log(path.name):
            continue
        try:
            with path.open("rb") as log:
                end = torn_end(log)
        except OSError as error:
            raise DiskError(
                f"cannot read {path}: {error.strerror}",
                remedy="look at the volume of the data directory and the kernel log",
            ) from error
        if end is None:
            continue
        if end.is_damaged:
            name = _within(layout, str(path))
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

    def run(self) -> None:
        """Steps 2 to 4."""
        catalogue = self._wheel.catalogue
        self._findings.lines = catalogue.lines_by_kind()
        total = sum(line.info.bytes for _, line in catalogue.slot_lines())
        for hour, lines in self._by_hour():
            self._check_hour(hour, lines)
            self._tell(self._findings.slot_bytes, total)
        damaged = {damage.slot for damage in self._findings.damage}
        for entry in catalogue.answer_lines():
            if slot_of(entry.due_ms) not in damaged:
                self._check_answer(entry)

    def _by_hour(self) -> Iterator[tuple[int, dict[int, SlotLine]]]:
        """Every hour that has a folder or a line, with its lines; an hour has 3,600 at most."""
        folders = deque(self._hour_folders())
        lines = self._wheel.catalogue.slot_lines()
        for hour, group in groupby(lines, key=lambda line: hour_of(line[0])):
            while folders and folders[0] < hour:
                yield folders.popleft(), {}
            if folders and folders[0] == hour:
                folders.popleft()
            yield hour, dict(group)
        for hour in folders:
            yield hour, {}

    def _hour_folders(self) -> list[int]:
        hours = []
        if Path(self._layout.slots).is_dir():
            for item in self._disk.list_folder(self._layout.slots):
                hour = parse_hour(item.name)
                if hour is not None and item.is_folder:
                    hours.append(hour)
                else:
                    self._findings.add_foreign(f"slots/{item.name}")
        return sorted(hours)

    def _check_hour(self, hour: int, lines: dict[int, SlotLine]) -> None:
        files = self._files_of(hour)
        for slot, line in sorted(lines.items()):
            self._check_slot(slot, line, files.pop((slot, line.generation), None))
        for (slot, generation), size in sorted(files.items()):
            self._check_left_over(slot, generation, size)

    def _files_of(self, hour: int) -> dict[tuple[int, int], int]:
        folder = self._layout.hour_folder(hour)
        files: dict[tuple[int, int], int] = {}
        if Path(folder).is_dir():
            for item in self._disk.list_folder(folder):
                parsed = parse_slot_file(item.name, hour)
                if parsed is not None and not item.is_folder:
                    files[parsed] = item.bytes
                else:
                    self._findings.add_foreign(_within(self._layout, f"{folder}/{item.name}"))
        return files

    def _check_slot(self, slot: int, line: SlotLine, size: int | None) -> None:
        findings = self._findings
        path = self._layout.slot_file(slot, line.generation)
        name = _within(self._layout, path)
        findings.slots += 1
        findings.slot_bytes += line.info.bytes
        try:
            if size is None:
                raise DiskError("are missing: there is no such file")
            with reading(self._disk, path) as file:
                found = check_slot(self._disk, file, slot, line)
        except DiskError as error:
            findings.add(Damage(name, error.message, slot, 0, line.info.bytes))
            findings.frames_lost += line.info.count
            findings.damaged_slots += 1
            return
        findings.messages += found.messages
        findings.answers += found.answers
        findings.frames_lost += found.lost
        findings.frames_suspect += found.suspect
        findings.damaged_slots += bool(found.spans)
        for span in found.spans:
            findings.add(Damage(name, span.why, slot, span.first_byte, span.end_byte))
        if size > line.info.bytes:
            findings.behind_files += 1
            findings.behind_bytes += size - line.info.bytes

    def _check_left_over(self, slot: int, generation: int, size: int) -> None:
        findings = self._findings
        path = self._layout.slot_file(slot, generation)
        taken_in = self._count_taken_in(path, slot)
        if slot < self._forgotten_below:
            findings.forgotten_files += 1
            findings.forgotten_bytes += size
        elif taken_in:
            why = "is not in the catalogue, though the checkpoint says that its frames were stored"
            findings.add(Damage(_within(self._layout, path), why, slot, 0, size))
            findings.frames_lost += taken_in
            findings.damaged_slots += 1
        else:
            findings.behind_files += 1
            findings.behind_bytes += size

    def _count_taken_in(self, path: str, slot: int) -> int:
        """Frames at the beginning of a file that the checkpoint says were taken in."""
        progress = self._wheel.progress
        if progress is None:
            return 0
        offsets = progress.offsets
        count = position = 0
        with reading(self._disk, path) as file:
            while data := self._disk.pread(file, SCAN_BYTES, position):
                whole_bytes = 0
                try:
                    for due_ms, partition, offset, _, _, _, _, end, _ in walk(data, position):
                        whole_bytes = end
                        if slot_of(due_ms) == slot and partition < len(offsets):
                            count += offset < offsets[partition]
                except BrokenFrameError:
                    break
                if whole_bytes == 0:
                    # What is behind a checkpoint may be anything; a frame this long is none.
                    break
                position += whole_bytes
        return count

    def _check_answer(self, entry: Entry) -> None:
        slot = slot_of(entry.due_ms)
        line = self._wheel.catalogue.slot_line(slot)
        end = entry.position + entry.length
        if line is None or end > line.info.bytes:
            why = f"answer {entry.partition}/{entry.offset} waits, and no slot holds its frame"
            self._findings.add(Damage("catalogue", why, slot, entry.position, end))
            return
        path = self._layout.slot_file(slot, line.generation)
        with reading(self._disk, path) as file:
            data = self._disk.pread(file, entry.length, entry.position)
        try:
            if decode(data, 0, entry.length, entry.position)[:5] == entry[:5]:
                return
        except BrokenFrameError:
            pass
        why = f"are not the frame of answer {entry.partition}/{entry.offset}, which waits"
        self._findings.add(Damage(_within(self._layout, path), why, slot, entry.position, end))


def _forgotten_below(progress: Progress | None) -> int:
    """The slot below which a checkpoint may have forgotten what is delivered."""
    if progress is None or not progress.forgotten:
        return 0
    try:
        frontier = decode_frontier(progress.forgotten).frontier
    except FrontierFormatError:
        return 0
    return slot_of(frontier.lowest_cursor.due_ms)


def _within(layout: Layout, path: str) -> str:
    return path.removeprefix(f"{layout.root}/")
