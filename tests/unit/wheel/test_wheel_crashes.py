"""kill -9 at every point: the wheel is then exactly its last checkpoint, and goes on from there.

The workload runs in a child that forks once per point and kills itself there, because LevelDB's
threads do not survive the fork of a process that has opened it. The child is this file.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wheel_disks import CountingDisk, contents, remaining_files
from wheel_reading import checkpoint

from delayd.commands.examine.verifying import verify
from delayd.wheel import Frame, FrameKind, Progress, hours, near_hours
from delayd.wheel.catalogue import CatalogueBatch
from delayd.wheel.hours import SPARSE_BYTES_MAX
from delayd.wheel.layout import Layout
from delayd.wheel.near_hours import SPLIT_BYTES
from delayd.wheel.storage import Wheel

pytestmark = pytest.mark.long

FAR = 36_000
"""A slot of an hour that is far until checkpoint 3."""
NAMED_POINTS = (
    "appended",
    "begun",
    "files synced",
    "batch written",
    "synced",
    "finished",
)
Tell = Callable[[str], None]

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
"""For this file as a program: it finds what pytest finds."""


def frame(slot: int, offset: int, kind: FrameKind = FrameKind.MESSAGE) -> Frame:
    due_ms = 1_000 * slot + offset % 1_000
    return Frame(due_ms, offset % 2, offset, 7, kind, due_ms, (b"key", b"v" * (offset % 50)))


def far_frame(slot: int, offset: int) -> Frame:
    return frame(slot, offset)._replace(append_ms=1)


def progress(number: int) -> Progress:
    return Progress((number, number), (0, 0), (number, number), b"frontier %d" % number)


def change(wheel: Wheel, number: int) -> None:
    """What happens before checkpoint `number`, 1 to 4."""
    if number == 1:
        wheel.append([frame(slot, slot) for slot in (5, 6, 7, 3600)])
        wheel.append([frame(6, 20, FrameKind.PENDING_REPLY), frame(7, 21, FrameKind.PENDING_REPLY)])
        wheel.append([far_frame(FAR + n % 40, 300 + n) for n in range(60)])
        wheel.append([far_frame(2 * FAR, 390)])
    elif number == 2:
        # Slot 5 is forgotten and filled again, and twice over; slot 3600 is forgotten.
        wheel.forget([5, 3600])
        wheel.append([frame(5, 30)])
        wheel.forget([5])
        wheel.append([frame(5, 31), frame(6, 32)])
        wheel.forget_pending_replies((21, 21))
        # Another hour is forgotten and filled again.
        wheel.forget([], [2 * FAR // 3600])
        wheel.append([far_frame(2 * FAR, 391), far_frame(FAR + 7, 392)])
    elif number == 3:
        # More dirty files than are synced one by one, in an hour whose folder is new again.
        wheel.append([frame(3600 + n, 100 + n) for n in range(40)])
        wheel.forget([5])
        # An hour is near: some of it is split, and something comes to its slots meanwhile.
        wheel.advance(1_000 * FAR)
        for _ in range(3):
            assert wheel.split_some()
        wheel.append([far_frame(FAR + 2, 393)])
    else:
        wheel.advance(1_000 * FAR)
        while wheel.split_some():
            pass
        wheel.forget_pending_replies((22, 22))
        wheel.forget(wheel.slots(6, FAR - 1))
        wheel.append([frame(5, 200), frame(7, 201, FrameKind.PENDING_REPLY)])


def workload(directory: Path, tell: Tell, tell_call: Tell) -> None:
    """Four checkpoints; `tell` hears of named points, `tell_call` of calls that change the disk."""
    harmless = {"open", "close", "pread", "list_folder"}
    near_hours.SPLIT_BYTES = 1_000
    hours.SPARSE_BYTES_MAX = 500
    disk = CountingDisk(lambda call, path: None if call in harmless else tell_call(call))
    wheel = Wheel.open(directory, partitions=2, disk=disk)
    write = wheel._catalogue.write

    def telling_write(batch: CatalogueBatch) -> None:
        tell("files synced")
        write(batch)
        tell("batch written")

    wheel._catalogue.write = telling_write  # type: ignore[method-assign]
    for number in (1, 2, 3, 4):
        change(wheel, number)
        tell("appended")
        pending = wheel.begin_checkpoint(progress(number))
        tell("begun")
        pending.sync()
        tell("synced")
        wheel.finish_checkpoint(pending)
        tell("finished")


def child(root: Path) -> None:
    """Run the workload once per point, each in its own process that kills itself there.

    Prints one JSON object per point: the directory, the point, and the checkpoint that is durable.
    """
    index = 0
    while True:
        directory = root / str(index)
        report = root / f"{index}.json"
        pid = os.fork()
        if pid == 0:
            run_until_point(directory, report, index)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0, f"the workload failed before point {index}"
            return
        print(report.read_text(), flush=True)
        index += 1


def run_until_point(directory: Path, report: Path, stop_at: int) -> None:
    seen = -1
    durable = 0

    def reach(point: str) -> None:
        nonlocal seen
        seen += 1
        if seen == stop_at:
            found = {"directory": str(directory), "point": point, "durable": durable}
            report.write_text(json.dumps(found))
            os.kill(os.getpid(), signal.SIGKILL)

    def tell(point: str) -> None:
        nonlocal durable
        durable += point == "batch written"
        reach(point)

    workload(directory, tell, reach)


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("crashes")
    ran = subprocess.run(
        [sys.executable, __file__, str(root)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=1_200,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What the wheel holds at each checkpoint, from a life without a crash."""
    near_hours.SPLIT_BYTES = 1_000
    hours.SPARSE_BYTES_MAX = 500
    wheel = Wheel.open(tmp_path_factory.mktemp("alive"), partitions=2)
    held = [contents(wheel)]
    for number in (1, 2, 3, 4):
        change(wheel, number)
        checkpoint(wheel, progress(number))
        held.append(contents(wheel))
    yield held
    wheel.close()
    near_hours.SPLIT_BYTES = SPLIT_BYTES
    hours.SPARSE_BYTES_MAX = SPARSE_BYTES_MAX


