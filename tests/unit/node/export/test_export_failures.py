"""Exports that are refused, fail or are ended: the node goes on, and nothing is left of them.

Source: docs/design/storage.md, "Exports".
"""

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from exporting_node import (
    BEGIN_MS,
    SETTINGS,
    ExportingNode,
    RunningExport,
    cancel,
    cut,
    left_in,
    schedule,
    sources,
)
from wheel_disks import ObservedDatabase, flip

from delayd.cluster.frontier_log import SeenFrontier
from delayd.errors import DiskError
from delayd.node.export import exporter
from delayd.node.export.child import ORPHANED, Child
from delayd.node.export.exporter import ExportError, Refusal
from delayd.node.export.manifest import KILLS, SEGMENTS, Manifest, write_manifest
from delayd.node.export.segments import DamagedSegmentError
from replication.settings import Topic

SLOT = (BEGIN_MS + 3_000) // 1000
AT = cut(1, (40, 0), cursor_ms=BEGIN_MS + 1_000)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ExportingNode]:
    """Forty messages, four in each second; the first second is done."""
    made = ExportingNode(tmp_path, hold_ms=0)
    made.begin()
    made.take(*[schedule(n, BEGIN_MS + 250 * n) for n in range(40)])
    made.see(AT)
    yield made
    made.close()


def failure(node: ExportingNode, at: SeenFrontier = AT, wait_ms: int = 0) -> ExportError:
    """How an export fails; whatever it was, nothing is left of it and the next one works."""
    with pytest.raises(ExportError) as caught:
        node.export(at, wait_ms)
    is_clean(node)
    return caught.value


def damage(node: ExportingNode) -> str:
    """What the writer says, run in this process."""
    with pytest.raises(DamagedSegmentError) as caught:
        node.written_here(AT)
    return str(caught.value)


def is_clean(node: ExportingNode) -> None:
    """No files, no pin, room for the next export."""
    assert left_in(node.folder) == []
    assert node.replica.retention._pinned is None
    node.exporter.begin().close()


