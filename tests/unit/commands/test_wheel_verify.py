"""`delayd wheel verify`: it is silent about a whole wheel, and right about every damage.

Source: docs/design/storage.md, "Looking at a wheel".
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from cluster_settings import LANES, PARTITIONS
from typer.testing import CliRunner
from wheel_disks import flip
from wheel_reading import split_all
from wheels_on_disk import (
    Catalogued,
    Ingest,
    abandoned_wheel,
    catalogued,
    frames_of,
    record_of,
    slot_at,
    slot_path,
)

from delayd.commands.examine.commands import app
from delayd.commands.examine.showing import DAMAGE_SHOWN, findings_json, findings_lines
from delayd.commands.examine.verifying import Findings, verify
from delayd.errors import DiskError, ExitCode
from delayd.wheel import checking
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.disk import SystemDisk
from delayd.wheel.reader import SCAN_BYTES
from replication.frontier import first_frontier
from replication.rank import Rank

SEED = 20_261_122
FLIPS = 320
BATCHES = 10


def verified(directory: Path) -> Findings:
    findings, _ = verify(directory, lambda done, total: None)
    return findings


def files_in(directory: Path) -> dict[str, tuple[bytes, int]]:
    """All files with content and time of change."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody changes it."""
    return abandoned_wheel(tmp_path_factory.mktemp("whole") / "data")


@pytest.fixture(scope="module")
def known(whole: Path) -> Catalogued:
    return catalogued(whole)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


# --- Whole wheels


def test_a_whole_wheel_is_whole_and_stays_untouched(whole: Path, known: Catalogued) -> None:
    before = files_in(whole)
    findings = verified(whole)
    assert findings.is_whole and findings.damage == []
    assert findings.slots == len(known.lines) == 115
    frames = findings.messages + findings.pending_replies
    assert frames == sum(line.info.count for line in known.lines.values()) > 3_500
    assert findings.pending_replies > 50
    assert findings.lines[b"w"] == len(known.pending_replies) == 20
    assert findings.lines[b"i"] > 50
    assert (findings.frames_lost, findings.frames_suspect, findings.foreign_count) == (0, 0, 0)
    assert files_in(whole) == before


def test_what_is_behind_the_checkpoint_and_what_is_forgotten_is_counted_and_no_damage(
    whole: Path, known: Catalogued
) -> None:
    findings = verified(whole)
    lengths = {slot_path(whole, n, line): line.info.bytes for n, line in known.lines.items()}
    sizes = {path: path.stat().st_size for path in (whole / "slots").rglob("*") if path.is_file()}
    forgotten = {p for p in sizes if p not in lengths and p.name < str(slot_at(5))}
    behind = {p: n - lengths.get(p, 0) for p, n in sizes.items() if p not in forgotten}
    assert findings.forgotten_files == len(forgotten) == 5
    assert findings.forgotten_bytes == sum(sizes[path] for path in forgotten)
    assert findings.behind_bytes == sum(behind.values()) > 0
    assert findings.behind_files == sum(n > 0 for n in behind.values()) == 68


@pytest.mark.usefixtures("dense_hours")
def test_the_file_of_an_hour_that_was_split_and_forgotten_at_once_is_no_damage(
    tmp_path: Path,
) -> None:
    """One checkpoint dropped the lines of the hour and of its slots; a kill came before the file
    went. The frontier stands within that hour."""
    ingest = Ingest(tmp_path / "data")
    far = slot_at(0) + 10 * 3600
    ingest.wheel.append([ingest.frame(far + n)._replace(append_ms=1) for n in range(5)])
    ingest.checkpoint()
    [hour] = ingest.wheel.hours()
    split_all(ingest.wheel, hour * 3_600_000)
    slots = ingest.wheel.slots()
    assert slots == [far + n for n in range(5)] and not ingest.wheel.hours()
    frontier = replace(
        first_frontier(0, PARTITIONS, LANES),
        cursors=(Rank((far + 5) * 1000, 0, 0),) * LANES,
        offsets=tuple(ingest.offsets),
    )
    ingest.frontier = ingest.forgotten = record_of(frontier)
    ingest.wheel.forget(slots)
    ingest.checkpoint(finish=False)
    ingest.wheel.close()
    assert [path.name for path in (tmp_path / "data" / "slots").glob("*/*")] == ["hour.0"]
    findings = verified(tmp_path / "data")
    assert findings.is_whole, findings.damage


