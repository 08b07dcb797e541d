"""`delayd wheel repair`: damaged files of slots and hours, written once more from the buffer."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from manual_clock import START_MS
from one_node import CLUSTER_KEY, TIMEOUT_MS, OneNode
from wheel_disks import contents, flip, make_older, remaining_files
from wheel_reading import checkpoint

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.topics import create_topics
from delayd.commands.examine import patching, repairing
from delayd.commands.examine.repairing import Log, Repair, repair
from delayd.commands.examine.showing import repair_json, repair_lines
from delayd.commands.examine.verifying import verify
from delayd.errors import ConfigError, DiskError
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.storage import Wheel

PARTITIONS = 2
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
OPEN_FILES = 400


def fed(folder: Path) -> OneNode:
    """A node with messages, answers and cancel markers, near and far."""
    node = OneNode(folder, "t", partitions=PARTITIONS)
    random = Random(7)
    for number in range(400):
        due_ms = START_MS + random.choice((2_000, 60_000, DAY_MS)) + random.randrange(5_000)
        kind = random.random()
        id = f"id-{random.randrange(60)}"
        value = random.randbytes(random.randrange(200))
        if kind < 0.6:
            node.send("t", due_ms, partition=number % PARTITIONS, value=value)
        elif kind < 0.9:
            node.send("t", due_ms, id=id, op=None if kind < 0.8 else "replace", value=value)
        elif kind < 0.95:
            node.send("t", id=id, op="cancel")
        else:
            node.send("delayd-forbidden", due_ms)
    node.ingest()
    return node


class Stopped:
    """The directory of a node that has just ended, and the buffer that it was fed from."""

    def __init__(self, folder: Path, node: OneNode) -> None:
        self.folder = folder
        self.node = node
        # A part of the far hour comes to slots of its own.
        node.replica.checkpoint()
        node.close()
        self.held = self.contents()

    def contents(self) -> dict[str, Any]:
        wheel = Wheel.open(self.folder, partitions=PARTITIONS)
        held = contents(wheel)
        wheel.close()
        return held

    def log(self) -> Log:
        node = self.node
        return Log(node.bus, node.settings, CLUSTER_KEY.encode(), node.clock, TIMEOUT_MS)

    def repair(self) -> Repair:
        return repair(self.folder, self.log(), lambda what, done, total: None)

    def is_restored(self) -> bool:
        """Repair it; True if it is whole and holds what it held."""
        assert self.repair().is_whole
        return by_generation(self.contents()) == by_generation(self.held)

    def is_whole(self) -> bool:
        return verify(self.folder, lambda done, total: None)[0].is_whole

    def files(self) -> list[Path]:
        return sorted(self.folder / "slots" / name for name in remaining_files(self.folder))

    def hour_file(self) -> Path:
        [path] = [path for path in self.files() if path.name.startswith("hour")]
        return path


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    return Stopped(tmp_path / "data", fed(tmp_path / "data"))


def by_generation(held: dict[str, Any]) -> object:
    """Without what a repair changes: generations, and how an hour's frames are ordered."""
    hours = {
        number: (line.info.count, line.info.digest) for number, (line, _) in held["hours"].items()
    }
    return held | {"hours": hours}


def split_in_part(stopped: Stopped, split_bytes: int, times: int = 1) -> tuple[int, int]:
    """Return the one hour, some of whose frames go to slots now, and how many it keeps."""
    wheel = Wheel.open(stopped.folder, partitions=PARTITIONS)
    [hour] = wheel.hours()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("delayd.wheel.near_hours.SPLIT_BYTES", split_bytes)
        wheel.advance(hour * HOUR_MS)
        for _ in range(times):
            assert wheel.split_some()
    assert wheel.progress is not None
    checkpoint(wheel, wheel.progress)
    info = wheel.hour_info(hour)
    assert info is not None
    wheel.close()
    stopped.held = stopped.contents()
    return hour, info.count


def flip_any(path: Path, random: Random) -> None:
    flip(path, random.randrange(path.stat().st_size), random.randrange(8))


def test_there_are_slots_hours_messages_answers_and_marks_to_repair(stopped: Stopped) -> None:
    kinds = {f.kind for _, frames in stopped.held["slots"].values() for f in frames}
    assert kinds == {0, 1, 2}
    assert len(stopped.held["hours"]) == 1
    assert stopped.held["replies"]


def test_every_flipped_file_is_what_it_was(stopped: Stopped) -> None:
    random = Random(1)
    files = stopped.files()
    for path in files:
        flip_any(path, random)
    assert not stopped.is_whole()
    outcome = stopped.repair()
    assert outcome.is_whole and len(outcome.repaired) == len(files)
    assert len(files) <= outcome.from_buffer < outcome.frames
    assert stopped.is_whole()
    assert by_generation(stopped.contents()) == by_generation(stopped.held)
    assert len(stopped.files()) == len(files)
    assert not (stopped.folder / "repair").exists()


