"""Recovery: a data directory goes back to exactly its last checkpoint."""

import json
import shutil
from dataclasses import dataclass

from delayd.errors import CorruptionError, DiskError
from delayd.wheel import Progress, SegmentLine, SlotInfo
from delayd.wheel.catalogue import REBUILD, Catalogue
from delayd.wheel.disk import Disk
from delayd.wheel.frame import PARTITIONS_MAX
from delayd.wheel.layout import (
    FORMAT_VERSION,
    UPGRADABLE,
    Layout,
    SegmentName,
    parse_hour,
    parse_segment_file,
)
from delayd.wheel.leveldb_log import torn_logs

FORMAT_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of recovery."""

    catalogue: Catalogue
    progress: Progress | None
    lines: list[SegmentLine]
    files: dict[int, int]
    """Files per hour folder; folders without any were removed."""


def recover(layout: Layout, disk: Disk, partitions: int) -> Recovered:
    """Bring the directory back to its last checkpoint; a new directory becomes an empty wheel.

    1. Read format.json. If it has another partition count, or a format that this version cannot
       take over: stop, change nothing.
    2. Read the end of LevelDB's logs. If a record has a wrong length: stop, change nothing.
    3. Open LevelDB, which also locks the directory. Without format.json the directory is new, or
       its creation was cut short: then there may be no slot and no catalogue line in it.
    4. Read the lines of all slots and hours, and compare with the totals of the checkpoint.
    5. Compare with the files. If one is missing or shorter than its line: stop, change nothing.
    6. Cut files to the length of their line, remove those without a line (a split that was cut
       short among them), and hour folders that are empty then. Leave foreign names alone.
    7. Write format.json, if there was none or it names an older format.

    Recovery creates nothing in place of a missing file. A crash during recovery is harmless: each
    step can be repeated, and none goes below the checkpoint.
    """
    disk.make_folder(layout.slots)
    if layout.discarded.rpartition("/")[2] in {i.name for i in disk.list_folder(layout.root)}:
        discard(layout, disk)
    found_version = _check_format(layout, disk, partitions)
    is_new = found_version is None
    _require_whole_logs(layout)
    catalogue = Catalogue(layout.catalogue, create=is_new)
    try:
        progress = catalogue.progress()
        if is_new and (progress is not None or disk.list_folder(layout.slots)):
            raise CorruptionError(
                f"{layout.root} holds a wheel without its {layout.format}", remedy=REBUILD
            )
        segments = catalogue.segments()
        lines = {line.name: line.info for line in segments}
        found = _find_files(layout, disk)
        _require_all(layout, lines, found)
        files = _restore(layout, disk, lines, found)
        if found_version != FORMAT_VERSION:
            write_format(layout, disk, partitions)
    except BaseException:
        catalogue.close()
        raise
    return Recovered(catalogue, progress, segments, files)


def discard(layout: Layout, disk: Disk) -> None:
    """Remove a wheel that is closed. `recover` goes on with what a crash has cut short.

    Raises DiskError: `recover` tries again at the next start.
    """
    names = {item.name for item in disk.list_folder(layout.root)}
    if layout.discarded.rpartition("/")[2] not in names:
        disk.rename(layout.format, layout.discarded)
        disk.sync_folder(layout.root)
    for hour, files in _find_files(layout, disk).items():
        for name in files:
            disk.unlink(layout.segment_file(name))
        disk.remove_folder(layout.hour_folder(hour))
    _remove_tree(layout.catalogue, "which belongs to a wheel that is being removed")
    disk.unlink(layout.discarded)
    disk.sync_folder(layout.root)


def remove_scratch(layout: Layout) -> None:
    """Remove the scratch folder that a killed repair has left; the caller holds the directory's
    lock, so no repair is running. Raise DiskError if that fails."""
    _remove_tree(layout.scratch, "which a repair has left")


def _remove_tree(path: str, what: str) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DiskError(
            f"cannot remove {path}, {what}: {error.strerror}",
            remedy="let the user that runs delayd write there, then start it again",
        ) from error


def _check_format(layout: Layout, disk: Disk, partitions: int) -> int | None:
    """Return the format version of the directory; None if it is new."""
    names = {item.name for item in disk.list_folder(layout.root)}
    if layout.format.rpartition("/")[2] not in names:
        return None
    file = disk.open(layout.format, create=False)
    try:
        text = disk.pread(file, FORMAT_BYTES_MAX, 0)
    finally:
        disk.close(file)
    version, count = format_of(layout, text)
    if count != partitions:
        raise DiskError(
            f"{layout.root} belongs to a buffer of {count} partitions, not {partitions}",
            remedy="set the data directory of this cluster: a buffer never changes its partitions",
        )
    return version


def format_of(layout: Layout, text: bytes) -> tuple[int, int]:
    """Return the format version and the partition count in format.json.

    Raises CorruptionError if it is damaged, DiskError if it is of a format that is not known.
    """
    try:
        found = json.loads(text)
        version, count = found["format"], found["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{layout.format} is damaged", remedy=REBUILD) from error
    if version != FORMAT_VERSION and version not in UPGRADABLE:
        raise DiskError(
            f"{layout.root} has wheel format {version}; this delayd knows {FORMAT_VERSION}",
            remedy="run the version of delayd that wrote it, or empty the data directory",
        )
    if type(count) is not int or not 0 < count <= PARTITIONS_MAX:
        raise CorruptionError(f"{layout.format} is damaged", remedy=REBUILD)
    return version, count


def _require_whole_logs(layout: Layout) -> None:
    for file, end in torn_logs(layout.catalogue):
        if end.is_damaged:
            raise CorruptionError(
                f"LevelDB in {layout.catalogue} is damaged: bytes {end.first_byte} to "
                f"{end.end_byte} of {file} are a record with a wrong length",
                remedy=REBUILD,
            )


def write_format(layout: Layout, disk: Disk, partitions: int) -> None:
    """Write format.json, durably: the directory is a wheel from then on."""
    names = {item.name for item in disk.list_folder(layout.root)}
    if layout.format_draft.rpartition("/")[2] in names:
        disk.unlink(layout.format_draft)
    file = disk.open(layout.format_draft, create=True)
    try:
        text = json.dumps({"format": FORMAT_VERSION, "partitions": partitions}) + "\n"
        disk.append(file, text.encode())
        disk.fdatasync(file)
    finally:
        disk.close(file)
    disk.rename(layout.format_draft, layout.format)
    disk.sync_folder(layout.root)


def _find_files(layout: Layout, disk: Disk) -> dict[int, dict[SegmentName, int]]:
    """Return the length of each slot and hour file, by hour folder."""
    hours: dict[int, dict[SegmentName, int]] = {}
    for folder in disk.list_folder(layout.slots):
        hour = parse_hour(folder.name)
        if hour is None or not folder.is_folder:
            continue
        hours[hour] = {}
        for item in disk.list_folder(layout.hour_folder(hour)):
            name = parse_segment_file(item.name, hour)
            if name is not None and not item.is_folder:
                hours[hour][name] = item.bytes
    return hours


def _require_all(
    layout: Layout, lines: dict[SegmentName, SlotInfo], files: dict[int, dict[SegmentName, int]]
) -> None:
    for name, info in sorted(lines.items()):
        found_bytes = files.get(name.hour, {}).get(name)
        if found_bytes is not None and found_bytes >= info.bytes:
            continue
        state = "is missing" if found_bytes is None else f"ends at byte {found_bytes}"
        raise CorruptionError(
            f"{name}: {layout.segment_file(name)} {state}; bytes "
            f"{found_bytes or 0} to {info.bytes} are lost, of {info.count} frames in all",
            remedy=REBUILD,
        )


def _restore(
    layout: Layout,
    disk: Disk,
    lines: dict[SegmentName, SlotInfo],
    files: dict[int, dict[SegmentName, int]],
) -> dict[int, int]:
    kept: dict[int, int] = {}
    for hour, found in files.items():
        for name, length in found.items():
            info = lines.get(name)
            if info is None:
                disk.unlink(layout.segment_file(name))
                continue
            if length > info.bytes:
                disk.truncate(layout.segment_file(name), info.bytes)
            kept[hour] = kept.get(hour, 0) + 1
        if hour not in kept:
            disk.remove_folder(layout.hour_folder(hour))
    return kept
