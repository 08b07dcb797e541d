"""What a fetch leaves behind: removed where nobody needs it, told where it cannot be removed."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from delayd.node.snapshots.leftovers import Leftovers
from delayd.wheel.draft import kept_aside_bytes


def kept_aside(home: Path) -> None:
    (home / "replaced").mkdir()
    (home / "replaced" / "format.json").write_bytes(bytes(5_000))


def test_an_abandoned_copy_is_removed_and_a_kept_wheel_is_told(tmp_path: Path) -> None:
    (tmp_path / "fetch" / "wheel").mkdir(parents=True)
    kept_aside(tmp_path)
    with capture_logs() as logs:
        Leftovers(tmp_path).tidy()
    assert [line["event"] for line in logs] == ["abandoned_copy_removed", "replaced_wheel_kept"]
    assert logs[1]["bytes"] >= 5_000
    assert {path.name for path in tmp_path.iterdir()} == {"replaced"}
    with capture_logs() as logs:
        Leftovers(tmp_path / "replaced").tidy()
    assert not logs


def test_a_kept_wheel_gives_way(tmp_path: Path) -> None:
    kept_aside(tmp_path)
    Leftovers(tmp_path).give_way()
    assert kept_aside_bytes(tmp_path) is None


def test_what_cannot_be_removed_is_told_once_and_tried_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_aside(tmp_path)
    (tmp_path / "fetch" / "wheel").mkdir(parents=True)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr("delayd.wheel.draft_files.shutil.rmtree", refuse)
        leftovers = Leftovers(tmp_path)
        leftovers.tidy()
        for _ in range(3):
            leftovers.give_way()
    assert [line["event"] for line in logs] == ["leftover_not_removed"] * 2, "a line for each"
    assert all("Permission denied" in line["problem"] for line in logs)
    Leftovers(tmp_path).tidy()
    Leftovers(tmp_path).give_way()
    assert not list(tmp_path.iterdir())
