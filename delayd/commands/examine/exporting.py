"""The pending messages of a stopped wheel as Parquet, at the newest frontier that is possible.

A running node exports the same file at that frontier: `delayd.node.export` has the rows, columns,
metadata and the judgement. A stopped wheel does not change, so nothing is pinned or frozen.

    1. choose the cut: a frontier up to whose O the wheel has ingested. It is the newest frontier
       that the checkpoint knows, or else the one by which the wheel has forgotten: it still holds
       all messages that are pending there, as a node that pins it does
    2. write slots and hours by time, each verified against its line, to a draft beside the file
    3. sync the draft, and rename it to the file

Invariant: under the file's name there is a whole export, or the file of before.
Source: docs/design/storage.md, "Exports".
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from delayd.commands.examine.frontiers import record_of
from delayd.errors import ConfigError, CorruptionError, DiskError
from delayd.node.export.rows import PendingFile
from delayd.node.export.segments import DamagedSegmentError, SegmentsReader
from delayd.wheel import SegmentLine
from delayd.wheel.kills import KILLS, kill_key, kill_of, rank_of
from delayd.wheel.layout import HOUR_SLOTS
from delayd.wheel.stopped import StoppedWheel, locked, open_stopped
from replication.frontier import Frontier
from replication.rank import Rank, slot_of


class Exported(NamedTuple):
    """The result of an export."""

    directory: str
    file: Path
    rows: int
    bytes: int
    cut: Frontier
    newest_step: int
    """Step of the newest frontier that the checkpoint knows, which may be beyond the cut."""


def export(
    directory: Path, file: Path, tell: Callable[[int, int], None], *, overwrite: bool = False
) -> Exported:
    """Write the pending messages of this data directory to `file`.

    `tell` gets the bytes read, and the total. Raises ConfigError: no wheel, no frontier, the file
    exists, its folder does not. Raises DiskError: a node runs on it, the wheel has reached no
    frontier, the file cannot be written. Raises CorruptionError: the wheel is damaged.
    """
    _require_free(file, overwrite)
    with locked(directory) as layout, open_stopped(layout) as wheel:
        newest = _known(wheel)
        cut = _cut_of(wheel, newest)
        draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
        try:
            rows = _write(wheel, cut, draft, tell)
            size = _synced(draft)
            _require_free(file, overwrite)
            draft.replace(file)
            _synced(file.parent)
        except DamagedSegmentError as error:
            raise CorruptionError(
                str(error),
                remedy=f"a damaged wheel is not exported: run delayd wheel verify {layout.root}",
            ) from error
        except OSError as error:
            raise DiskError(
                f"cannot write {file}: {error.strerror or error}",
                remedy="make room there, or name a file elsewhere; nothing was left behind",
            ) from error
        finally:
            draft.unlink(missing_ok=True)
        return Exported(layout.root, file, rows, size, cut, newest.step)


def _require_free(file: Path, overwrite: bool) -> None:
    if not file.parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent}", remedy="make it, or name another")
    if file.is_dir() or (file.exists() and not overwrite):
        raise ConfigError(
            f"{file} is there already", remedy="name another file, or let --force replace it"
        )


def _synced(path: Path) -> int:
    """Sync a file or folder; return its bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _known(wheel: StoppedWheel) -> Frontier:
    """Return the newest frontier that the checkpoint knows."""
    progress = wheel.progress
    if progress is None or not progress.frontier:
        raise ConfigError(
            f"{wheel.layout.root} knows no frontier: what is pending in it cannot be told",
            remedy="let its node run until it is ready, and stop it again",
        )
    return record_of(wheel, progress.frontier).frontier


def _cut_of(wheel: StoppedWheel, newest: Frontier) -> Frontier:
    assert wheel.progress is not None, "it knows a frontier"
    offsets, forgotten = wheel.progress.offsets, wheel.progress.forgotten
    if newest.reached_by(offsets):
        return newest
    if forgotten:
        cut = record_of(wheel, forgotten).frontier
        if cut.reached_by(offsets):
            return cut
    raise DiskError(
        f"{wheel.layout.root} has taken in the buffer up to {list(offsets)}; step {newest.step}, "
        f"the newest that it knows, went up to {list(newest.offsets)}: what is pending then is "
        "not all here",
        remedy="start the node, let it catch up, and stop it again; or take another node's",
    )


def _write(
    wheel: StoppedWheel, cut: Frontier, draft: Path, tell: Callable[[int, int], None]
) -> int:
    total = sum(info.bytes - start for _, info, start in wheel.catalogue.counted_lines_by_hour())
    file = PendingFile(draft)
    reader = SegmentsReader(cut, lambda: _kills(wheel, cut), file.write)
    done = 0
    for segment in _segments(wheel, slot_of(cut.lowest_cursor.due_ms)):
        name = segment.name
        reader.read(wheel.layout.segment_file(name), segment)
        done += segment.info.bytes - segment.start
        tell(done, total)
    reader.finish()
    file.finish(node=wheel.layout.root, step=cut.step)
    return file.count


def _segments(wheel: StoppedWheel, first: int) -> Iterator[SegmentLine]:
    """Return the slots from this one on, and the hour files that do not end before it, by time."""
    return (
        line
        for line in wheel.catalogue.lines_by_hour(first)
        if not line.name.is_hour or (line.name.number + 1) * HOUR_SLOTS > first
    )


def _kills(wheel: StoppedWheel, cut: Frontier) -> Iterator[tuple[Rank, int]]:
    first = kill_key(Rank(max(0, cut.lowest_cursor.due_ms), 0, 0))
    for run in wheel.catalogue.lines(KILLS, first):
        for key, value in run:
            yield rank_of(key), kill_of(value).marker_offset
