"""`delayd wheel diff`: wheels that cannot be compared, and the command."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from comparing_nodes import spread
from exporting_node import SETTINGS, cut
from test_wheel_diff import altered, compared, hour_files, node, stop
from typer.testing import CliRunner
from wheel_disks import flip
from wheels_on_disk import Ingest

from delayd.commands.examine.commands import app
from delayd.errors import ConfigError, CorruptionError, ExitCode


def test_wheels_of_two_clusters_are_refused(tmp_path: Path) -> None:
    replicas = []
    other = replace(SETTINGS, buffer=replace(SETTINGS.buffer, topic_id="another"))
    for name, settings in (("a", SETTINGS), ("b", other)):
        replica = node(tmp_path / name, *spread(5), settings=settings)
        replica.observe(cut(1, (0, 0), settings=settings))
        replicas.append(stop(replica))
    with pytest.raises(ConfigError, match=r"\(id-1\).*\(another\)"):
        compared(*replicas)


def test_wheels_for_other_partition_counts_are_refused(tmp_path: Path) -> None:
    a = stop(node(tmp_path / "a", *spread(5)))
    b = stop(node(tmp_path / "b", settings=replace(SETTINGS, partitions=3)))
    with pytest.raises(ConfigError, match=r"of 2 partitions.* of 3"):
        compared(a, b)


def test_a_wheel_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    a = stop(node(tmp_path / "a", *spread(5)))
    node(tmp_path / "b", *spread(5)).close()
    with pytest.raises(ConfigError, match="no checkpoint"):
        compared(a, tmp_path / "b")


def test_a_directory_is_not_compared_with_itself(tmp_path: Path) -> None:
    a = stop(node(tmp_path / "a", *spread(5)))
    (tmp_path / "link").symlink_to(a)
    with pytest.raises(ConfigError, match="same directory"):
        compared(a, tmp_path / "link")


def test_a_frontier_of_another_version_is_refused(tmp_path: Path) -> None:
    a = stop(node(tmp_path / "a", *spread(5)))
    ingest = Ingest(tmp_path / "b")
    ingest.frontier = b'{"format": 99}'
    ingest.end()
    with pytest.raises(ConfigError, match="unknown frontier format 99"):
        compared(a, tmp_path / "b")


@pytest.mark.parametrize("is_far", [True, False])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_damage_in_what_must_be_read_is_told_with_what_to_do(
    tmp_path: Path, is_far: bool, harm: str
) -> None:
    records = spread(300)
    a = stop(node(tmp_path / "a", *records))
    b = stop(node(tmp_path / "b", *(altered(r) for r in records)))
    files = hour_files(b) if is_far else sorted(b.glob("slots/*/[0-9]*"))
    if harm == "flip":
        flip(files[0], 60, 3)
    elif harm == "cut":
        os.truncate(files[0], files[0].stat().st_size - 3)
    else:
        files[0].unlink()
    with pytest.raises(CorruptionError, match=rf"{files[0]}.*delayd wheel verify {b}"):
        compared(a, b)


def test_a_file_that_is_not_what_its_line_says_is_damage(tmp_path: Path) -> None:
    """Whole frames of the right length, and not those that were stored."""
    records = [record._replace(value=b"something here") for record in spread(300)]
    a = stop(node(tmp_path / "a", *records))
    b = stop(node(tmp_path / "b", *(altered(r) for r in records)))
    ours, theirs = (hour_files(each)[0] for each in (a, b))
    assert ours.stat().st_size == theirs.stat().st_size
    shutil.copy(ours, theirs)
    with pytest.raises(CorruptionError, match=f"which are not the .*delayd wheel verify {b}"):
        compared(a, b)


def test_the_command_says_so_and_exits_0_or_1_or_2(tmp_path: Path) -> None:
    records = spread(50)
    a, b = (str(stop(node(tmp_path / name, *records))) for name in "ab")
    c = str(stop(node(tmp_path / "c", *(r for r in records if r.offset != 7))))
    alike = CliRunner().invoke(app, ["diff", a, b])
    assert alike.exit_code == ExitCode.FINE
    assert alike.stdout.splitlines()[-1] == "alike: both hold the same"
    different = CliRunner().invoke(app, ["diff", a, c])
    assert different.exit_code == ExitCode.PROBLEM
    assert "DIFFERENT   message 1/7 (due " in different.stdout
    assert different.stdout.splitlines()[-1] == "different: 1 only in A"
    told = json.loads(CliRunner().invoke(app, ["diff", a, c, "--json"]).stdout)
    assert (told["alike"], told["different"], told["only_a"], told["only_b"]) == (False, 1, 1, 0)
    [only] = told["differences"]
    assert (only["source"], only["what"], only["where"]) == ("1/7", "message", "only-a")
    assert CliRunner().invoke(app, ["diff", a, str(tmp_path / "none")]).exit_code == ExitCode.USAGE
