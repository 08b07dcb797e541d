"""`delayd wheel verify`: a damaged catalogue, running nodes, and directories of another kind.

Source: docs/design/storage.md, "Looking at a wheel".
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_wheel_verify import files_in, verified
from typer.testing import CliRunner
from wheel_disks import ObservedDatabase, flip
from wheels_on_disk import Ingest, abandoned_wheel, catalogued

from delayd.commands.examine.commands import app
from delayd.commands.examine.verifying import verify
from delayd.errors import ConfigError, CorruptionError, DiskError
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.leveldb_log import torn_end
from delayd.wheel.stopped import VIEW_PREFIX
from delayd.wheel.storage import Wheel


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return abandoned_wheel(tmp_path / "data")


def test_a_count_of_lines_that_does_not_end_at_progress_was_cut_short(copy: Path) -> None:
    catalogue = Catalogue(str(copy / "catalogue"), create=False)
    assert catalogue.lines_by_kind()[b"z"] == 1
    catalogue._db = ObservedDatabase(catalogue._db, lost=1)
    with pytest.raises(CorruptionError, match="it ends at"):
        catalogue.lines_by_kind()
    catalogue._db = ObservedDatabase(catalogue._db, lost=10_000)
    with pytest.raises(CorruptionError, match="it ends at"):
        catalogue.lines_by_kind()
    catalogue.close()


@pytest.mark.parametrize("newer_tables", [0, 1, 2])
def test_damage_at_which_plyvels_iterator_ends_without_an_error_is_reported(
    tmp_path: Path, newer_tables: int
) -> None:
    ingest = Ingest(tmp_path)
    ingest.append(300)
    ingest.frontier = b"frontier"
    for _ in range(newer_tables + 1):
        ingest.checkpoint()
        ingest.wheel.close()
        ingest.wheel = Wheel.open(tmp_path, partitions=2)
    ingest.wheel.close()
    table = min((tmp_path / "catalogue").glob("*.ldb"))
    flip(table, table.read_bytes().index(b"frontier"), 0)
    findings = verified(tmp_path)
    assert not findings.is_whole and not findings.is_complete
    assert findings.damage[0].file == "catalogue"


@pytest.mark.parametrize("name", ["MANIFEST-*", "*.log"])
def test_a_wrong_length_that_leveldb_takes_for_a_torn_write_is_reported(
    copy: Path, name: str
) -> None:
    """The last record of a log, made longer: LevelDB drops it, and says nothing."""
    [path] = (copy / "catalogue").glob(name)
    data = path.read_bytes()
    # Block by block: the header of the last record.
    at = len(data) // 32_768 * 32_768
    while (after := at + 7 + int.from_bytes(data[at + 4 : at + 6], "little")) < len(data):
        at = after
    for bit in range(16):
        if not data[at + 4 + bit // 8] >> bit % 8 & 1:
            flip(path, at + 4 + bit // 8, bit % 8)
            findings = verified(copy)
            assert not findings.is_whole
            assert findings.damage[0][2:5] == (None, at, len(data)), f"bit {bit}"
            assert findings.damage[0].file == f"catalogue/{path.name}"
            path.write_bytes(data)
    with path.open("rb") as log:
        assert torn_end(log) is None


def test_a_log_that_was_torn_is_no_damage_but_an_earlier_checkpoint(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path / "data")
    history = []
    for _ in range(4):
        ingest.append(100)
        ingest.checkpoint()
        lines = ingest.wheel._catalogue.segment_lines(False)
        history.append((ingest.progress(), {line.name.number: line for line in lines}))
    ingest.wheel.close()
    [log] = (tmp_path / "data" / "catalogue").glob("*.log")
    size = log.stat().st_size
    seen = set()
    for cut in range(1, size, size // 20):
        copy = Path(shutil.copytree(tmp_path / "data", tmp_path / "copy"))
        os.truncate(copy / "catalogue" / log.name, size - cut)
        findings = verified(copy)
        assert findings.is_whole, findings.damage
        assert findings.torn_log_bytes > 0
        found = catalogued(copy)
        if found.progress is not None:
            seen.add(history.index((found.progress, found.lines)))
        shutil.rmtree(copy)
    assert seen >= {0, 1, 2}


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*", "*.ldb", "", "format.json"])
def test_a_lost_part_of_the_catalogue_is_reported(copy: Path, name: str) -> None:
    if name == "format.json":
        (copy / name).unlink()
    elif name:
        for path in (copy / "catalogue").glob(name):
            path.unlink()
    else:
        shutil.rmtree(copy / "catalogue")
    before = files_in(copy)
    findings = verified(copy)
    assert not findings.is_whole and not findings.is_complete
    assert str(copy) in findings.damage[0].why
    assert files_in(copy) == before


def test_a_damaged_format_file_is_reported(copy: Path) -> None:
    (copy / "format.json").write_text('{"format": 4, "partitions": 3}')
    assert "3 partitions, the checkpoint 2" in verified(copy).damage[0].why
    (copy / "format.json").write_text("{")
    [damage] = verified(copy).damage
    assert damage.file == "format.json"


HOLD = """
import sys
from pathlib import Path
from delayd.wheel.storage import Wheel
wheel = Wheel.open(Path(sys.argv[1]), partitions=2)
print(flush=True)
sys.stdin.readline()
print(len(wheel.slots()))
"""


@pytest.fixture
def running(copy: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(copy)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "\n"
        yield child


def test_a_running_node_is_left_alone_and_the_error_says_what_to_do(
    copy: Path, running: subprocess.Popen[str]
) -> None:
    before = files_in(copy)
    for command in ("verify", "inspect"):
        with pytest.raises(DiskError, match=r"a node runs on .*stop that node first.*/status"):
            CliRunner().invoke(app, [command, str(copy)], catch_exceptions=False)
    assert files_in(copy) == before
    told, _ = running.communicate("\n")
    assert told == "115\n"


def test_a_node_cannot_start_on_a_wheel_that_is_looked_at(copy: Path) -> None:
    told: list[str] = []

    def tell(done: int, total: int) -> None:
        code = "import sys; from pathlib import Path; from delayd.wheel.storage import Wheel\n"
        code += "Wheel.open(Path(sys.argv[1]), partitions=2)"
        if not told:
            command = [sys.executable, "-c", code, str(copy)]
            told.append(subprocess.run(command, capture_output=True, text=True).stderr)

    assert verify(copy, tell)[0].is_whole
    assert "in use by another process" in told[0]


def test_a_folder_that_holds_no_wheel_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match="holds no wheel"):
        verified(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_the_view_of_a_killed_process_is_removed_by_the_next(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = tmp_path / "views"
    views.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(views))
    code = (
        "import os, sys; from pathlib import Path;"
        "from delayd.wheel.stopped import locked, open_stopped\n"
        "with locked(Path(sys.argv[1])) as layout, open_stopped(layout): os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": str(views)}
    killed = subprocess.run([sys.executable, "-c", code, str(copy)], env=environment, check=False)
    assert killed.returncode == -9
    [left] = views.iterdir()
    assert left.name.startswith(VIEW_PREFIX)
    assert verify(copy, lambda done, total: None)[0].is_whole
    assert list(views.iterdir()) == []


def test_another_format_is_refused(copy: Path) -> None:
    (copy / "format.json").write_text('{"format": 6, "partitions": 2}')
    with pytest.raises(DiskError, match="has wheel format 6"):
        verified(copy)


def test_verifying_does_not_change_what_a_node_then_recovers(copy: Path) -> None:
    verified(copy)
    wheel = Wheel.open(copy, partitions=2)
    assert len(wheel.slots()) == 115
    wheel.close()
    findings = verified(copy)
    assert findings.is_whole
    assert (findings.behind_files, findings.forgotten_files) == (0, 0)
