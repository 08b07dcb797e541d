"""What `delayd move` takes out of a wheel: what an export has, and what lies behind its cut.

Source: docs/design/moving.md, "What is pending".
"""

import dataclasses
from pathlib import Path

import pytest
from exporting_node import BEGIN_MS, ExportingNode, Row, cancel, cut, schedule
from test_wheel_export import CANCELS, HOUR_MS, MESSAGES, requests, take
from typer.testing import CliRunner
from wheel_disks import flip

from delayd.cluster.frontier_log import SeenFrontier
from delayd.commands import cli
from delayd.commands.move.source import Message, Source
from delayd.errors import ConfigError, CorruptionError, VirtualClusterError
from delayd.runtime.virtual_time import VARIABLE, VirtualTime
from delayd.wheel.stopped import locked, open_stopped

LAST = MESSAGES + CANCELS
CUT = cut(7, (LAST + 1,) * 2, cursor_ms=BEGIN_MS + 20_000, append_ms=BEGIN_MS + 60_000)


def stopped(folder: Path, *, pieces: int = 0, at: SeenFrontier | None = CUT) -> Path:
    """A node that has taken in messages and cancels, split so many pieces, and stopped."""
    node = ExportingNode(folder)
    asked, cancels = requests()
    take(node, asked)
    node.replica.checkpoint()
    for _ in range(pieces):
        assert node.replica.split_some(BEGIN_MS + 5 * HOUR_MS)
    take(node, cancels)
    node.take(*(schedule(LAST, BEGIN_MS + HOUR_MS, partition=partition) for partition in (0, 1)))
    if at is not None:
        node.see(at)
    node.replica.checkpoint()
    node.close()
    return folder


def found(directory: Path, at: SeenFrontier) -> list[Message]:
    with locked(directory) as layout, open_stopped(layout) as wheel:
        return list(Source(wheel).messages(at.record.frontier))


def places(messages: list[Message]) -> list[Row]:
    return sorted((message.rank.partition, message.rank.offset) for message in messages)


@pytest.mark.usefixtures("dense_hours")
@pytest.mark.parametrize("pieces", [0, 1, 3, 8])
def test_it_is_what_an_export_has_by_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Also where an hour lies half in its file and half in its slots."""
    monkeypatch.setattr("delayd.wheel.near_hours.SPLIT_BYTES", 2_500)
    directory = stopped(tmp_path / "data", pieces=pieces)
    messages = found(directory, CUT)
    ranks = [message.rank for message in messages]
    assert ranks == sorted(ranks)
    node = ExportingNode(directory)
    assert places(messages) == node.pending(CUT)
    node.close()
    assert len(messages) > 200


def test_two_wheels_that_hold_the_same_give_the_same(tmp_path: Path) -> None:
    """They were split differently."""
    a, b = (found(stopped(tmp_path / f"{n}", pieces=n), CUT) for n in (0, 3))
    assert a == b


def test_requests_and_cancels_behind_the_cut_count(tmp_path: Path) -> None:
    node = ExportingNode(tmp_path / "data")
    node.take(
        schedule(0, BEGIN_MS + HOUR_MS, id="a"),
        schedule(1, BEGIN_MS + HOUR_MS, id="b"),
        schedule(2, BEGIN_MS + HOUR_MS, id="behind"),
        cancel(3, "a"),
    )
    early = cut(1, (2, 2))
    node.see(early)
    node.replica.checkpoint()
    node.close()
    with locked(tmp_path / "data") as layout, open_stopped(layout) as wheel:
        source = Source(wheel)
        ids = {message.body[6] for message in source.messages(early.record.frontier)}
        assert ids == {"b", "behind"}
        assert source.replies_open == 1, "the verdict of the cancel"


def test_a_late_arrival_below_the_cursor_is_pending(tmp_path: Path) -> None:
    node = ExportingNode(tmp_path / "data")
    node.take(schedule(0, BEGIN_MS), schedule(1, BEGIN_MS))
    at = cut(1, (1, 0), cursor_ms=BEGIN_MS + HOUR_MS)
    node.see(at)
    node.replica.checkpoint()
    node.close()
    assert places(found(tmp_path / "data", at)) == [(0, 1)]


def test_damage_ends_it(tmp_path: Path) -> None:
    directory = stopped(tmp_path / "data")
    path = max((directory / "slots").rglob("*.*"), key=lambda path: path.stat().st_size)
    flip(path, path.stat().st_size // 2)
    with pytest.raises(CorruptionError, match="wheel verify"):
        found(directory, CUT)


def test_a_wheel_without_a_frontier_is_refused(tmp_path: Path) -> None:
    directory = stopped(tmp_path / "data", at=None)
    with pytest.raises(ConfigError, match="knows no frontier"):
        found(directory, CUT)


def test_a_wheel_whose_time_is_of_another_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `delayd move` as by `delayd recover frontier`: its due times would be taken for real."""
    monkeypatch.delenv(VARIABLE, raising=False)
    virtual = dataclasses.replace(CUT.record.settings, virtual=True)
    at = CUT._replace(record=dataclasses.replace(CUT.record, settings=virtual))
    directory = stopped(tmp_path / "data", at=at)
    with pytest.raises(VirtualClusterError, match="virtual clock"):
        found(directory, at)
    monkeypatch.setenv(VARIABLE, str(VirtualTime.create(tmp_path / "time").file))
    assert found(directory, at)
    real = stopped(tmp_path / "real")
    with pytest.raises(VirtualClusterError, match=f"unset {VARIABLE}"):
        found(real, CUT)


@pytest.mark.parametrize(
    "options", [("--dry-run", "--yes"), ("--frontier-from", "old:1", "--stopped-at", "1")]
)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    result = CliRunner().invoke(cli.app, ["move", str(tmp_path), "-b", "nowhere:1", *options])
    assert isinstance(result.exception, ConfigError)


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    arguments = ["move", str(tmp_path), "-b", "nowhere:1", "--stopped-at", "yesterday"]
    result = CliRunner().invoke(cli.app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert "2026-01-31T23:59:59Z" in str(result.exception)