@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "noise"])
def test_files_that_are_gone_cut_or_overwritten_come_back(stopped: Stopped, damage: str) -> None:
    for path in stopped.files()[::2]:
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            kept = {"cut": data[:-1], "empty": b"", "noise": Random(3).randbytes(len(data))}
            path.write_bytes(kept[damage])
    assert stopped.is_restored()


def test_a_frame_that_is_there_twice_in_place_of_another_is_put_right(stopped: Stopped) -> None:
    for path in stopped.files():
        data = path.read_bytes()
        frames: dict[int, int] = {}
        at = 0
        while at < len(data) and (length := int.from_bytes(data[at : at + 4], "little")):
            if length in frames:
                first = frames[length]
                twin = data[first : first + length]
                path.write_bytes(data[:at] + twin + data[at + length :])
                break
            frames[length] = at
            at += length
    assert not stopped.is_whole()
    assert stopped.is_restored()


@pytest.mark.usefixtures("dense_hours")
def test_an_hour_that_is_split_in_part_gets_back_what_it_had(tmp_path: Path) -> None:
    stopped = Stopped(tmp_path / "data", fed(tmp_path / "data"))
    hour, _ = split_in_part(stopped, 2_000, times=3)
    random = Random(2)
    path = stopped.hour_file()
    flip_any(path, random)
    if stopped.is_whole():
        # What was split of it does not count any more.
        flip(path, -1)
    assert stopped.is_restored()
    # And its slots, one of them.
    slots = [path for path in stopped.files() if path.parent.name == str(hour)]
    path = next(path for path in slots if not path.name.startswith("hour"))
    path.unlink()
    assert stopped.is_restored()


@pytest.mark.parametrize("ahead_ms", [60_000, 2 * HOUR_MS, 2 * HOUR_MS + 1])
def test_a_sparse_hour_of_which_slots_were_forgotten_gets_back_what_it_had(
    tmp_path: Path, ahead_ms: int
) -> None:
    """What came for it when it was near went to those slots, and is nowhere any more."""
    node = OneNode(tmp_path, "t", partitions=PARTITIONS)
    begin_ms = START_MS // HOUR_MS * HOUR_MS + 5 * HOUR_MS
    for number in range(50):
        node.send("t", begin_ms + 500 * number, partition=number % PARTITIONS)
    node.ingest()
    node.clock.now_ms = begin_ms - ahead_ms
    for number in range(100):
        node.send("t", begin_ms + 250 * number, partition=number % PARTITIONS)
    node.ingest()
    wheel = node.replica.wheel
    while node.replica.split_some(node.clock.now_ms):
        pass
    first = begin_ms // 1_000
    wheel.forget(wheel.slots(first, first + 20))
    stopped = Stopped(tmp_path, node)
    flip_any(stopped.hour_file(), Random(1))
    assert stopped.is_restored() and stopped.is_whole()


