"""Exports of one node, one at a time: from the request to the file that is streamed.

    1. pin the cut: nothing pending at it is forgotten          too old: refused
    2. wait until the node has ingested up to it                not in time: refused
    3. freeze it into a folder                                  no room: refused
    4. the writer's process makes the file                      a damaged slot: failed
    5. unpin; the folder is removed, the file stays open until it is streamed

What is not unpinned after EXPORT_S_MAX is aborted.

`abort` may come at any time and from any thread: the client has gone, the node ends, or its disk
is short. Whatever the end, the pin is gone, the process buried and the folder removed.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import structlog

from delayd.errors import DelaydError, DiskError, is_disk_full
from delayd.node.export.child import NO_ROOM, Child
from delayd.node.export.freezing import freeze
from delayd.node.export.manifest import RESULT, Manifest
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord

log = structlog.get_logger()

WAIT_SLICE_MS = 200
"""How soon a wait for the wheel notices that the export was aborted."""
PAUSE_S = 0.001
"""Between two short pieces of work of an export the node's own threads go first."""
ROW_BYTES_MAX = 100
"""Room that must be free for each message, above `disk_free_min_bytes`."""
EXPORT_S_MAX = 3_600
"""From the pin to its end. Meanwhile hours are not split and files are not unlinked; a hundred
million messages take some ten minutes."""
NODE_ENDS = "the node is being stopped"


class Refusal(Enum):
    """Why there is no file."""

    TOO_OLD = "too-old"
    NOT_REACHED = "not-reached"
    BUSY = "busy"
    NO_ROOM = "no-room"
    TOO_LONG = "too-long"
    FAILED = "failed"


class ExportError(Exception):
    """An export that was refused or has failed; the node is well."""

    def __init__(self, refusal: Refusal, problem: str, **more: Any) -> None:
        super().__init__(problem)
        self.refusal = refusal
        self.problem = problem
        self.more: Mapping[str, Any] = more


class Exporter:
    """Hands out exports. Thread safe."""

    def __init__(self, replica: Replica, clock: Clock, *, folder: Path, node: str) -> None:
        """Remove what a crash has left in `folder`, which belongs to it; DiskError if that fails.

        Only after the wheel was opened: its lock keeps other nodes out of the directory.
        """
        self.replica = replica
        self.clock = clock
        self.folder = folder
        self.node = node
        self._lock = threading.Lock()
        self._current: Export | None = None
        self._is_stopped = False
        try:
            # The folder itself stays: on a full disk there may be no room for another.
            folder.mkdir(exist_ok=True)
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        except OSError as error:
            raise DiskError(
                f"cannot empty {folder}: {error.strerror}",
                remedy="let the user that runs delayd write there, then start it again",
            ) from error
        replica.room_makers.append(self.make_room)

    def begin(self) -> "Export":
        """Return the next export, which the caller closes; ExportError while another one runs."""
        with self._lock:
            if self._is_stopped:
                raise ExportError(Refusal.BUSY, NODE_ENDS)
            if self._current is not None:
                raise ExportError(Refusal.BUSY, "an export is running")
            self._current = Export(self)
            return self._current

    def make_room(self) -> None:
        """Abort the running export, because the disk is short."""
        with self._lock:
            export = self._current
        if export is not None:
            export.abort(
                ExportError(Refusal.NO_ROOM, "the disk is short: the export gave way to the node")
            )

    def stop(self, timeout_s: float) -> None:
        """Abort what runs and let nothing begin; nobody uses the replica afterwards."""
        with self._lock:
            self._is_stopped = True
            export = self._current
        if export is not None:
            export.abort(ExportError(Refusal.BUSY, NODE_ENDS))
            export.at_rest.wait(timeout_s)

    def ended(self, export: "Export") -> None:
        """Forget an export that has given everything back."""
        with self._lock:
            if self._current is export:
                self._current = None


