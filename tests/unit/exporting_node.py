"""A replica with an exporter, without Kafka: for the tests of exports."""

import io
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from cluster_settings import LANES, PARTITIONS
from cluster_settings import SETTINGS as CLUSTER
from one_node import CLUSTER_KEY, open_replica, request_parts

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.cluster.frontier_log import SeenFrontier
from delayd.errors import DiskError
from delayd.node.export.exporter import Export, Exporter, ExportError
from delayd.node.export.freezing import freeze
from delayd.node.export.manifest import RESULT, Manifest
from delayd.node.export.writer import write_export
from delayd.request import RequestLimits, continuation, parse
from delayd.request.bodies import message_body
from delayd.request.request import Request
from delayd.runtime.clock import SystemClock
from delayd.wheel.disk import OpenFile, SystemDisk
from replication.frontier import Frontier
from replication.rank import START, Rank
from replication.record import FrontierRecord, StepCounts
from replication.settings import DAY_MS, Settings

BEGIN_MS = 1_000_000
PROOF_KEY = CLUSTER_KEY.encode()

SETTINGS = replace(CLUSTER, max_delay_ms=DAY_MS)

Row = tuple[int, int]
"""Partition and offset of a pending message."""


def schedule(
    offset: int,
    due_ms: int,
    *,
    id: str | None = None,
    op: str | None = None,
    topic: str = "orders",
    partition: int = 0,
    append_ms: int = BEGIN_MS,
    value: bytes | None = b"v",
    more: Headers | None = None,
) -> Record:
    """A request; with an id in the partition where it belongs."""
    key, headers = request_parts(topic, due_ms, id, op, more or ())
    if key is not None:
        partition = partition_of(key, PARTITIONS)
    return Record(partition, offset, 0, append_ms, key, value, headers)


def cancel(offset: int, id: str, *, append_ms: int = BEGIN_MS) -> Record:
    """A cancel of an id."""
    return schedule(offset, 0, id=id, op="cancel", append_ms=append_ms, value=None)


def cut(
    step: int,
    offsets: tuple[int, ...] = (0,) * PARTITIONS,
    *,
    cursor_ms: int = 0,
    cursors: dict[int, Rank] | None = None,
    own_writes: tuple[int, ...] = (-1,) * PARTITIONS,
    append_ms: int = BEGIN_MS,
    settings: Settings = SETTINGS,
) -> SeenFrontier:
    """A committed frontier: all lanes at one cursor, but for those named."""
    usual = Rank(cursor_ms, 0, 0) if cursor_ms else START
    lanes = [(cursors or {}).get(lane, usual) for lane in range(LANES)]
    frontier = Frontier(0, tuple(lanes), offsets, own_writes, 1, step)
    record = FrontierRecord(frontier, "n/1", 0, StepCounts(), 0, settings)
    return SeenFrontier(record, offset=step, append_ms=append_ms)


def limits() -> RequestLimits:
    """What the cluster fixed for requests."""
    return RequestLimits.of(SETTINGS, PROOF_KEY)


def continued(record: Record, offset: int, next_due_ms: int) -> Record:
    """What the master writes so that a message goes on later."""
    request = parse(record, limits())
    assert isinstance(request, Request)
    written = continuation(
        message_body(request),
        partition=record.partition,
        offset=record.offset,
        rank_due_ms=max(request.due_ms, record.append_ms),
        next_due_ms=next_due_ms,
        limits=limits(),
    )
    return Record(
        written.partition, offset, 0, BEGIN_MS, written.key, written.value, written.headers
    )


class SmallDisk(SystemDisk):
    """A disk with as much room as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.free = 2**40
        self.fails = False

    def free_bytes(self, path: str) -> int:
        return self.free

    def append(self, file: OpenFile, data: bytes | bytearray) -> None:
        if self.fails:
            raise DiskError(f"cannot append to {file.path}", remedy="a test wants it so")
        super().append(file, data)


class ExportingNode:
    """What of a node an export needs; opened again on the same folder it is a restart."""

    def __init__(self, folder: Path, *, hold_ms: int = 60_000, free_min_bytes: int = 0) -> None:
        self.folder = folder
        self.disk = SmallDisk()
        self.replica = open_replica(
            folder,
            SETTINGS,
            export_hold_ms=hold_ms,
            disk_free_min_bytes=free_min_bytes,
            disk=self.disk,
        )
        self.exporter = Exporter(
            self.replica, SystemClock(), folder=folder / "exports", node="node-1"
        )

    def take(self, *records: Record) -> None:
        """Ingest."""
        self.replica.take(records)

    def close(self) -> None:
        """End without a checkpoint."""
        self.exporter.stop(10)
        self.replica.close()

    def begin(self) -> None:
        """Observe a first frontier, unless it was opened again: it was there from the beginning, so
        the frontier that it began with covers nothing."""
        if not self.replica.knows_steps:
            self.replica.observe(cut(0, append_ms=0))

    def see(self, *frontiers: SeenFrontier) -> None:
        """Observe committed frontiers."""
        for seen in frontiers:
            self.replica.observe(seen)

    def export(self, at: SeenFrontier, wait_ms: int = 0) -> Any:
        """The export at this cut, by a real writer, as a Parquet file."""
        export = self.exporter.begin()
        try:
            export.run(at.record, wait_ms)
            return pq.ParquetFile(io.BytesIO(content_of(export)))
        finally:
            export.close()

    def pending(self, at: SeenFrontier) -> list[Row]:
        """Sources of what is pending at this cut, in order. Written in this process: that saves
        the start of another one."""
        return sources(self.written_here(at))

    def written_here(self, at: SeenFrontier) -> Any:
        """The same file, written in this process."""
        folder = self.folder / "here"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        freeze(self.replica, folder, Manifest("n", str(self.folder), at.record), lambda: None)
        write_export(folder)
        return pq.ParquetFile(folder / RESULT)


class RunningExport:
    """An export on a thread of its own."""

    def __init__(self, node: ExportingNode, at: SeenFrontier, wait_ms: int = 0) -> None:
        self.export = node.exporter.begin()
        self.failed: list[ExportError] = []
        self._thread = threading.Thread(target=self._run, args=(at, wait_ms))
        self._thread.start()

    def _run(self, at: SeenFrontier, wait_ms: int) -> None:
        try:
            self.export.run(at.record, wait_ms)
        except ExportError as error:
            self.failed.append(error)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds, or the export has ended."""
        while not condition() and self._thread.is_alive():
            threading.Event().wait(0.002)

    def join(self) -> Export:
        """Wait until it has ended."""
        self._thread.join(40)
        assert not self._thread.is_alive()
        return self.export


def content_of(export: Export) -> bytes:
    """The file of an export that has run."""
    data = b""
    while piece := export.read(64 * 1024, len(data)):
        data += piece
    assert len(data) == export.size_bytes
    return data


def sources(file: Any) -> list[Row]:
    """Partition and offset of each row, sorted."""
    table = file.read()
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def left_in(folder: Path) -> list[str]:
    """Whatever exports have left behind."""
    return sorted(str(path.relative_to(folder)) for path in (folder / "exports").rglob("*"))
