"""Read access to the data directory of a stopped node. It changes nothing there.

LevelDB cannot open a database without writing to it: it turns its log into a table. So it opens a
*view*: a temporary folder of links to its files, in which it may create and remove files. The next
process removes the view of a process that was killed.

Meanwhile LevelDB's own lock is held, shared: the directory of a running node cannot be opened, and
a node that starts meanwhile finds its directory in use. The lock is of the whole process (POSIX):
never open a wheel in a process that has the same wheel open to write.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from delayd.errors import ConfigError, CorruptionError, DiskError
from delayd.runtime.temp_dirs import temporary_folder
from delayd.wheel import Progress
from delayd.wheel.catalogue import REBUILD, Catalogue
from delayd.wheel.disk import OpenFile, SystemDisk
from delayd.wheel.layout import Layout, is_leveldb_data
from delayd.wheel.recovery import FORMAT_BYTES_MAX, format_of

VIEW_PREFIX = "delayd-view-"


class StoppedWheel(NamedTuple):
    """An open wheel of a stopped node."""

    layout: Layout
    disk: SystemDisk
    format: int | None
    """The format version of the directory. None like the partitions."""
    partitions: int | None
    """None: the node ended while it created the wheel, which is empty."""
    catalogue: Catalogue
    progress: Progress | None
    """None before the first checkpoint: the wheel is empty."""


@contextmanager
def locked(directory: Path) -> Iterator[Layout]:
    """Lock the directory so that no node can start on it; yield its paths.

    Raises ConfigError if it holds no wheel, DiskError if a node runs on it or it is unreadable.
    """
    layout = Layout(str(directory.absolute()))
    disk = SystemDisk()
    names = {item.name for item in disk.list_folder(layout.root)}
    if not names & {Path(path).name for path in (layout.format, layout.catalogue, layout.slots)}:
        raise ConfigError(
            f"{layout.root} holds no wheel", remedy="name the data_dir of a node that has run"
        )
    if not Path(layout.lock).exists():
        yield layout
        return
    with reading(disk, layout.lock) as file:
        try:
            fcntl.lockf(file.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DiskError(
                f"a node runs on {layout.root}, and LevelDB lets nobody else read its catalogue",
                remedy="stop that node first; for the figures of a running node, GET /status and "
                "GET /metrics of its admin port",
            ) from error
        except OSError as error:
            raise DiskError(
                f"cannot lock {layout.lock}: {error.strerror}",
                remedy="look at the volume of the data directory",
            ) from error
        yield layout


@contextmanager
def reading(disk: SystemDisk, path: str) -> Iterator[OpenFile]:
    """Open a file for reading. Raise DiskError."""
    file = disk.open_to_read(path)
    try:
        yield file
    finally:
        disk.close(file)


@contextmanager
def open_stopped(layout: Layout) -> Iterator[StoppedWheel]:
    """Open the wheel of a directory that is `locked`.

    Raises DiskError: another format, I/O. Raises CorruptionError: format.json or LevelDB is lost or
    damaged.
    """
    disk = SystemDisk()
    version, partitions = format_in(layout)
    with _view(layout, disk) as view, closing(_catalogue(layout, view, partitions)) as catalogue:
        progress = catalogue.progress()
        _require_sense(layout, disk, partitions, progress)
        yield StoppedWheel(layout, disk, version, partitions, catalogue, progress)


def format_in(layout: Layout) -> tuple[int, int] | tuple[None, None]:
    """Return format version and partition count of a directory; None before they are written.

    Raises DiskError if the format is unknown, CorruptionError if format.json is damaged.
    """
    if not Path(layout.format).exists():
        return None, None
    disk = SystemDisk()
    with reading(disk, layout.format) as file:
        return format_of(layout, disk.pread(file, FORMAT_BYTES_MAX, 0))


@contextmanager
def _view(layout: Layout, disk: SystemDisk) -> Iterator[str]:
    with temporary_folder(VIEW_PREFIX) as view:
        if Path(layout.catalogue).is_dir():
            for item in disk.list_folder(layout.catalogue):
                if is_leveldb_data(item.name):
                    Path(view, item.name).symlink_to(Path(layout.catalogue, item.name))
        yield view


def _catalogue(layout: Layout, view: str, partitions: int | None) -> Catalogue:
    # A wheel that was being made may have no catalogue yet; in the view one may be made.
    is_unmade = partitions is None and not os.listdir(view)  # noqa: PTH208
    return Catalogue(view, create=is_unmade, named=layout.catalogue)


def _require_sense(
    layout: Layout, disk: SystemDisk, partitions: int | None, progress: Progress | None
) -> None:
    if partitions is None:
        has_slots = Path(layout.slots).is_dir() and disk.list_folder(layout.slots)
        if progress is not None or has_slots:
            raise CorruptionError(
                f"{layout.root} holds a wheel without its {layout.format}", remedy=REBUILD
            )
    elif progress is None:
        # A table is made of a log that holds a checkpoint.
        tables = [i.name for i in disk.list_folder(layout.catalogue) if i.name.endswith(".ldb")]
        if tables:
            raise CorruptionError(
                f"LevelDB in {layout.catalogue} is lost or damaged: it has no checkpoint, but "
                f"tables ({tables[0]})",
                remedy=REBUILD,
            )
    elif len(progress.offsets) != partitions:
        raise CorruptionError(
            f"{layout.format} says {partitions} partitions, the checkpoint "
            f"{len(progress.offsets)}: one of them is damaged",
            remedy=REBUILD,
        )