class Export:
    """One export. `run` once, then `read`; `close` always; `abort` from any thread."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self._replica = exporter.replica
        self._lock = threading.Lock()
        self._aborted: ExportError | None = None
        self._child: Child | None = None
        self._file: int | None = None
        self._is_closed = False
        self.size_bytes = 0
        """Of the file, once it has run."""
        self._interrupt = threading.Event()
        self.at_rest = threading.Event()
        """The replica is not used any more."""

    def run(self, record: FrontierRecord, wait_ms: int) -> None:
        """Make the file; ExportError if there is none. Blocks for as long as that takes."""
        began_ms = self._exporter.clock.monotonic_ms()
        try:
            self._run(record, wait_ms)
        except ExportError as error:
            log.warning(
                "export_failed",
                reason=error.refusal.value,
                problem=error.problem,
                step=record.frontier.step,
            )
            raise
        finally:
            self.at_rest.set()
        took_ms = self._exporter.clock.monotonic_ms() - began_ms
        log.info("export_made", step=record.frontier.step, bytes=self.size_bytes, took_ms=took_ms)

    def read(self, size_bytes: int, position: int) -> bytes:
        """Return a piece of the file; empty at its end. ExportError if it was aborted."""
        with self._lock:
            if self._aborted is not None:
                raise self._aborted
            assert self._file is not None, "there is no file to read"
            return os.pread(self._file, size_bytes, position)

    def abort(self, why: ExportError) -> None:
        """End it; its room on the disk is free when `at_rest` is set. Idempotent."""
        with self._lock:
            self._aborted = self._aborted or why
            self._interrupt.set()
            if self._child is not None:
                self._child.kill()
            if self._file is not None:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Give back what it holds; idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None
        self.at_rest.set()
        self._exporter.ended(self)

    def _run(self, record: FrontierRecord, wait_ms: int) -> None:
        self._check()
        ours, theirs = self._replica.settings, record.settings
        if (theirs.cluster, theirs.buffer) != (ours.cluster, ours.buffer):
            raise ExportError(
                Refusal.TOO_OLD,
                f"the cut is of cluster {record.settings.cluster!r} with buffer "
                f"{record.settings.buffer.topic_id}, and not of this node's",
                oldest_step=self._oldest_step(),
            )
        with self._replica.changed:
            is_pinned = self._replica.retention.pin(record.frontier)
        if not is_pinned:
            raise ExportError(
                Refusal.TOO_OLD,
                f"the cut of step {record.frontier.step} is older than what this node still has",
                oldest_step=self._oldest_step(),
            )
        folder = self._exporter.folder / str(record.frontier.step)
        too_long = ExportError(
            Refusal.TOO_LONG,
            f"the export was ended after {EXPORT_S_MAX} s, because the node splits no hours and "
            "removes no files meanwhile: ask another node, or again when this one has less to do",
        )
        limit = threading.Timer(EXPORT_S_MAX, self.abort, [too_long])
        limit.daemon = True
        limit.start()
        try:
            self._wait(record, wait_ms)
            try:
                self._write(record, folder)
            except (OSError, DelaydError) as error:
                refusal = Refusal.NO_ROOM if is_disk_full(error) else Refusal.FAILED
                raise ExportError(refusal, str(error)) from error
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            limit.cancel()
            with self._replica.changed:
                self._replica.retention.unpin()
                self._replica.wheel.release_splits()

    def _oldest_step(self) -> int:
        oldest = self._replica.retention.forgotten
        return 0 if oldest is None else oldest.record.frontier.step

    def _wait(self, record: FrontierRecord, wait_ms: int) -> None:
        """Wait until the node has ingested all that the cut took into account."""
        clock = self._exporter.clock
        deadline_ms = clock.monotonic_ms() + wait_ms
        while True:
            self._check()
            left_ms = max(0, deadline_ms - clock.monotonic_ms())
            if self._replica.wait_ingested(record.frontier, min(WAIT_SLICE_MS, left_ms)):
                return
            if left_ms == 0:
                raise ExportError(
                    Refusal.NOT_REACHED,
                    f"this node has ingested up to {list(self._replica.ingested)}, not to the "
                    f"cut's {list(record.frontier.offsets)}, within {wait_ms} ms",
                )

    def _write(self, record: FrontierRecord, folder: Path) -> None:
        folder.mkdir()
        manifest = Manifest(self._exporter.node, self._replica.wheel.root, record)
        frames = freeze(self._replica, folder, manifest, self._pause)
        needed = self._replica.room.limit_bytes + ROW_BYTES_MAX * frames
        free = self._replica.wheel.free_bytes()
        if free < needed:
            raise ExportError(
                Refusal.NO_ROOM,
                f"{free} bytes are free, an export of up to {frames} messages needs {needed}",
            )
        with self._lock:
            if self._aborted is None:
                self._child = Child(folder)
        code, problem = (0, "") if self._child is None else self._child.wait()
        with self._lock:
            self._child = None
            if self._aborted is not None:
                raise self._aborted
            if code != 0:
                raise ExportError(Refusal.NO_ROOM if code == NO_ROOM else Refusal.FAILED, problem)
            self._file = os.open(folder / RESULT, os.O_RDWR | os.O_CLOEXEC)
            self.size_bytes = os.fstat(self._file).st_size

    def _check(self) -> None:
        if self._aborted is not None:
            raise self._aborted

    def _pause(self) -> None:
        self._interrupt.wait(PAUSE_S)
        self._check()
