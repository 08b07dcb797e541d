"""`delayd bench wheel` with few messages: all its figures come, and nothing is left behind.

Not here: how large the figures are.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from delayd.bench.errors import BenchError
from delayd.bench.figures import Figure
from delayd.bench.process_costs import anon_peak, memory_of, tree_of, written_bytes
from delayd.bench.wheels import jobs, measuring
from delayd.bench.wheels.jobs import drain
from delayd.bench.wheels.measuring import bench_wheel
from delayd.bench.wheels.wheel_driver import PARTITIONS, Batch, DrivenWheel, Load
from delayd.commands.cli import app
from delayd.runtime.clock import SystemClock
from replication.ids import NOTHING
from replication.rank import SLOT_MS

MESSAGES = 1_000
RUNS = 1
BASE_MS = 1_785_000_000_000
UNITS = {
    "ingest-60s": "messages/s",
    "ingest-60s-cpu": "us/message",
    "ingest-2h": "messages/s",
    "ingest-2h-cpu": "us/message",
    "ingest-30d": "messages/s",
    "ingest-30d-cpu": "us/message",
    "read-uniform": "messages/s",
    "read-uniform-memory": "MiB",
    "read-one-ms": "messages/s",
    "read-one-ms-memory": "MiB",
    "pending-anon": "MiB",
    "pending-anon-peak": "MiB",
    "pending-file": "MiB",
    "open-after-kill": "ms",
    "opened-anon": "MiB",
    "cost": "us/message",
    "written": "bytes/byte",
    "written-at-ingest": "bytes/byte",
    "frame-size": "bytes/byte",
}
COMPARED = {
    *("ingest-60s", "ingest-2h", "ingest-30d", "read-uniform", "read-one-ms"),
    *("pending-anon", "pending-anon-peak", "pending-file", "cost"),
}
MAY_BE_NOTHING = {"read-uniform-memory", "read-one-ms-memory", "written", "written-at-ingest"}


def counts_writes(folder: Path) -> bool:
    """Is it on a block device? In memory nothing is ever written to one."""
    before = written_bytes()
    (folder / "probe").write_bytes(b"x" * 1_000_000)
    return written_bytes() - before >= 1_000_000


@pytest.fixture
def load() -> Load:
    return Load(0, first_due_ms=BASE_MS, span_ms=60_000)


@pytest.fixture
def wheel(tmp_path: Path, load: Load) -> Iterator[DrivenWheel]:
    wheel = DrivenWheel(tmp_path, BASE_MS)
    wheel.store(load.take(MESSAGES), load.offsets)
    wheel.checkpoint()
    yield wheel
    wheel.close()


@pytest.mark.long
def test_a_run_tells_each_figure_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(tree_of(os.getpid()))
    told: list[str] = []

    figures = bench_wheel(MESSAGES, RUNS, tmp_path / "made", told.append)

    found = {figure.name: figure for figure in figures}
    assert {name: figure.unit for name, figure in found.items()} == UNITS
    assert all(len(figure.runs) == RUNS for figure in figures)
    assert {name for name, figure in found.items() if figure.ratio is not None} == COMPARED
    assert all(found[name].value > 0 for name in UNITS if name not in MAY_BE_NOTHING)
    if counts_writes(tmp_path):
        # Everything is written once at least.
        assert found["written"].value > found["written-at-ingest"].value > 1
    # Frames are larger than what a producer sent.
    assert 1 < found["frame-size"].value < 2
    assert "10 pending" in found["cost"].against and "dropped" in found["cost"].against
    assert told[0] == "run 1: ingest over 60s"
    assert list((tmp_path / "made").iterdir()) == []
    assert set(tree_of(os.getpid())) == before


def test_what_waits_to_be_killed_stores_one_batch_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the kill comes: what is cut off would count as not written."""
    stored: list[int] = []
    store = DrivenWheel.store

    def counted(wheel: DrivenWheel, batch: Batch, offsets: tuple[int, ...]) -> None:
        stored.append(len(batch.frames))
        store(wheel, batch, offsets)

    told: list[Any] = []
    monkeypatch.setattr(DrivenWheel, "store", counted)
    monkeypatch.setattr(jobs, "say", told.append)
    monkeypatch.setattr(jobs, "STAY_S_MAX", 0)
    found = jobs.ingest(str(tmp_path), MESSAGES, 60_000, BASE_MS, stay=True)
    assert told == [found, "on"]
    assert sum(stored) == MESSAGES + jobs.BATCH_MESSAGES
    again = DrivenWheel(tmp_path, BASE_MS)
    assert again.stored == MESSAGES
    again.close()


