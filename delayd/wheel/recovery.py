"""From a data directory as a crash left it to exactly its last checkpoint."""

import json
from dataclasses import dataclass

from delayd.errors import CorruptionError, DiskError
from delayd.wheel import Progress
from delayd.wheel.catalogue import REBUILD, Catalogue, SlotLine
from delayd.wheel.disk import Disk
from delayd.wheel.frame import PARTITIONS_MAX
from delayd.wheel.layout import FORMAT_VERSION, Layout, hour_of, parse_hour, parse_slot_file

FORMAT_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery hands to the wheel."""

    catalogue: Catalogue
    progress: Progress | None
    lines: dict[int, SlotLine]
    hours: dict[int, int]
    """Files per hour folder; folders that hold none of ours were removed."""


def recover(layout: Layout, disk: Disk, partitions: int) -> Recovered:
    """Bring the directory back to its last checkpoint; a new directory becomes an empty wheel.

    1. Read format.json. Another format or partition count: stop, touch nothing.
    2. Open LevelDB, which also locks the directory. Without format.json the directory is new, or
       its creation was cut short: then there may be no slot and no catalogue line in it.
    3. Read all of LevelDB.
    4. Compare with the files. One that is shorter than its line, or missing: stop, touch nothing.
    5. Cut files to the length of their line, remove those without a line, and hour folders that
       then are empty. Names that are not ours are left alone.
    6. Write format.json, if there was none.

    Nothing is created in place of what is missing. A crash during recovery is harmless: each step
    can be repeated, and none goes below the checkpoint.
    """
    is_new = not _check_format(layout, disk, partitions)
    catalogue = Catalogue(layout.catalogue, create=is_new)
    try:
        progress = catalogue.progress()
        if is_new and (progress is not None or disk.list_folder(layout.slots)):
            raise CorruptionError(
                f"{layout.root} holds a wheel without its {layout.format}", remedy=REBUILD
            )
        lines = catalogue.slots()
        files = _find_files(layout, disk)
        _require_all(layout, lines, files)
        hours = _restore(layout, disk, lines, files)
        if is_new:
            _write_format(layout, disk, partitions)
    except BaseException:
        catalogue.close()
        raise
    return Recovered(catalogue, progress, lines, hours)


def _check_format(layout: Layout, disk: Disk, partitions: int) -> bool:
    disk.make_folder(layout.slots)
    names = {item.name for item in disk.list_folder(layout.root)}
    if layout.format.rpartition("/")[2] not in names:
        return False
    file = disk.open(layout.format, create=False)
    try:
        text = disk.pread(file, FORMAT_BYTES_MAX, 0)
    finally:
        disk.close(file)
    count = partitions_of(layout, text)
    if count != partitions:
        raise DiskError(
            f"{layout.root} belongs to a buffer of {count} partitions, not {partitions}",
            remedy="set the data directory of this cluster: a buffer never changes its partitions",
        )
    return True


def partitions_of(layout: Layout, text: bytes) -> int:
    """The partition count that format.json holds.

    Raises CorruptionError if it is damaged, DiskError if it is of another format.
    """
    try:
        found = json.loads(text)
        version, count = found["format"], found["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{layout.format} is damaged", remedy=REBUILD) from error
    if version != FORMAT_VERSION:
        raise DiskError(
            f"{layout.root} has wheel format {version}; this delayd knows {FORMAT_VERSION}",
            remedy="run the version of delayd that wrote it, or empty the data directory",
        )
    if type(count) is not int or not 0 < count <= PARTITIONS_MAX:
        raise CorruptionError(f"{layout.format} is damaged", remedy=REBUILD)
    return count


def _write_format(layout: Layout, disk: Disk, partitions: int) -> None:
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


def _find_files(layout: Layout, disk: Disk) -> dict[int, dict[tuple[int, int], int]]:
    """By hour folder, by (slot, generation): the length of each file that is ours."""
    hours: dict[int, dict[tuple[int, int], int]] = {}
    for folder in disk.list_folder(layout.slots):
        hour = parse_hour(folder.name)
        if hour is None or not folder.is_folder:
            continue
        hours[hour] = {}
        for item in disk.list_folder(layout.hour_folder(hour)):
            parsed = parse_slot_file(item.name, hour)
            if parsed is not None and not item.is_folder:
                hours[hour][parsed] = item.bytes
    return hours


def _require_all(
    layout: Layout,
    lines: dict[int, SlotLine],
    files: dict[int, dict[tuple[int, int], int]],
) -> None:
    for slot, line in sorted(lines.items()):
        found_bytes = files.get(hour_of(slot), {}).get((slot, line.generation))
        if found_bytes is not None and found_bytes >= line.info.bytes:
            continue
        state = "is missing" if found_bytes is None else f"ends at byte {found_bytes}"
        raise CorruptionError(
            f"slot {slot}: {layout.slot_file(slot, line.generation)} {state}; bytes "
            f"{found_bytes or 0} to {line.info.bytes} are lost, of {line.info.count} frames in all",
            remedy=REBUILD,
        )


def _restore(
    layout: Layout,
    disk: Disk,
    lines: dict[int, SlotLine],
    files: dict[int, dict[tuple[int, int], int]],
) -> dict[int, int]:
    hours: dict[int, int] = {}
    for hour, found in files.items():
        for (slot, generation), length in found.items():
            line = lines.get(slot)
            if line is None or line.generation != generation:
                disk.unlink(layout.slot_file(slot, generation))
                continue
            if length > line.info.bytes:
                disk.truncate(layout.slot_file(slot, generation), line.info.bytes)
            hours[hour] = hours.get(hour, 0) + 1
        if hour not in hours:
            disk.remove_folder(layout.hour_folder(hour))
    return hours
