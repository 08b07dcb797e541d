"""What a node may keep after months: as much as is pending, and a constant.

    files, bytes    one file for each message that is not covered, besides what is of the same hour
    ids             of messages that are not covered, or within `id_memory` (redrives: 30 days;
                    where something may be continued twice, continued messages: an hour)
    open files      a constant, and one for each message that is not covered, up to what a node
                    holds open at most
    entries         in all containers of the running node, and the bytes in them: in proportion

*Covered* is what a frontier that is older than `export_hold` has passed. The bounds are looked at
when the nodes have nothing left to do. Nothing here asks the node what should be there: records
and frontiers are read from the log.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from log_rules import REDRIVE_MEMORY_MS, Step, planned_of, step_of_fields

from delayd.bus import Record
from delayd.node.monitoring.node_view import NodeView
from delayd.wheel.disk import OPEN_FILES_MAX
from delayd.wheel.reserve import FILE as RESERVE_FILE

HOUR_MS = 3_600_000
REPEAT_MEMORY_MS = HOUR_MS
SPARE = 8
"""Files, lines and entries beyond what is counted: the constant of the bounds."""
FILE_BYTES = 4_096
RECORD_BYTES = 1_024
"""More than any record of the users takes."""
CATALOGUE_BYTES = 1 << 20
"""LevelDB's own logs, however little is in it."""
OPEN_FILES = 20
ENTRIES_PER_RECORD = 20
ENTRIES = 2_000
BYTES = 16_384
OUTSIDE = (
    *("delayd.bus", "delayd.coordination", "delayd.config", "simulated", "kernel"),
    "delayd.runtime.native",
)
"""Modules whose objects are no part of a node here: twins, what is shared by all, and the native
library's rooms, which are constant (tests/unit/node/replica/test_flat_ingest.py)."""


class Due(NamedTuple):
    """What the log says that a node has to keep."""

    records: int
    """Neither covered nor of an hour that is over."""
    with_ids: int
    """Remembered because of their ids, or of what they redrive or continue; each counts."""


def due_of(
    records: Sequence[Record], frontier: Record, log_ms: Sequence[int], id_memory_ms: int
) -> Due:
    """Return what a node has to keep that has read all these records. `frontier`: the newest record
    that is older than `export_hold`; `log_ms`: log time, by partition."""
    cut = step_of_fields(json.loads(frontier.value or b""))
    floor_ms = min(cut.cursors)[0] // HOUR_MS * HOUR_MS
    kept = [r for r in records if _until_ms(r) >= floor_ms or not _is_below(r, cut)]
    offsets = {(r.partition, r.offset) for r in kept}
    with_ids = 0
    memories_ms = {
        "delayd-id": id_memory_ms,
        "delayd-redrive": REDRIVE_MEMORY_MS,
        "delayd-continues": REPEAT_MEMORY_MS,
    }
    for record in records:
        is_kept = (record.partition, record.offset) in offsets
        age_ms = log_ms[record.partition] - _until_ms(record)
        for name in memories_ms.keys() & dict(record.headers).keys():
            with_ids += is_kept or age_ms <= memories_ms[name]
    return Due(len(kept), with_ids)


def _until_ms(record: Record) -> int:
    headers = {name: (content or b"").decode() for name, content in record.headers}
    planned_ms = planned_of(headers, f"{record.partition}/{record.offset}")
    return max(record.append_ms, int(headers.get("delayd-next-due", planned_ms)))


def _is_below(record: Record, cut: Step) -> bool:
    return record.offset < cut.offsets[record.partition]


def check(name: str, view: NodeView, due: Due) -> None:
    """Raise AssertionError, with the bound that this running node does not keep."""
    found = measured(view)
    every = due.records + due.with_ids
    for what, bound in {
        "files": due.records + SPARE,
        "bytes on disk": (due.records + SPARE) * (FILE_BYTES + RECORD_BYTES) + CATALOGUE_BYTES,
        "ids": due.records + 2 * due.with_ids + SPARE,
        "open files": OPEN_FILES + min(due.records, OPEN_FILES_MAX),
        "entries in memory": every * ENTRIES_PER_RECORD + ENTRIES,
        "bytes in memory": every * RECORD_BYTES + BYTES,
    }.items():
        assert found[what] <= bound, f"{name} keeps {found[what]} {what}, more than {bound}: {due}"


def measured(view: NodeView) -> dict[str, int]:
    """Return what a running node keeps, by the names of the bounds."""
    root = Path(view.replica.wheel.root)
    files = [path for path in (root / "slots").rglob("*") if path.is_file()]
    ids = view.replica.wheel.ids._layers
    lines = sum(len(run) for kind in (b"i", b"e", b"k") for run in ids.lines(kind, kind))
    entries, held_bytes = held(view)
    return {
        "files": len(files),
        # The reserve only keeps room, and a copy of a disk writes its zeros out.
        "bytes on disk": sum(
            path.stat().st_blocks * 512
            for path in root.rglob("*")
            if path.is_file() and path.name != RESERVE_FILE
        ),
        "ids": lines,
        "open files": len(_open_files(str(root))),
        "entries in memory": entries,
        "bytes in memory": held_bytes,
    }


def _open_files(root: str) -> list[str]:
    opened = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this listing
            opened.append(str(descriptor.readlink()))
    return [path for path in opened if path.startswith(root)]


def held(root: object) -> tuple[int, int]:
    """Return how many entries the containers hold that an object leads to, and how many bytes."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    entries = held_bytes = 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, bytes | bytearray | str):
            held_bytes += len(each)
        elif isinstance(each, dict):
            entries += len(each)
            waiting += [*each.keys(), *each.values()]
        elif hasattr(each, "__iter__") and hasattr(each, "__len__") and not _is_outside(each):
            entries += len(each)
            waiting += list(each)
        if not isinstance(each, type) and type(each).__module__.startswith(("delayd.", "repl")):
            waiting += [] if _is_outside(each) else _parts(each)
    return entries, held_bytes


def _is_outside(each: object) -> bool:
    return type(each).__module__.startswith(OUTSIDE)


def _parts(each: object) -> list[Any]:
    names = {name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())}
    slots = [getattr(each, name) for name in names if hasattr(each, name)]
    return [*slots, *getattr(each, "__dict__", {}).values()]
