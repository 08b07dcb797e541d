"""`delayd wheel export`: the same file as the node's own export, or none at all.

Source: docs/design/storage.md, "Exports".
"""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from exporting_node import BEGIN_MS, SETTINGS, ExportingNode, cancel, cut, schedule, sources
from test_wheel_verify import files_in
from typer.testing import CliRunner
from wheel_disks import flip

from delayd.bus import Record
from delayd.cluster.frontier_log import SeenFrontier
from delayd.commands.examine.commands import app
from delayd.commands.examine.exporting import Exported, export
from delayd.commands.examine.showing import exported_lines
from delayd.errors import ConfigError, CorruptionError, DiskError, ExitCode
from delayd.node.export.freezing import segments_from
from delayd.node.export.rows import PendingFile

HOUR_MS = 3_600_000
MESSAGES = 400
CANCELS = 80
CUT = cut(
    7, (MESSAGES + CANCELS - 20,) * 2, cursor_ms=BEGIN_MS + 20_000, append_ms=BEGIN_MS + 60_000
)
"""Some cancels lie beyond it, and some messages are delivered."""


def requests() -> tuple[list[Record], list[Record]]:
    """Messages with ids, within a minute and up to eight hours ahead, then cancels of some."""
    random = Random(3)
    asked = [
        schedule(
            n,
            BEGIN_MS + random.choice([random.randrange(60_000), random.randrange(8 * HOUR_MS)]),
            id=f"id-{n}",
            topic=f"topic-{n % 5}",
            value=random.randbytes(30),
        )
        for n in range(MESSAGES)
    ]
    cancels = [
        cancel(MESSAGES + n, f"id-{m}")
        for n, m in enumerate(random.sample(range(MESSAGES), CANCELS))
    ]
    return asked, cancels


def take(node: ExportingNode, records: list[Record]) -> None:
    node.take(*sorted(records, key=lambda record: (record.partition, record.offset)))


def stopped(folder: Path, *, pieces: int = 0, at: SeenFrontier | None = CUT) -> Path:
    """The data directory of a node that has taken in the requests, split so many pieces, and
    stopped."""
    node = ExportingNode(folder)
    asked, cancels = requests()
    take(node, asked)
    node.replica.checkpoint()
    for _ in range(pieces):
        assert node.replica.split_some(BEGIN_MS + 5 * HOUR_MS)
    take(node, cancels)
    last = MESSAGES + CANCELS
    node.take(*(schedule(last, BEGIN_MS + HOUR_MS, partition=partition) for partition in (0, 1)))
    if at is not None:
        node.see(at)
    node.replica.checkpoint()
    node.close()
    return folder


def exported(directory: Path, file: Path, **more: Any) -> Exported:
    return export(directory, file, lambda done, total: None, **more)


def content(file: Any) -> list[dict[str, Any]]:
    """All rows, by source."""
    rows: list[dict[str, Any]] = file.read().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.usefixtures("dense_hours")