def test_the_crashes_are_at_every_named_point_and_every_kind_of_change(
    crashes: list[dict[str, Any]],
) -> None:
    points = [crash["point"] for crash in crashes]
    for name in NAMED_POINTS:
        assert points.count(name) == 4
    calls = {"make_folder", "create", "append", "fdatasync", "sync_folder", "syncfs", "rename"}
    assert calls | {"unlink", "remove_folder"} <= set(points)


def test_the_checkpoints_know_of_hours_whole_split_in_part_and_gone(
    checkpoints: list[dict[str, Any]],
) -> None:
    near, far = FAR // 3600, 2 * FAR // 3600
    assert [sorted(held["hours"]) for held in checkpoints] == [
        [],
        [near, far],
        [near, far],
        [near, far],
        [far],
    ]
    starts = [held["hours"][near][0].start for held in checkpoints[1:4]]
    assert starts[0] == starts[1] == 0 < starts[2] < len(checkpoints[2]["hours"][near][1])
    assert checkpoints[1]["hours"][far][0].name.generation == 0
    assert checkpoints[2]["hours"][far][0].name.generation == 1
    frames = [f for slot, (_, each) in checkpoints[4]["slots"].items() if slot >= FAR for f in each]
    assert sorted(f.offset for f in frames) == [*range(300, 360), 392, 393]


def test_after_a_kill_the_wheel_is_exactly_its_last_checkpoint(
    crashes: list[dict[str, Any]], checkpoints: list[dict[str, Any]]
) -> None:
    unfinished = 0
    for crash in crashes:
        directory = Path(crash["directory"])
        if any(directory.glob("*")):  # else killed before there was anything
            findings, _ = verify(directory, lambda done, total: None)
            assert findings.is_whole, (crash, findings.damage)
            unfinished += findings.behind_files
        wheel = Wheel.open(directory, partitions=2)
        held = contents(wheel)
        catalogued = {
            Layout("").segment_file(segment.name).removeprefix("/slots/")
            for segment in wheel._segments.all()
        }
        wheel.close()
        assert held == checkpoints[crash["durable"]], crash
        assert remaining_files(directory) == catalogued, crash
    assert unfinished > 50


def test_after_a_kill_the_work_goes_on_to_the_same_end(
    crashes: list[dict[str, Any]], checkpoints: list[dict[str, Any]]
) -> None:
    for crash in crashes:
        wheel = Wheel.open(Path(crash["directory"]), partitions=2)
        for number in range(crash["durable"] + 1, 5):
            change(wheel, number)
            checkpoint(wheel, progress(number))
        assert contents(wheel) == checkpoints[4], crash
        wheel.close()
        wheel = Wheel.open(Path(crash["directory"]), partitions=2)
        assert contents(wheel) == checkpoints[4], crash
        wheel.close()


if __name__ == "__main__":
    child(Path(sys.argv[1]))