def test_a_part_that_fails_says_why_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "SPREADS_MS", {"60s": "a minute"})
    before = set(tree_of(os.getpid()))
    with pytest.raises(BenchError, match=r"ended with 1: .*TypeError"):
        bench_wheel(MESSAGES, RUNS, tmp_path, lambda what: None)
    assert list(tmp_path.iterdir()) == []
    assert set(tree_of(os.getpid())) == before


def test_the_command_prints_one_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    cost = Figure("cost", "us/message", (8.126, 9.0, 7.0), "100 pending", (4.0, 4.5, 7.0))

    def few(*arguments: object) -> list[Figure]:
        asked.append(arguments[:3])
        return [cost]

    monkeypatch.setattr("delayd.bench.commands.bench_wheel", few)
    told = CliRunner().invoke(app, ["bench", "wheel", "--json", "--dir", str(tmp_path)])
    assert told.exit_code == 0
    found = json.loads(told.stdout)
    assert asked == [(10_000_000, 3, tmp_path)]
    assert (found["bench"], set(found)) == ("wheel", {"bench", "machine", "sizes", "figures"})
    assert found["figures"] == {"cost": cost.to_json()}
    assert found["figures"]["cost"]["runs"] == [8.13, 9.0, 7.0]


def test_a_load_goes_on_where_a_wheel_ends(load: Load) -> None:
    first = load.take(333)
    rest = Load(333, first_due_ms=BASE_MS, span_ms=60_000).take(667)
    sources = [(f.partition, f.offset) for batch in (first, rest) for f in batch.frames]
    assert sources == [(n % PARTITIONS, n // PARTITIONS) for n in range(MESSAGES)]
    assert sum(load.offsets) == 333
    assert len(first.ids) + len(rest.ids) == MESSAGES // 10
    assert all(0 <= frame.due_ms - BASE_MS < 60_000 for frame in first.frames)


def test_a_slot_is_read_in_rank_order(wheel: DrivenWheel, load: Load) -> None:
    slot = BASE_MS // SLOT_MS
    frames = [frame for run in wheel.read_slot(slot) for frame in run]
    assert len(frames) > 5
    assert [f[:3] for f in frames] == sorted(f[:3] for f in frames)
    assert {frame.due_ms // SLOT_MS for frame in frames} == {slot}


def test_a_drained_wheel_has_no_file_and_no_id_left(wheel: DrivenWheel, tmp_path: Path) -> None:
    ids = Load(0, first_due_ms=BASE_MS, span_ms=60_000).take(MESSAGES).ids
    assert all(wheel._wheel.ids.state(partition, name) == state for partition, name, state in ids)
    wheel.close()
    drain(str(tmp_path), 60_000, BASE_MS)
    again = DrivenWheel(tmp_path, BASE_MS)
    assert (again.stats.slots, again.stats.files_to_unlink, again.stored) == (0, 0, MESSAGES)
    assert all(again._wheel.ids.state(partition, name) == NOTHING for partition, name, _ in ids)
    again.close()


def test_written_bytes_are_those_of_a_process() -> None:
    # Somewhere a checkout is on a disk.
    with tempfile.NamedTemporaryFile(dir=Path(__file__).parent) as file:
        before = written_bytes()
        file.write(b"x" * 1_000_000)
        file.flush()
        assert written_bytes() - before >= 1_000_000


def test_memory_is_that_of_a_process() -> None:
    before = memory_of()
    with anon_peak(os.getpid()) as peak:
        held = b"x" * 50_000_000
        after = memory_of()
        until_ms = SystemClock().monotonic_ms() + 30_000
        while peak.peak_bytes < after.anon - 10_000_000:
            assert SystemClock().monotonic_ms() < until_ms
        del held
    assert 45_000_000 < after.anon - before.anon < 100_000_000
    assert memory_of(2**22 + 1) == (0, 0)
