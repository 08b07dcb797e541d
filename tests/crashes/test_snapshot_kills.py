"""A copy of a wheel, killed at any point: it goes on, and is the same wheel in the end.

The kills run in a child that forks once per point, because LevelDB's threads do not survive the
fork of a process that has opened it. The child is this file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster_settings import PARTITIONS
from wheel_snapshots import SOURCE, Held, contents_of, running
from wheels_on_disk import SLOTS

from delayd.commands.examine.verifying import verify
from delayd.wheel.draft import Draft, finish, note_damage, noted_damage, remove_abandoned
from delayd.wheel.storage import Wheel

WATCHED = (
    *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"),
    *("shutil.rmtree", "fcntl.flock"),
)


def play(a: Path, b: Path, dies_at: int) -> int:
    """Copy the wheel of `a` to `b`, from wherever that is; die at one of its steps. Return how
    many there were."""
    steps = 0

    def step(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == dies_at:
            os._exit(9)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in WATCHED and arguments and str(b) in str(arguments[0]):
            step()

    wheel = Wheel.open(a, partitions=PARTITIONS)
    snapshot = wheel.snapshots.open()
    sys.addaudithook(watch)
    if not finish(b) and noted_damage(b) is not None:
        draft = Draft(b)
        with draft.locked():
            if draft.source != SOURCE:
                draft.begin(SOURCE)
            draft.copy(Held(snapshot, step), lambda *told: None)
            draft.verify(PARTITIONS, lambda *told: None)
            draft.install(0)
    snapshot.close()
    wheel.close()
    remove_abandoned(b)  # As a node does that has opened its wheel.
    return steps


def main(folder: Path) -> None:
    """Print what each kill has left and how it was gone on from, as JSON lines."""
    a, b = folder / "a", folder / "b"
    point = 0
    while True:
        point += 1
        subprocess.run(["cp", "-r", folder / "old", b], check=True)
        code = forked(partial(play, a, b, point))
        if forked(lambda: play(a, b, -1)) != 0:
            print(json.dumps({"point": point, "problem": "it does not go on"}))
        elif forked(lambda: compare(a, b)) != 0:
            print(json.dumps({"point": point, "problem": "it differs"}))
        subprocess.run(["rm", "-r", b], check=True)
        if code == 0:
            break
    print(json.dumps({"points": point - 1}))


def compare(a: Path, b: Path) -> None:
    assert contents_of(a) == contents_of(b)
    findings, _ = verify(b, lambda *told: None)
    assert findings.is_whole and noted_damage(b) is None and not list(b.glob("fetch/*"))


def forked(run: Callable[[], object]) -> int:
    """The exit code of a child that runs this."""
    child = os.fork()
    if child == 0:
        try:
            run()
        except BaseException as error:
            print(json.dumps({"error": repr(error)}), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.long
def test_it_can_be_killed_at_any_point(tmp_path: Path) -> None:
    running(tmp_path / "a", 100, SLOTS - 6).wheel.close()
    running(tmp_path / "old", 30, SLOTS - 3).wheel.close()
    note_damage(tmp_path / "old", "a bit")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, __file__, tmp_path],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1_200,
    ).stdout
    *problems, last = map(json.loads, told.splitlines())
    assert not problems
    assert last["points"] > 60


if __name__ == "__main__":
    main(Path(sys.argv[1]))