def test_a_wheel_that_never_had_a_checkpoint_is_whole(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path)
    ingest.append(10)
    ingest.wheel.freeze([(False, slot) for slot in ingest.wheel.slots()])
    ingest.wheel.close()
    findings = verified(tmp_path)
    assert findings.is_whole
    assert (findings.slots, findings.behind_files > 0) == (0, True)


# --- Damaged slot files, and the command


@pytest.mark.parametrize("scan_bytes", [SCAN_BYTES, 97])
def test_each_flipped_bit_is_reported_as_its_frame_or_lies_behind_the_checkpoint(
    whole: Path,
    known: Catalogued,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scan_bytes: int,
) -> None:
    """97 bytes: most frames are longer than what is read at once."""
    monkeypatch.setattr(checking, "SCAN_BYTES", scan_bytes)
    random = Random(SEED)
    lengths = {slot_path(whole, n, line): line.info.bytes for n, line in known.lines.items()}
    paths = sorted(path for path in (whole / "slots").rglob("*") if path.is_file())
    harmless = 0
    for batch in range(BATCHES):
        copy = Path(shutil.copytree(whole, tmp_path / str(batch)))
        expected = set()
        for path in random.sample(paths, FLIPS // BATCHES):
            # Every fifth one in the frames' lengths and CRCs, where a reader loses its way.
            place = random.randrange(path.stat().st_size)
            if path in lengths:
                slot = int(path.name.partition(".")[0])
                frames = frames_of(whole, slot, known.lines[slot])
                if random.random() < 0.3:
                    place = random.choice(frames).position + random.randrange(8)
            flip(copy / path.relative_to(whole), place, random.randrange(8))
            if place >= lengths.get(path, 0):
                harmless += 1
                continue
            [frame] = [f for f in frames if f.position <= place < f.position + f.length]
            name = str(path.relative_to(whole))
            expected.add((name, slot, frame.position, frame.position + frame.length))
        findings = verified(copy)
        found = [(d.file, d.slot, d.first_byte, d.end_byte) for d in findings.damage]
        assert set(found) == expected, f"seed {SEED}, batch {batch}"
        assert len(found) == findings.frames_lost == findings.damaged_slots == len(expected)
        assert (findings.frames_suspect, findings.is_whole) == (0, False)
    assert 0 < harmless < FLIPS // 2


def test_many_damages_of_one_slot_are_told_apart(copy: Path, known: Catalogued) -> None:
    slot, line = max(known.lines.items(), key=lambda each: each[1].info.count)
    frames = frames_of(copy, slot, line)[1::3]
    path = slot_path(copy, slot, line)
    for number, frame in enumerate(frames):
        flip(path, frame.position + (number % 4 if number % 2 else 45), 2)
    findings = verified(copy)
    spans = [(d.first_byte, d.end_byte) for d in findings.damage]
    assert spans == [(f.position, f.position + f.length) for f in frames]
    assert findings.frames_lost == len(frames) > 5
    assert findings.damaged_slots == 1


def test_a_slot_with_endless_damage_has_a_bounded_list(
    copy: Path, known: Catalogued, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "SPANS_MAX", 3)
    slot, line = max(known.lines.items(), key=lambda each: each[1].info.count)
    frames = frames_of(copy, slot, line)[::2]
    for frame in frames:
        flip(slot_path(copy, slot, line), frame.position + 5, 0)
    findings = verified(copy)
    spans = [(d.first_byte, d.end_byte) for d in findings.damage]
    assert len(spans) == 3
    assert spans[-1] == (frames[2].position, frames[-1].position + frames[-1].length)
    assert findings.frames_lost == len(frames)


def test_a_truncated_file_is_reported_from_its_last_whole_frame_on(
    whole: Path, known: Catalogued, tmp_path: Path
) -> None:
    random = Random(SEED)
    for batch in range(4):
        copy = Path(shutil.copytree(whole, tmp_path / str(batch)))
        expected = {}
        lost = 0
        for slot in random.sample(sorted(known.lines), 25):
            line = known.lines[slot]
            path = slot_path(copy, slot, line)
            size = random.randrange(path.stat().st_size + 1)
            os.truncate(path, size)
            frames = frames_of(whole, slot, line)
            broken = [f for f in frames if f.position + f.length > size]
            if broken:
                expected[slot] = (broken[0].position, line.info.bytes)
                lost += len(broken)
        findings = verified(copy)
        found = {d.slot: (d.first_byte, d.end_byte) for d in findings.damage}
        assert found == expected, f"seed {SEED}, batch {batch}"
        assert findings.frames_lost == lost > 0


def test_a_missing_file_is_reported_with_all_its_frames(copy: Path, known: Catalogued) -> None:
    slot, line = next(iter(known.lines.items()))
    slot_path(copy, slot, line).unlink()
    findings = verified(copy)
    [damage] = findings.damage
    assert (damage.slot, damage.first_byte, damage.end_byte) == (slot, 0, line.info.bytes)
    assert "no such file" in damage.why
    assert findings.frames_lost == line.info.count
    assert not findings.is_whole


def test_a_file_in_anothers_place_is_reported(copy: Path, known: Catalogued) -> None:
    (one, line), (other, other_line) = list(known.lines.items())[:2]
    shutil.copy(slot_path(copy, other, other_line), slot_path(copy, one, line))
    findings = verified(copy)
    assert {damage.slot for damage in findings.damage} == {one}
    assert findings.damage[0].first_byte == 0
    assert "another slot" in findings.damage[0].why
    assert findings.frames_lost == line.info.count


def test_frames_that_are_whole_but_not_those_of_the_line_are_suspect(
    whole: Path, copy: Path, known: Catalogued
) -> None:
    """As many frames, all of this slot, all with their CRCs: one of them twice."""
    for slot, line in known.lines.items():
        frames = frames_of(whole, slot, line)
        for first in frames:
            twins = [f for f in frames if f.length == first.length and f != first]
            if twins:
                path = slot_path(copy, slot, line)
                data = bytearray(path.read_bytes())
                one, other = first.position, twins[0].position
                data[one : one + first.length] = data[other : other + first.length]
                path.write_bytes(data)
                findings = verified(copy)
                assert (findings.frames_lost, findings.frames_suspect) == (0, line.info.count)
                assert findings.damage[0][2:5] == (slot, 0, line.info.bytes)
                return
    pytest.fail("no slot has two frames of one length")


def test_a_file_whose_line_is_lost_is_reported(copy: Path, known: Catalogued) -> None:
    """As when LevelDB forgets a table: recovery would remove the file, and lose its messages."""
    slot, line = list(known.lines.items())[40]
    catalogue = Catalogue(str(copy / "catalogue"), create=False)
    catalogue._db.delete(b"s" + slot.to_bytes(8, "big"))
    catalogue.close()
    findings = verified(copy)
    assert findings.frames_lost == line.info.count
    [damage] = [d for d in findings.damage if "not in the catalogue" in d.why]
    assert damage.slot == slot


def test_a_waiting_answer_without_its_frame_is_reported(copy: Path, known: Catalogued) -> None:
    moved, beyond = known.pending_replies[:2]
    catalogue = Catalogue(str(copy / "catalogue"), create=False)
    for entry, position in ((moved, moved.position - 1), (beyond, 10**6)):
        key = b"w" + entry.partition.to_bytes(2, "big") + entry.offset.to_bytes(8, "big")
        assert catalogue._db.get(key) is not None
        value = (entry.due_ms, entry.lane, entry.kind, position, entry.length)
        catalogue._db.put(key, packed(value))
    catalogue.close()
    findings = verified(copy)
    assert [damage.slot for damage in findings.damage] == [
        moved.due_ms // 1000,
        beyond.due_ms // 1000,
    ]


def packed(values: tuple[int, ...]) -> bytes:
    import msgpack

    data: bytes = msgpack.packb(values)
    return data


def test_names_that_are_not_ours_are_listed_and_no_damage(copy: Path) -> None:
    hour = next((copy / "slots").iterdir())
    (copy / "slots" / "note.txt").write_text("mine")
    (hour / "backup.tar").write_text("mine")
    findings = verified(copy)
    assert findings.is_whole
    assert set(findings.foreign) == {"slots/note.txt", f"slots/{hour.name}/backup.tar"}


def test_a_file_that_cannot_be_read_is_damage(
    copy: Path, known: Catalogued, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, line = list(known.lines.items())[30]
    pread = SystemDisk.pread

    def failing(self: SystemDisk, file: object, size: int, position: int) -> bytes:
        if getattr(file, "path", "") == str(slot_path(copy, slot, line)):
            raise DiskError("cannot read: Input/output error")
        return pread(self, file, size, position)  # type: ignore[arg-type]

    monkeypatch.setattr(SystemDisk, "pread", failing)
    findings = verified(copy)
    [damage] = findings.damage
    assert (damage.slot, damage.first_byte, damage.end_byte) == (slot, 0, line.info.bytes)
    assert findings.frames_lost == line.info.count


def test_the_command_tells_slot_bytes_and_count_and_exits_1(copy: Path, known: Catalogued) -> None:
    fine = CliRunner().invoke(app, ["verify", str(copy), "--json"])
    assert (fine.exit_code, json.loads(fine.stdout)["ok"]) == (ExitCode.FINE, True)
    slot, line = list(known.lines.items())[7]
    frame = frames_of(copy, slot, line)[1]
    flip(slot_path(copy, slot, line), frame.position + 20, 3)
    end = frame.position + frame.length

    told = CliRunner().invoke(app, ["verify", str(copy)])
    assert told.exit_code == ExitCode.PROBLEM
    assert f"slot {slot} (" in told.stdout
    assert f"bytes {frame.position} to {end} has a wrong CRC" in told.stdout
    assert "1 frames are lost and 0 suspect, in 1 slots" in told.stdout
    assert "run `delayd wheel repair`" in told.stdout

    as_json = CliRunner().invoke(app, ["verify", str(copy), "--json"])
    found = json.loads(as_json.stdout)
    assert as_json.exit_code == ExitCode.PROBLEM
    assert (found["ok"], found["frames_lost"], found["damage_count"]) == (False, 1, 1)
    [damage] = found["damage"]
    assert (damage["slot"], damage["first_byte"], damage["end_byte"]) == (
        slot,
        frame.position,
        end,
    )
    assert found["checkpoint"]["offsets"] == list(known.progress.offsets if known.progress else ())


def test_the_list_of_damage_is_bounded(copy: Path, known: Catalogued) -> None:
    shutil.rmtree(copy / "slots")
    (copy / "slots").mkdir()
    findings = verified(copy)
    assert findings.damage_count == 115
    assert {damage.slot for damage in findings.damage} == set(known.lines)
    lines = list(findings_lines(findings, None))
    assert sum(line.startswith("DAMAGED") for line in lines) == DAMAGE_SHOWN + 1
    assert len(findings_json(findings, None)["damage"]) == 115
