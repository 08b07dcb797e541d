"""`delayd wheel inspect`: a wheel in figures, by its catalogue alone."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner
from wheel_disks import make_older
from wheels_on_disk import Ingest, abandoned_wheel, catalogued, slot_at

from delayd.commands.examine.commands import app
from delayd.commands.examine.inspecting import LARGEST_SHOWN, Share, inspect
from delayd.commands.examine.showing import ROWS_MAX, histogram, overview_json
from delayd.errors import CorruptionError, ExitCode


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return abandoned_wheel(tmp_path_factory.mktemp("inspected") / "data", frames_per_round=300)


def test_the_figures_are_those_of_the_last_checkpoint(directory: Path) -> None:
    known = catalogued(directory)
    infos = {slot: line.info for slot, line in known.lines.items()}
    overview = inspect(directory)
    assert overview.progress == known.progress
    total = Share(
        len(infos), 0, sum(i.count for i in infos.values()), sum(i[1] for i in infos.values())
    )
    assert overview.total == total
    assert overview.lines[b"w"] == len(known.pending_replies)
    largest = sorted((info.bytes, info.count, slot) for slot, info in infos.items())
    assert overview.largest == largest[-LARGEST_SHOWN:]
    by_hour = {hour: share.frames for hour, share in overview.by_hour.items()}
    expected: dict[int, int] = {}
    for slot, info in infos.items():
        expected[slot // 3600] = expected.get(slot // 3600, 0) + info.count
    assert by_hour == expected and len(expected) == 3


def test_what_the_frontier_has_passed_is_kept_and_the_rest_is_pending(directory: Path) -> None:
    """The cursor stands at the beginning of slot 7; slots 0 to 4 are forgotten."""
    infos = {slot: line.info for slot, line in catalogued(directory).lines.items()}
    overview = inspect(directory)
    kept = [infos[slot_at(index)].count for index in (5, 6)]
    assert (overview.kept.slots, overview.kept.frames) == (2, sum(kept))
    assert (overview.mixed.slots, overview.mixed.frames) == (1, infos[slot_at(7)].count)
    assert overview.pending.slots == len(infos) - 3


def test_a_late_arrival_makes_a_passed_slot_mixed(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path)
    ingest.wheel.append([ingest.frame(slot_at(index)) for index in range(10)])
    ingest.deliver(5)
    ingest.wheel.append([ingest.frame(slot_at(2))])
    ingest.end()
    overview = inspect(tmp_path)
    assert (overview.kept.slots, overview.mixed.slots, overview.pending.slots) == (4, 2, 4)


def test_without_a_frontier_all_is_pending(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path)
    ingest.append(20)
    ingest.end()
    overview = inspect(tmp_path)
    assert overview.pending == overview.total and overview.total.frames == 20


def test_a_histogram_is_by_hour_for_two_days_then_by_day_and_never_long() -> None:
    def rows(*hours: int) -> list[str]:
        return list(histogram({hour: Share(1, 0, 10, 100) for hour in hours}))

    head, *lines = rows(495_840, 495_840 + 47)
    assert head.startswith("frames by hour")
    assert len(lines) == 48 and lines[0].split() == ["2026-07-26", "00:00", "10", "#" * 40]
    assert lines[1].split() == ["2026-07-26", "01:00", "0"]
    head, *lines = rows(495_840, 495_840 + 48)
    assert head.startswith("frames by day") and len(lines) == 3
    head, *lines = rows(495_840, 495_840 + 40 * 24)
    assert head.startswith("frames by day") and len(lines) == 41
    head, *lines = rows(495_840, 495_840 + 3650 * 24)
    assert head.startswith("frames by 58 days") and len(lines) <= ROWS_MAX
    assert sum(int(line.split()[1]) for line in lines) == 20


def test_the_command_shows_it_and_json_is_one_object(directory: Path) -> None:
    shown = CliRunner().invoke(app, ["inspect", str(directory)])
    assert shown.exit_code == ExitCode.FINE
    assert "format      5, for a buffer of 2 partitions" in shown.stdout
    assert "frames by hour" in shown.stdout and "largest slots" in shown.stdout
    as_json = CliRunner().invoke(app, ["inspect", str(directory), "--json"])
    assert json.loads(as_json.stdout) == json.loads(json.dumps(overview_json(inspect(directory))))
    found = json.loads(as_json.stdout)
    assert found["format"] == 5
    assert found["checkpoint"]["frontier"]["step"] == 7
    shares = [found[name]["frames"] for name in ("pending", "mixed", "kept")]
    assert sum(shares) == found["frames"] == sum(hour["frames"] for hour in found["hours"])


def test_a_directory_of_the_format_before_is_shown_as_what_it_is(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path)
    ingest.append(20)
    ingest.end()
    make_older(tmp_path)
    for command in ("inspect", "verify"):
        shown = CliRunner().invoke(app, [command, str(tmp_path)])
        assert shown.exit_code == ExitCode.FINE
        assert "format      4, for a buffer of 2 partitions" in shown.stdout
        as_json = CliRunner().invoke(app, [command, str(tmp_path), "--json"])
        assert json.loads(as_json.stdout)["format"] == 4


def test_a_damaged_catalogue_is_said(tmp_path: Path) -> None:
    Ingest(tmp_path).wheel.close()
    (tmp_path / "catalogue" / "CURRENT").unlink()
    with pytest.raises(CorruptionError, match="lost or damaged"):
        inspect(tmp_path)