@pytest.mark.parametrize("pieces", [0, 1, 3, 8])
def test_the_file_is_the_one_that_the_node_itself_would_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Also where an hour lies half in its file and half in its slots, with killed messages in
    both."""
    monkeypatch.setattr("delayd.wheel.near_hours.SPLIT_BYTES", 2_500)
    directory = stopped(tmp_path / "data", pieces=pieces)
    hours = {path.parent for path in directory.glob("slots/*/hour.*")}
    is_half_split = any(list(hour.glob("[0-9]*")) for hour in hours)
    assert is_half_split == (pieces in (1, 8)), "3 pieces are exactly the first hour"
    before = files_in(directory)
    told = exported(directory, tmp_path / "pending.parquet")
    assert files_in(directory) == before
    node = ExportingNode(directory)
    theirs = node.written_here(CUT)
    node.close()
    ours = pq.ParquetFile(tmp_path / "pending.parquet")
    assert content(ours) == content(theirs)
    assert ours.schema_arrow.equals(theirs.schema_arrow)
    metadata, wanted = (
        {name: text for name, text in file.metadata.metadata.items() if b"delayd" in name}
        for file in (ours, theirs)
    )
    assert metadata == {**wanted, b"delayd.node": str(directory).encode()}
    assert told.rows == ours.metadata.num_rows > 200
    assert told.bytes == (tmp_path / "pending.parquet").stat().st_size
    assert told.cut == CUT.record.frontier


def test_the_killed_and_the_delivered_are_not_in_it_and_what_is_beyond_the_cut_neither(
    tmp_path: Path,
) -> None:
    asked, cancels = requests()
    exported(stopped(tmp_path / "data"), tmp_path / "file")
    below = CUT.record.frontier.offsets[0]
    killed = {record.key for record in cancels if record.offset < below}
    assert any(record.offset >= below for record in cancels)
    expected = [
        (record.partition, record.offset)
        for record in asked
        if record.key not in killed
        and int(dict(record.headers)["delayd-due"] or b"") >= BEGIN_MS + 20_000
    ]
    assert sources(pq.ParquetFile(tmp_path / "file")) == sorted(expected)


def test_the_audit_takes_it(tmp_path: Path) -> None:
    """delayd/audit/run.py: columns, node and step are what it asks for."""
    from delayd.audit.bounds import Bounds, ShardCut
    from delayd.audit.cut import Export
    from delayd.audit.run import _count_of

    directory = stopped(tmp_path / "data")
    told = exported(directory, tmp_path / "file")
    seen = CUT
    ends = (MESSAGES + CANCELS + 1,) * 2
    bounds = Bounds(
        settings=SETTINGS,
        frontier=seen.record.frontier,
        cuts=(ShardCut(seen.offset, seen.append_ms),),
        buffer_starts=(0, 0),
        buffer_ends=ends,
        buffer_latest=ends,
        trimmed_ms={},
        target_partitions={},
        proofs_checked=True,
    )
    given = Export(str(directory), "", tmp_path / "file", None)
    assert _count_of(given, tmp_path / "file", bounds) == (told.rows, None)


# --- One file, or none


def test_a_file_that_is_there_is_only_replaced_by_force(tmp_path: Path) -> None:
    directory = stopped(tmp_path / "data")
    file = tmp_path / "out" / "file"
    file.parent.mkdir()
    file.write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        exported(directory, file)
    assert file.read_text() == "mine"
    assert exported(directory, file, overwrite=True).rows == pq.ParquetFile(file).metadata.num_rows
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    directory = stopped(tmp_path / "data")
    file = tmp_path / "out" / "file"
    file.parent.mkdir()

    def meanwhile(done: int, total: int) -> None:
        file.write_text("theirs")

    with pytest.raises(ConfigError, match="is there already"):
        export(directory, file, meanwhile)
    assert file.read_text() == "theirs" and list(file.parent.iterdir()) == [file]


def remove(path: Path) -> None:
    path.unlink()


def flip_one(path: Path) -> None:
    flip(path, 60, 4)


@pytest.mark.parametrize("name", ["hour.*", "[0-9]*"])
@pytest.mark.parametrize("harm", [remove, flip_one])
def test_damage_leaves_what_was_there_and_says_what_to_do(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    directory = stopped(tmp_path / "data")
    harm(sorted(directory.glob(f"slots/*/{name}"))[-1])
    file = tmp_path / "out" / "file"
    file.parent.mkdir()
    file.write_text("mine")
    with pytest.raises(CorruptionError, match=f"delayd wheel verify {directory}"):
        exported(directory, file, overwrite=True)
    assert file.read_text() == "mine" and list(file.parent.iterdir()) == [file]


def test_a_wheel_that_has_not_come_to_its_frontier_is_refused(tmp_path: Path) -> None:
    beyond = cut(7, (MESSAGES + CANCELS + 1, MESSAGES + CANCELS + 2))
    directory = stopped(tmp_path / "data", at=beyond)
    with pytest.raises(DiskError, match=r"up to \[481, 481\].*\[481, 482\]"):
        exported(directory, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_wheel_that_has_not_come_to_its_frontier_is_exported_as_of_what_it_forgot_by(
    tmp_path: Path,
) -> None:
    """docs/design/storage.md, Exports: that is the oldest cut that a node could pin, and the only
    other one that is known."""
    node = ExportingNode(tmp_path / "data")
    asked, cancels = requests()
    take(node, asked + cancels)
    node.see(CUT)
    node.replica.checkpoint()
    beyond = (MESSAGES + CANCELS + 1,) * 2
    append_ms = CUT.append_ms + 60_000
    node.see(cut(9, beyond, cursor_ms=BEGIN_MS + HOUR_MS, append_ms=append_ms))
    node.replica.checkpoint()
    assert node.replica.retention.pin(CUT.record.frontier), "a node would export at it"
    expected = content(node.written_here(CUT))
    node.close()
    file = tmp_path / "file"
    told = exported(tmp_path / "data", file)
    assert (told.cut, told.newest_step) == (CUT.record.frontier, 9)
    assert content(pq.ParquetFile(file)) == expected and len(expected) > 200
    assert any("older than step 9" in line for line in exported_lines(told))


def test_a_wheel_that_has_come_to_no_frontier_is_refused(tmp_path: Path) -> None:
    """It does not store what is covered, and has not taken in all that is not."""
    node = ExportingNode(tmp_path / "data")
    asked, _ = requests()
    far = (MESSAGES + 1, MESSAGES + 1)
    node.see(cut(8, far, append_ms=BEGIN_MS), cut(9, far, append_ms=BEGIN_MS + 60_000))
    node.replica.checkpoint()
    assert node.replica.retention.forgotten is not None, "it is forgotten by"
    take(node, asked[:100])
    node.replica.checkpoint()
    node.close()
    with pytest.raises(DiskError, match="step 9, the newest that it knows") as refused:
        exported(tmp_path / "data", tmp_path / "file")
    assert "let it catch up" in refused.value.remedy


def test_a_wheel_that_knows_no_frontier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="knows no frontier"):
        exported(stopped(tmp_path / "data", at=None), tmp_path / "file")


def test_no_folder_and_no_room_for_the_file_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stopped(tmp_path / "data")
    with pytest.raises(ConfigError, match="there is no folder"):
        exported(directory, tmp_path / "none" / "file")
    out = tmp_path / "out"
    out.mkdir()

    def full(file: PendingFile, **_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PendingFile, "finish", full)
    with pytest.raises(DiskError, match=r"cannot write .*: No space left on device"):
        exported(directory, out / "file")
    assert list(out.iterdir()) == []


# --- The command


def test_the_command_tells_rows_bytes_and_the_cut(tmp_path: Path) -> None:
    directory = stopped(tmp_path / "data")
    file = tmp_path / "file"
    given = ["export", str(directory), "--parquet", str(file)]
    told = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert told == {
        "directory": str(directory),
        "file": str(file),
        "rows": pq.ParquetFile(file).metadata.num_rows,
        "bytes": file.stat().st_size,
        "cut": {
            "term": 1,
            "step": 7,
            "cursor_ms": BEGIN_MS + 20_000,
            "offsets": list(CUT.record.frontier.offsets),
        },
        "newest_step": 7,
    }
    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(app, given, catch_exceptions=False)
    assert refused.value.exit_code == ExitCode.USAGE
    ran = CliRunner().invoke(app, [*given, "--force"])
    assert ran.exit_code == ExitCode.FINE
    assert f"pending     {told['rows']} messages" in ran.stdout
    assert "cut         step 7 of term 1" in ran.stdout


def test_killed_messages_of_a_sparse_hour_and_of_its_slots_are_left_out(tmp_path: Path) -> None:
    """docs/design/storage.md, Hour files: such an hour lies in its file, and what came later in its
    slots."""
    node = ExportingNode(tmp_path / "data")
    asked, cancels = requests()
    take(node, asked[: MESSAGES // 2])
    while node.replica.split_some(BEGIN_MS + 8 * HOUR_MS):
        pass
    take(node, asked[MESSAGES // 2 :])
    take(node, cancels)
    last = MESSAGES + CANCELS
    node.take(*(schedule(last, BEGIN_MS + HOUR_MS, partition=partition) for partition in (0, 1)))
    node.see(CUT)
    names = segments_from(node.replica.wheel, 0)
    with_both = {hour for is_hour, hour in names if is_hour} & {
        slot // 3_600 for is_hour, slot in names if not is_hour
    }
    assert len(with_both) >= 5
    killed = {c.key for c in cancels if c.offset < CUT.record.frontier.offsets[c.partition]}
    cursor_ms = CUT.record.frontier.lowest_cursor.due_ms
    expected = sorted(
        (record.partition, record.offset)
        for record in asked
        if record.key not in killed and int(dict(record.headers)["delayd-due"] or b"") >= cursor_ms
    )
    file = node.written_here(CUT)
    assert sources(file) == expected
    hours = [slot // 3_600 for slot in file.read()["slot"].to_pylist()]
    assert hours == sorted(hours), "by time, whichever file an hour's messages lie in"
    node.close()