def slot_file(node: ExportingNode) -> Path:
    """The file of the slot that is damaged."""
    node.replica.checkpoint()
    return node.folder / "slots" / str(SLOT // 3600) / f"{SLOT}.0"


# --- Damage


def test_a_flipped_bit_is_named_with_slot_and_bytes(node: ExportingNode) -> None:
    file = slot_file(node)
    length = file.stat().st_size // 4
    flip(file, length + 50, 2)
    error = failure(node)
    assert error.refusal is Refusal.FAILED
    expected = f"slot {SLOT}: the frame at bytes {length} to {2 * length} has a wrong CRC"
    assert error.problem == expected
    node.replica.checkpoint()
    assert node.replica.ingested == (40, 0), "the node itself goes on"


@pytest.mark.parametrize("whole_frames", [True, False])
def test_a_file_that_is_too_short_is_named(node: ExportingNode, whole_frames: bool) -> None:
    file = slot_file(node)
    data = file.read_bytes()
    kept = len(data) // 4 * 3 - (0 if whole_frames else 7)
    file.write_bytes(data[:kept])
    problem = f"slot {SLOT}: the frame at bytes {kept} to {len(data)} is cut off"
    assert damage(node) == problem


def test_a_file_that_is_not_there_is_named(node: ExportingNode) -> None:
    slot_file(node).unlink()
    assert damage(node).startswith(f"slot {SLOT}: ")


def test_a_whole_frame_in_place_of_another_is_found(node: ExportingNode) -> None:
    """Every CRC is right; count and sum are not those that the node has."""
    file = slot_file(node)
    data = file.read_bytes()
    length = len(data) // 4
    file.write_bytes(data[length : 2 * length] + data[length:])
    assert "which are not the 4 that the node has" in damage(node)


def test_what_is_appended_behind_the_frozen_bytes_is_no_damage(node: ExportingNode) -> None:
    """A crash of the node may cut such bytes off; the file only grows while it runs."""
    file = slot_file(node)
    data = file.read_bytes()
    file.write_bytes(data + data[: len(data) // 3])
    assert len(node.pending(AT)) == 36


def test_a_disk_that_fails_while_tails_are_written_out_ends_the_node(node: ExportingNode) -> None:
    """docs/design/storage.md, "Failures": as after any failed write."""
    node.take(schedule(40, BEGIN_MS + 5_000))
    node.disk.fails = True
    error = failure(node, cut(1, (41, 0)))
    assert error.refusal is Refusal.FAILED and "cannot append" in error.problem
    node.disk.fails = False
    with pytest.raises(DiskError, match="stopped after an earlier failure"):
        node.replica.checkpoint()


@pytest.mark.parametrize("lost", [0, 13, 14, 15])
def test_a_list_of_kills_that_is_cut_short_is_found(node: ExportingNode, lost: int) -> None:
    """Ten slots, totals, two answers and progress come behind the kills: one must be seen."""
    node.take(schedule(40, BEGIN_MS + 9_000, id="a"), schedule(41, BEGIN_MS + 9_000, id="c"))
    node.take(cancel(42, "a"), cancel(43, "c"))
    node.replica.checkpoint()
    catalogue = node.replica.wheel._catalogue
    catalogue._db = ObservedDatabase(catalogue._db, lost)
    at = cut(2, (44, 0), cursor_ms=BEGIN_MS + 1_000)
    if lost < 14:
        assert len(node.pending(at)) == 36
    else:
        error = failure(node, at)
        assert error.refusal is Refusal.FAILED and "LevelDB" in error.problem
    catalogue._db = catalogue._db._database


# --- Refusals


def test_a_cut_of_another_cluster_is_refused(node: ExportingNode) -> None:
    again = replace(SETTINGS, buffer=Topic("delayd-buffer", "id-9"))
    error = failure(node, cut(1, (40, 0), settings=again))
    assert error.refusal is Refusal.TOO_OLD and error.more == {"oldest_step": 0}
    assert "id-9" in error.problem


def test_a_node_that_catches_up_in_time_exports(node: ExportingNode) -> None:
    later = threading.Timer(0.05, lambda: node.take(schedule(40, BEGIN_MS + 9_999)))
    later.start()
    file = node.export(cut(1, (41, 0), cursor_ms=BEGIN_MS + 1_000), wait_ms=20_000)
    later.join()
    assert (0, 40) in sources(file) and len(sources(file)) == 37


def test_one_export_at_a_time(node: ExportingNode) -> None:
    first = node.exporter.begin()
    with pytest.raises(ExportError, match="an export is running"):
        node.exporter.begin()
    first.run(AT.record, 0)
    with pytest.raises(ExportError, match="an export is running"):
        node.exporter.begin()
    first.close()
    node.exporter.begin().close()


# --- Ends


class Running(RunningExport):
    """An export whose writer stands still."""

    def __init__(self, node: ExportingNode) -> None:
        super().__init__(node, AT)
        self.wait_for(lambda: self.export._child is not None)
        assert self.export._child is not None
        self.pid = self.export._child.pid
        os.kill(self.pid, signal.SIGSTOP)

    def ended(self) -> ExportError:
        """How it ended; its writer is gone and buried."""
        self.join().close()
        with pytest.raises(ProcessLookupError):
            os.kill(self.pid, 0)
        [error] = self.failed
        return error


def test_a_writer_that_is_killed_fails_the_export_only(node: ExportingNode) -> None:
    running = Running(node)
    os.kill(running.pid, signal.SIGKILL)
    error = running.ended()
    assert error.refusal is Refusal.FAILED and error.problem == "the writer ended with -9"
    is_clean(node)
    assert len(sources(node.export(AT))) == 36


def test_an_export_that_is_aborted_ends_its_writer(node: ExportingNode) -> None:
    running = Running(node)
    gone = ExportError(Refusal.BUSY, "the client went away")
    running.export.abort(gone)
    assert running.ended() is gone
    is_clean(node)


def test_an_export_that_takes_too_long_is_ended_and_not_the_node(
    node: ExportingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/storage.md, Hour files: splits and unlinks are held meanwhile."""
    monkeypatch.setattr(exporter, "EXPORT_S_MAX", 0.1)
    error = failure(node, cut(1, (41, 0)), wait_ms=60_000)
    assert error.refusal is Refusal.TOO_LONG and "ask another node" in error.problem
    monkeypatch.undo()
    node.replica.checkpoint()
    assert len(sources(node.export(AT))) == 36


def test_the_limit_of_an_export_holds_while_it_is_written_and_no_longer(
    node: ExportingNode,
) -> None:
    running = Running(node)
    [limit] = limits_under_way()
    assert limit.interval == exporter.EXPORT_S_MAX
    limit.function(*limit.args)
    assert running.ended().refusal is Refusal.TOO_LONG
    is_clean(node)
    export = node.exporter.begin()
    export.run(AT.record, 0)
    limit.join(30)
    assert limits_under_way() == [], "what is streamed is not ended"
    export.close()


def limits_under_way() -> list[threading.Timer]:
    return [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, threading.Timer) and not thread.finished.is_set()
    ]


def test_a_node_that_stops_ends_its_export_and_begins_no_other(node: ExportingNode) -> None:
    running = Running(node)
    node.exporter.stop(20)
    assert running.export.at_rest.is_set(), "and nobody uses the wheel any more"
    assert running.ended().refusal is Refusal.BUSY
    with pytest.raises(ExportError, match="being stopped"):
        node.exporter.begin()
    assert left_in(node.folder) == []


def test_a_writer_is_nicer_than_its_node_and_knows_no_secret(
    node: ExportingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYD_CLUSTER_KEY", "9e107d9d372bb682")
    running = Running(node)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, running.pid) == min(own + 10, 19)
    assert b"9e107d9d372bb682" not in Path(f"/proc/{running.pid}/environ").read_bytes()
    os.kill(running.pid, signal.SIGKILL)
    running.ended()


def test_a_writer_ends_when_its_node_is_gone_whatever_it_waits_for(
    node: ExportingNode, tmp_path: Path
) -> None:
    """A node that is killed closes the pipe, and does nothing else any more."""
    folder = tmp_path / "never-ending"
    folder.mkdir()
    write_manifest(folder, Manifest("n", str(tmp_path), AT.record))
    (folder / KILLS).touch()
    os.mkfifo(folder / SEGMENTS)
    process = Child(folder)._process
    with process:
        assert process.stdin is not None
        process.stdin.close()
        try:
            assert process.wait(120) == ORPHANED
        finally:
            process.kill()


def test_an_export_that_nobody_reads_is_gone_when_it_is_closed(node: ExportingNode) -> None:
    export = node.exporter.begin()
    export.run(AT.record, 0)
    assert left_in(node.folder) == [], "it has no name while it is streamed"
    export.close()
    export.close()
    is_clean(node)


def test_what_a_crash_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    first = ExportingNode(tmp_path)
    first.take(schedule(0, BEGIN_MS))
    first.replica.checkpoint()
    (tmp_path / "exports" / "7").mkdir()
    (tmp_path / "exports" / "7" / "pending.parquet").write_bytes(b"x" * 1_000)
    first.close()
    again = ExportingNode(tmp_path)
    try:
        assert left_in(tmp_path) == [] and again.replica.ingested == (1, 0)
    finally:
        again.close()
