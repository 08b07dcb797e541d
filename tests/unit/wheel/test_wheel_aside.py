"""A wheel is set aside, and comes back, through kills between any two steps on the disk.

Source: docs/design/repairing.md, "Order on the disk".
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from delayd.errors import DiskError
from delayd.wheel import aside, draft, draft_files
from delayd.wheel.aside import (
    RepairNote,
    RepairState,
    forget_repair,
    give_back,
    may_give_back,
    note_repair,
    repair_note,
    room_lack,
    set_aside,
    want_back,
)
from delayd.wheel.draft_files import PARTS

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""
"""A process that has the lock of a wheel until its input ends."""
NOTE = RepairNote(RepairState.WANTED, 7, 3, (1, 2), ((0, 5), (1, 9)), ("0/5 (id a)",))


class KilledError(Exception):
    """The process died here."""


@contextmanager
def dying_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Die before the call with this number that changes something on the disk."""
    counted = itertools.count()
    rename, write, remove = Path.rename, draft_files.write_durably, draft_files.remove

    def step() -> None:
        if next(counted) == call:
            raise KilledError

    def renamed(path: Path, target: Path) -> Path:
        step()
        return rename(path, target)

    def written(path: Path, text: str) -> None:
        step()
        write(path, text)

    def removed(path: Path) -> None:
        step()
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", renamed)
        patch.setattr(aside, "write_durably", written)
        patch.setattr(aside, "remove", removed)
        yield


def make_wheel(directory: Path, what: str) -> None:
    """What looks like a wheel."""
    (directory / "slots" / "1").mkdir(parents=True)
    (directory / "catalogue").mkdir()
    for path in ("slots/1/3600.0", "catalogue/CURRENT", "format.json"):
        (directory / path).write_text(what)


def told_in(directory: Path) -> set[str]:
    """Whose wheel lies there; a whole one has one word to say."""
    found = [directory / path for path in ("slots/1/3600.0", "catalogue/CURRENT", "format.json")]
    return {path.read_text() if path.exists() else "nothing" for path in found}


def go_on(directory: Path) -> RepairNote:
    """What a start does."""
    note = repair_note(directory)
    assert note is not None
    if note.state in (RepairState.WANTED, RepairState.ASIDE):
        return set_aside(directory, note)
    return give_back(directory, note) if note.state is RepairState.BACK else note


def test_a_kill_anywhere_leaves_the_old_wheel_and_the_next_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules: evidence-kept"""
    for call in itertools.count():
        directory = tmp_path / str(call)
        make_wheel(directory, "old")
        make_wheel(directory / "replaced", "older")
        note_repair(directory, NOTE)
        is_killed = False
        with dying_at(call, monkeypatch):
            try:
                go_on(directory)
            except KilledError:
                is_killed = True
        note = go_on(directory)
        assert note == repair_note(directory) and note.state is RepairState.COMPARING
        assert note.is_from_log and note.sources == NOTE.sources
        assert told_in(directory) == {"nothing"}, "the next wheel begins empty"
        assert told_in(directory / "replaced") == {"old"}
        make_wheel(directory, "new")
        assert go_on(directory) == note and told_in(directory) == {"new"}, "once"
        if not is_killed:
            assert call > len(PARTS)
            return


def test_the_old_wheel_comes_back_through_a_kill_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules: evidence-kept"""
    for call in itertools.count():
        directory = tmp_path / str(call)
        make_wheel(directory, "old")
        note_repair(directory, NOTE)
        go_on(directory)
        make_wheel(directory, "new")
        assert may_give_back(directory)
        want_back(directory, "the log is not enough")
        is_killed = False
        with dying_at(call, monkeypatch):
            try:
                go_on(directory)
            except KilledError:
                is_killed = True
        note = go_on(directory)
        assert note.state is RepairState.FAILED and note.problem == "the log is not enough"
        assert not note.is_from_log, "its word is not the log's"
        assert told_in(directory) == {"old"} and not (directory / "replaced").exists()
        assert not may_give_back(directory)
        if not is_killed:
            assert call > len(PARTS)
            return


def test_what_is_kept_aside_comes_back_only_while_the_new_wheel_is_being_built(
    tmp_path: Path,
) -> None:
    make_wheel(tmp_path, "old")
    assert not may_give_back(tmp_path)
    note_repair(tmp_path, NOTE)
    assert not may_give_back(tmp_path)
    note = go_on(tmp_path)
    assert may_give_back(tmp_path)
    note_repair(tmp_path, note.become(RepairState.REPAIRED))
    assert not may_give_back(tmp_path)


def test_a_note_says_what_was_written_or_that_it_is_illegible(tmp_path: Path) -> None:
    assert repair_note(tmp_path) is None
    note_repair(tmp_path, NOTE)
    assert repair_note(tmp_path) == NOTE
    path = tmp_path / "repair.json"
    whole = path.read_text()
    for text in (whole[:20], "[]", json.dumps({**json.loads(whole), "state": "?"})):
        path.write_text(text)
        found = repair_note(tmp_path)
        assert found is not None and found.state is RepairState.FAILED and found.problem
    forget_repair(tmp_path)
    forget_repair(tmp_path)
    assert repair_note(tmp_path) is None


def test_a_wheel_needs_room_for_another_one_beside_it(tmp_path: Path) -> None:
    """Rules: evidence-kept"""
    make_wheel(tmp_path, "old" * 100_000)
    assert room_lack(tmp_path, 0) is None
    assert "free" in (room_lack(tmp_path, 2**60) or "")


def test_a_wheel_that_cannot_be_moved_stays(tmp_path: Path) -> None:
    make_wheel(tmp_path, "old")
    note_repair(tmp_path, NOTE)
    tmp_path.joinpath("replaced").symlink_to(tmp_path / "nowhere" / "else")
    with pytest.raises(DiskError):
        note_repair(tmp_path, NOTE.become(RepairState.ASIDE))
        go_on(tmp_path)
    assert told_in(tmp_path) == {"old"}


@pytest.mark.parametrize("state", [RepairState.WANTED, RepairState.BACK])
def test_nothing_is_moved_while_a_process_has_the_wheel_open(
    tmp_path: Path, state: RepairState
) -> None:
    make_wheel(tmp_path, "this one")
    make_wheel(tmp_path / "replaced", "another")
    lock = tmp_path / "catalogue" / "LOCK"
    lock.touch()
    note_repair(tmp_path, NOTE.become(state))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdin and holder.stdout and holder.stdout.readline()
        with pytest.raises(DiskError, match="a node runs on"):
            go_on(tmp_path)
        assert told_in(tmp_path) == {"this one"} and told_in(tmp_path / "replaced") == {"another"}
        holder.stdin.close()
    go_on(tmp_path)
    assert told_in(tmp_path) == ({"another"} if state is RepairState.BACK else {"nothing"})


def test_what_is_left_of_a_wheel_that_gave_way_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules: evidence-kept"""
    make_wheel(tmp_path, "old")
    note_repair(tmp_path, NOTE)
    go_on(tmp_path)
    make_wheel(tmp_path, "new")
    assert may_give_back(tmp_path)

    def cut_short(path: Path) -> None:
        if path.is_dir():
            draft_files.remove(path / "catalogue")
            raise KilledError
        draft_files.remove(path)

    monkeypatch.setattr(draft, "remove", cut_short)
    with pytest.raises(KilledError):
        draft.remove_replaced(tmp_path)
    assert (tmp_path / "replaced" / "slots").exists() and not may_give_back(tmp_path)
