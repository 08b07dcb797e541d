"""From a data directory as a crash left it to exactly its last checkpoint."""

import json
from dataclasses import dataclass

from delayd.errors import CorruptionError, DiskError
from delayd.wheel.catalogue import REBUILD, Catalogue, SlotLine
from delayd.wheel.disk import Disk
from delayd.wheel.layout import FORMAT_VERSION, Layout, parse_hour, parse_slot_file

_FORMAT_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery hands to the wheel."""

    catalogue: Catalogue
    lines: dict[int, SlotLine]
    hours: dict[int, int]
    """Files per hour folder; folders that hold none of ours were removed."""


def recover(layout: Layout, disk: Disk, partitions: int) -> Recovered:
    """Bring the directory back to its last checkpoint; a new directory becomes an empty wheel.

    1. Read format.json. Another format or partition count: stop, touch nothing.
    2. Open LevelDB, which also locks the directory. Without format.json the directory is new, or
       its creation was cut short: then there may be no slot and no catalogue line in it.
    3. Read every slot's line.
    4. Compare with the files. Not in the catalogue: remove it. Longer than its line: cut it.
       Shorter or missing: CorruptionError. Names that are not ours are left alone.
    5. Remove hour folders that are empty.
    6. Write format.json, if there was none.

    Nothing is created in place of what is missing. A crash during recovery is harmless: each step
    can be repeated, and none goes below the checkpoint.
    """
    is_new = not _check_format(layout, disk, partitions)
    catalogue = Catalogue(layout.catalogue, create=is_new)
    try:
        if is_new and not (catalogue.is_empty() and _holds_no_slot(layout, disk)):
            raise CorruptionError(
                f"{layout.root} holds a wheel without its {layout.format}", remedy=REBUILD
            )
        lines = dict(catalogue.slots())
        hours = _match_files(layout, disk, lines)
        if is_new:
            _write_format(layout, disk, partitions)
    except BaseException:
        catalogue.close()
        raise
    return Recovered(catalogue, lines, hours)


def _check_format(layout: Layout, disk: Disk, partitions: int) -> bool:
    disk.make_folder(layout.slots)
    names = {item.name for item in disk.list_folder(layout.root)}
    if layout.format.rpartition("/")[2] not in names:
        return False
    file = disk.open(layout.format, create=False)
    try:
        text = disk.pread(file, _FORMAT_BYTES_MAX, 0)
    finally:
        disk.close(file)
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
    if count != partitions:
        raise DiskError(
            f"{layout.root} belongs to a buffer of {count} partitions, not {partitions}",
            remedy="set the data directory of this cluster: a buffer never changes its partitions",
        )
    return True


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


def _holds_no_slot(layout: Layout, disk: Disk) -> bool:
    return not disk.list_folder(layout.slots)


def _match_files(layout: Layout, disk: Disk, lines: dict[int, SlotLine]) -> dict[int, int]:
    hours: dict[int, int] = {}
    seen: set[int] = set()
    for folder in disk.list_folder(layout.slots):
        hour = parse_hour(folder.name)
        if hour is None or not folder.is_folder:
            continue
        path = layout.hour_folder(hour)
        for item in disk.list_folder(path):
            parsed = parse_slot_file(item.name, hour)
            if parsed is None or item.is_folder:
                continue
            slot, generation = parsed
            line = lines.get(slot)
            if line is None or line.generation != generation:
                disk.unlink(layout.slot_file(slot, generation))
                continue
            _match_length(layout, disk, slot, line, item.bytes)
            seen.add(slot)
            hours[hour] = hours.get(hour, 0) + 1
        if hour not in hours:
            disk.remove_folder(path)
    for slot in sorted(lines.keys() - seen):
        _match_length(layout, disk, slot, lines[slot], None)
    return hours


def _match_length(
    layout: Layout, disk: Disk, slot: int, line: SlotLine, found_bytes: int | None
) -> None:
    path = layout.slot_file(slot, line.generation)
    expected = line.info.bytes
    if found_bytes is None or found_bytes < expected:
        state = "is missing" if found_bytes is None else f"ends at byte {found_bytes}"
        raise CorruptionError(
            f"slot {slot}: {path} {state}; bytes {found_bytes or 0} to {expected} are lost, "
            f"of {line.info.count} frames in all",
            remedy=REBUILD,
        )
    if found_bytes > expected:
        disk.truncate(path, expected)
