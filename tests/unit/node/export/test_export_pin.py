"""What a node may still export: the pinned cut, what was forgotten, and restarts.

Source: docs/design/storage.md, "Forgetting" and "Exports".
"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from exporting_node import (
    BEGIN_MS,
    ExportingNode,
    RunningExport,
    cancel,
    cut,
    left_in,
    schedule,
    sources,
)

from delayd.cluster.frontier_log import SeenFrontier
from delayd.node.export.exporter import ExportError, Refusal
from delayd.node.replica.forgetting import forget_covered

HOUR_MS = 3_600_000

Opener = Callable[..., ExportingNode]


@pytest.fixture
def open_node(tmp_path: Path) -> Iterator[Opener]:
    """Opens the node; one that was open before ends as by a crash."""
    opened: list[ExportingNode] = []

    def open_it(hold_ms: int = 0, free_min_bytes: int = 0) -> ExportingNode:
        for before in opened:
            before.close()
        opened.append(ExportingNode(tmp_path, hold_ms=hold_ms, free_min_bytes=free_min_bytes))
        opened[-1].begin()
        return opened[-1]

    yield open_it
    for node in opened:
        node.close()


def refused(node: ExportingNode, at: SeenFrontier, wait_ms: int = 0) -> ExportError:
    """How an export at this cut is refused."""
    with pytest.raises(ExportError) as caught:
        node.export(at, wait_ms)
    assert left_in(node.folder) == []
    node.exporter.begin().close()
    return caught.value


def ready(node: ExportingNode) -> ExportingNode:
    """Six messages a second apart, and one in an hour."""
    node.take(*[schedule(n, BEGIN_MS + 1_000 * n) for n in range(6)])
    node.take(schedule(0, BEGIN_MS + HOUR_MS, partition=1))
    return node


def passed(step: int, count: int, append_ms: int = 0) -> SeenFrontier:
    return cut(
        step, (6, 1), cursor_ms=BEGIN_MS + 1_000 * count, append_ms=append_ms or BEGIN_MS + step
    )


def waiting_at(node: ExportingNode, at: SeenFrontier) -> RunningExport:
    """An export that waits for the node to ingest up to its cut, and so has pinned it."""
    running = RunningExport(node, at, wait_ms=30_000)
    running.wait_for(lambda: node.replica.retention._pinned is not None)
    return running


def test_a_pinned_cut_is_kept_whole_and_then_forgetting_goes_on(open_node: Opener) -> None:
    """Rules: export-pins"""
    node = ready(open_node())
    at = cut(1, (6, 2), cursor_ms=BEGIN_MS + 2_000)
    node.see(at)
    waiting = waiting_at(node, at)
    node.see(cut(2, (6, 2), cursor_ms=BEGIN_MS + 5_000))
    node.replica.checkpoint()
    assert node.replica.wheel.stats().frames == 7, "the cut that is pinned needs them"
    node.take(schedule(1, BEGIN_MS + HOUR_MS, partition=1))
    node.replica.checkpoint()
    assert node.replica.wheel.stats().frames == 8
    export = waiting.join()
    assert waiting.failed == [] and export.size_bytes > 0
    export.close()
    node.replica.checkpoint()
    assert node.replica.wheel.stats().frames == 3
    assert refused(node, at).more == {"oldest_step": 2}


def test_up_to_a_pinned_cut_forgetting_goes_on(open_node: Opener) -> None:
    """Rules: export-pins"""
    node = ready(open_node(hold_ms=100))
    node.see(passed(1, 2))
    pinned = cut(2, (6, 2), cursor_ms=BEGIN_MS + 4_000, append_ms=BEGIN_MS + 50)
    node.see(pinned)
    waiting = waiting_at(node, pinned)
    node.see(cut(3, (6, 2), cursor_ms=BEGIN_MS + 5_000, append_ms=BEGIN_MS + 101))
    node.replica.checkpoint()
    assert node.replica.wheel.stats().frames == 5, "what the frontier before it covers"
    waiting.export.abort(ExportError(Refusal.BUSY, "enough"))
    waiting.join().close()


def test_the_oldest_cut_is_the_one_by_which_was_forgotten(open_node: Opener) -> None:
    node = ready(open_node())
    forgotten = node.replica.retention.forgotten
    assert forgotten is not None and forgotten.record.frontier.step == 0, "nothing"
    assert len(node.pending(passed(1, 0))) == 7, "nothing was forgotten: any cut will do"
    node.see(passed(2, 2))
    node.replica.checkpoint()
    oldest = node.replica.retention.forgotten
    assert oldest is not None and oldest.record.frontier.step == 2
    assert oldest.append_ms == BEGIN_MS + 2
    assert [offset for _, offset in node.pending(passed(2, 2))] == [2, 3, 4, 5, 0]
    error = refused(node, passed(1, 0))
    assert error.refusal is Refusal.TOO_OLD and error.more == {"oldest_step": 2}


@pytest.mark.parametrize(
    "older",
    [
        cut(9, (6, 1), cursor_ms=BEGIN_MS + 1_999),
        cut(9, (5, 1), cursor_ms=BEGIN_MS + 9_000),
        cut(9, (6, 1), cursor_ms=BEGIN_MS + 9_000, own_writes=(-1, -2)),
    ],
)
def test_a_cut_is_too_old_if_any_component_is(open_node: Opener, older: SeenFrontier) -> None:
    """Whatever its step says: a cut comes from outside."""
    node = ready(open_node())
    node.see(passed(2, 2))
    node.replica.checkpoint()
    assert refused(node, older).refusal is Refusal.TOO_OLD


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_restarted_node_knows_what_it_has_forgotten(open_node: Opener, restarts: int) -> None:
    node = ready(open_node())
    node.see(passed(2, 2))
    node.replica.checkpoint()
    for _ in range(restarts):
        node = open_node(hold_ms=HOUR_MS)
        node.see(passed(5, 4))
        node.replica.checkpoint()
    error = refused(node, passed(1, 0))
    assert error.refusal is Refusal.TOO_OLD and error.more == {"oldest_step": 2}
    assert [offset for _, offset in node.pending(passed(2, 2))] == [2, 3, 4, 5, 0]


def test_a_restart_before_the_checkpoint_has_forgotten_nothing(open_node: Opener) -> None:
    node = ready(open_node())
    node.replica.checkpoint()
    node.see(passed(2, 2))
    forget_covered(node.replica.wheel, node.replica.retention, 0)
    assert node.replica.wheel.stats().frames == 5
    assert len(open_node().pending(passed(1, 0))) == 7


def test_what_was_never_stored_counts_as_forgotten_after_a_restart_too(open_node: Opener) -> None:
    """A node that rebuilds its wheel does not store what an old frontier covers."""
    node = open_node()
    node.see(passed(2, 2))
    node.replica.checkpoint()
    ready(node)
    assert node.replica.wheel.stats().frames == 5
    node.replica.checkpoint()
    assert refused(open_node(hold_ms=HOUR_MS), passed(1, 0)).refusal is Refusal.TOO_OLD


def test_forgotten_kills_are_never_needed_at_a_later_cut(open_node: Opener) -> None:
    node = open_node()
    node.take(schedule(0, BEGIN_MS + 1_000, id="a"), schedule(1, BEGIN_MS + 9_000, id="c"))
    node.take(cancel(2, "a"), cancel(3, "c"), schedule(4, BEGIN_MS + 9_000))
    node.replica.checkpoint()
    at = cut(1, (5, 0), cursor_ms=BEGIN_MS + 5_000)
    node.see(at)
    for _ in range(2):
        node.replica.checkpoint()
    assert [len(run) for run in node.replica.wheel.ids.kill_lines(0) if run] == [1]
    assert node.pending(at) == [(0, 4)]


def test_while_everything_goes_on_a_cut_gives_the_same_rows(open_node: Opener) -> None:
    """Appends, cancels of what is pending at the cut, forgetting and checkpoints beside it."""
    node = open_node()
    ids = [f"id-{n}" for n in range(400)]
    asked = [schedule(n, BEGIN_MS + 5_000 + 20 * n, id=id) for n, id in enumerate(ids)]
    for partition in (0, 1):
        node.take(*[record for record in asked if record.partition == partition])
    at = cut(1, (400, 400), cursor_ms=BEGIN_MS + 6_000)
    node.see(at)
    expected = sorted((r.partition, r.offset) for n, r in enumerate(asked) if n >= 50)
    ending = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for n, id in enumerate(ids):
                offset = 400 + 3 * n
                record = cancel(offset, id)
                node.take(record, schedule(offset + 1, BEGIN_MS, partition=record.partition))
                far_ms = BEGIN_MS + 5_000 + 31 * n
                node.take(schedule(offset + 2, far_ms, partition=record.partition))
                node.see(cut(2 + n, (400, 400), cursor_ms=BEGIN_MS + 6_000 + 10 * n))
                if n % 5 == 0:
                    node.replica.checkpoint()
                if ending.wait(0.005):
                    return
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=work)
    # The pin that an export of its own would take for each.
    assert node.replica.retention.pin(at.record.frontier)
    worker.start()
    try:
        for _ in range(8):
            assert node.pending(at) == expected
    finally:
        ending.set()
        worker.join()
        node.replica.retention.unpin()
        node.replica.wheel.release_splits()
    assert failed == []
    assert sources(node.export(at)) == expected


# --- The disk


def test_an_export_gives_way_to_a_node_whose_disk_is_short(open_node: Opener) -> None:
    node = ready(open_node(free_min_bytes=1_000))
    at = cut(1, (6, 9), cursor_ms=BEGIN_MS + 2_000)
    node.see(at)
    waiting = waiting_at(node, at)
    node.disk.free = 999
    node.replica.checkpoint()
    waiting.join().close()
    assert [error.refusal for error in waiting.failed] == [Refusal.NO_ROOM]
    assert left_in(node.folder) == []


def test_a_file_that_is_being_streamed_gives_its_room_back(open_node: Opener) -> None:
    node = ready(open_node(free_min_bytes=1_000))
    export = node.exporter.begin()
    export.run(passed(1, 2).record, 0)
    assert export.read(10, 0) == export.read(10, 0) != b""
    node.disk.free = 999
    node.replica.checkpoint()
    with pytest.raises(ExportError) as caught:
        export.read(10, 0)
    assert caught.value.refusal is Refusal.NO_ROOM
    assert export._file is not None and os.fstat(export._file).st_size == 0, "its room is free"
    export.close()


def test_an_export_needs_room_above_the_watermark(open_node: Opener) -> None:
    node = ready(open_node(free_min_bytes=1_000))
    node.disk.free = 1_000 + 100 * 5 - 1
    assert refused(node, passed(1, 2)).refusal is Refusal.NO_ROOM
    node.disk.free += 1
    assert len(sources(node.export(passed(1, 2)))) == 5
