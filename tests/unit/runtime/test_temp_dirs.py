"""Temporary folders: those of processes that are gone are removed, and no others."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from delayd.runtime import temp_dirs as temporary
from delayd.runtime.temp_dirs import temporary_folder

PREFIX = "delayd-test-"
PROGRAM = f"""
import sys
from pathlib import Path
from delayd.runtime.temp_dirs import temporary_folder
with temporary_folder({PREFIX!r}, Path(sys.argv[1])) as folder:
    Path(folder, "held").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(where: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """A process that has a folder there."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(where)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_goes_and_what_a_running_one_has_stays(tmp_path: Path) -> None:
    with another(tmp_path) as (killed, left), another(tmp_path) as (running, used):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (left / "held").exists()
        with temporary_folder(PREFIX, tmp_path) as own:
            assert not left.exists()
            assert sorted(tmp_path.iterdir()) == sorted([used, Path(own)])
            assert (used / "held").exists()
        assert list(tmp_path.iterdir()) == [used]
        running.communicate()
    assert list(tmp_path.iterdir()) == []


def test_what_has_another_name_or_is_no_folder_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (target / "kept").write_text("x")
    (tmp_path / f"{PREFIX}file").write_text("x")
    (tmp_path / f"{PREFIX}link").symlink_to(target)
    before = sorted(tmp_path.rglob("*"))
    with temporary_folder(PREFIX, tmp_path):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_links_in_what_was_left_are_removed_and_not_what_they_lead_to(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("x")
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / "link").symlink_to(kept)
    with temporary_folder(PREFIX, tmp_path):
        assert not left.exists() and kept.exists()


def test_a_folder_that_is_taken_away_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = temporary._opened
    taken: list[str] = []

    def late(path: str) -> int:
        descriptor = opened(path)
        if not taken:
            taken.append(path)
            temporary._remove_left(tmp_path, PREFIX)
        return descriptor

    monkeypatch.setattr(temporary, "_opened", late)
    with temporary_folder(PREFIX, tmp_path) as folder:
        assert folder not in taken and Path(folder).is_dir()


def test_many_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                with ExitStack() as opened:
                    folders = [
                        Path(opened.enter_context(temporary_folder(PREFIX, tmp_path)))
                        for _ in range(3)
                    ]
                    for folder in folders:
                        (folder / "file").write_text("x")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and list(tmp_path.iterdir()) == []