def test_what_was_stored_with_an_hour_though_it_seems_to_have_come_too_late_is_found(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch goes by the append time of its last record: others of it may be later."""
    monkeypatch.setattr(patching, "HORIZON_S", 2 * DAY_MS)
    flip_any(stopped.hour_file(), Random(1))
    outcome = stopped.repair()
    assert outcome.is_whole and outcome.from_buffer == 1
    assert by_generation(stopped.contents()) == by_generation(stopped.held)


def test_what_the_buffer_has_lost_comes_out_of_the_file_if_it_is_whole_there(
    stopped: Stopped,
) -> None:
    buffer = stopped.node.kafka.topics[stopped.node.settings.buffer.name]
    for partition in buffer.partitions:
        partition.delete_before(100)
    # Not the first: what a verdict was about cannot be known from half a log.
    for path in stopped.files()[1:]:
        # The end of a file is of the newest records.
        flip(path, -2)
    outcome = stopped.repair()
    assert outcome.is_whole
    assert 0 < outcome.from_buffer < outcome.frames
    assert by_generation(stopped.contents()) == by_generation(stopped.held)


def test_what_nobody_has_any_more_is_left_as_it_is_and_told(stopped: Stopped) -> None:
    for partition in stopped.node.kafka.topics[stopped.node.settings.buffer.name].partitions:
        partition.delete_before(partition.end_offset)
    victim = stopped.files()[0]
    damaged = victim.read_bytes()[:-1]
    victim.write_bytes(damaged)
    outcome = stopped.repair()
    assert not outcome.is_whole and outcome.repaired == []
    assert "which are not the" in outcome.failed[0]
    assert victim.read_bytes() == damaged
    assert any("empty this directory" in line for line in repair_lines(outcome))
    assert not (stopped.folder / "repair").exists()
    assert len(stopped.files()) == len(remaining_files(stopped.folder))


def test_a_damaged_catalogue_is_not_repaired(stopped: Stopped) -> None:
    [log] = (stopped.folder / "catalogue").glob("*.log")
    table = next(iter((stopped.folder / "catalogue").glob("*.ldb")), log)
    flip(table, table.stat().st_size // 2)
    before = remaining_files(stopped.folder)
    outcome = stopped.repair()
    assert not outcome.is_whole and outcome.repaired == []
    assert remaining_files(stopped.folder) == before


def test_nothing_is_written_where_all_is_whole(stopped: Stopped) -> None:
    before = {path: path.read_bytes() for path in stopped.files()}
    outcome = stopped.repair()
    assert outcome.is_whole
    assert list(repair_lines(outcome))[-1] == "whole: there was nothing to repair"
    assert repair_json(outcome)["repaired"] == []
    assert {path: path.read_bytes() for path in stopped.files()} == before


def test_another_clusters_buffer_is_refused(stopped: Stopped) -> None:
    bus = MemoryBus(MemoryKafka(stopped.node.clock), clock=stopped.node.clock)
    other = create_topics(bus, cluster="other", cluster_key=CLUSTER_KEY, partitions=PARTITIONS)
    stopped.files()[0].unlink()
    log = stopped.log()._replace(bus=bus, settings=other)
    with pytest.raises(ConfigError, match="belongs to the cluster 'c'"):
        repair(stopped.folder, log, lambda what, done, total: None)


def test_a_running_node_is_left_alone(stopped: Stopped) -> None:
    stopped.files()[0].unlink()
    catalogue = Catalogue(str(stopped.folder / "catalogue"), create=False)
    try:
        with pytest.raises(DiskError):
            stopped.repair()
    finally:
        catalogue.close()


@pytest.mark.parametrize(("is_saved", "not_reached"), [(True, "verify"), (False, "replay")])
def test_an_older_format_is_refused_before_anything_is_read(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, is_saved: bool, not_reached: str
) -> None:
    """One that was taken over, but never saved, before the buffer is read."""
    stopped.files()[0].unlink()
    format_json = (stopped.folder / "format.json").read_text()
    make_older(stopped.folder)
    if not is_saved:
        (stopped.folder / "format.json").write_text(format_json)
    monkeypatch.setattr(repairing, not_reached, None)
    with pytest.raises(DiskError, match="is of an older wheel format, which cannot be repaired"):
        stopped.repair()


def test_what_a_killed_repair_left_goes_at_the_next_one(stopped: Stopped) -> None:
    left = stopped.folder / "repair"
    (left / "catalogue").mkdir(parents=True)
    (left / "catalogue" / "CURRENT").write_text("x")
    assert stopped.repair().is_whole, "there was nothing else to do"
    assert not left.exists()


def test_what_a_repair_uses_is_left_to_it_while_it_runs(stopped: Stopped) -> None:
    (stopped.folder / "repair").mkdir()
    # As a repair that runs holds it; in another process, because the lock is of a process.
    code = "import sys, plyvel; db = plyvel.DB(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(stopped.folder / "catalogue")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(DiskError):
            stopped.repair()
        assert (stopped.folder / "repair").exists()


@pytest.mark.parametrize("point", ["before the batch", "after the batch"])
def test_a_crash_in_a_repair_leaves_the_old_files_or_the_new_ones(
    stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    random = Random(6)
    for path in stopped.files():
        flip_any(path, random)
    write = Catalogue.write

    class CrashError(Exception):
        pass

    def crash(self: Catalogue, batch: object) -> None:
        if self._path.endswith("repair/catalogue"):
            write(self, batch)  # type: ignore[arg-type]
            return
        if point == "after the batch":
            write(self, batch)  # type: ignore[arg-type]
        # As the disk is at this moment.
        shutil.copytree(stopped.folder, tmp_path / "crashed")
        raise CrashError

    monkeypatch.setattr(Catalogue, "write", crash)
    with pytest.raises(CrashError):
        stopped.repair()
    monkeypatch.undo()
    stopped.folder = tmp_path / "crashed"
    assert stopped.is_whole() == (point == "after the batch")
    if point == "before the batch":
        assert stopped.repair().is_whole
    assert by_generation(stopped.contents()) == by_generation(stopped.held)
    assert len(remaining_files(stopped.folder)) == len(stopped.held["slots"]) + 1


@pytest.mark.usefixtures("dense_hours")
def test_an_hour_of_which_a_partition_was_split_as_a_whole_is_whole_again(tmp_path: Path) -> None:
    """What is left of it has lower highest offsets than its line told."""
    node = OneNode(tmp_path, "t", partitions=PARTITIONS)
    for partition in (1, 0):
        for number in range(20):
            node.send("t", START_MS + DAY_MS + number, partition=partition, value=b"x" * 100)
        node.ingest()
    stopped = Stopped(tmp_path, node)
    _, count = split_in_part(stopped, 5_000)
    assert 0 < count < 20
    flip(stopped.hour_file(), -1)
    assert stopped.repair().is_whole
    assert stopped.is_whole()


def test_more_damaged_files_are_repaired_than_may_be_open_at_once(tmp_path: Path) -> None:
    node = OneNode(tmp_path, "t", partitions=PARTITIONS)
    for number in range(OPEN_FILES + 50):
        node.send("t", START_MS + 1_000 * number)
    node.ingest()
    stopped = Stopped(tmp_path, node)
    for path in stopped.files():
        path.unlink()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, before[1]))
    try:
        outcome = stopped.repair()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert outcome.is_whole and len(outcome.repaired) == OPEN_FILES + 50
    assert stopped.is_whole()
