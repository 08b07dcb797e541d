"""`delayd bench ids` with few records: all its figures come, nothing is wrong or left behind.

Not here: how large the figures are.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayd.bench.ids import AGAIN, CANCEL, NEW, PLAIN
from delayd.commands.cli import app
from delayd.node.replica.noted_kills import NotedKills
from delayd.runtime import native

KINDS = (PLAIN, NEW, CANCEL, AGAIN)
WORDS = ("bench", "ids", "--messages", "2000", "--pending", "3000", "--runs", "1", "--json")


def test_both_paths_are_measured_in_one_run(
    library: native.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", library)
    done = CliRunner().invoke(app, [*WORDS, "--dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)["figures"]
    for path in ("", "-native"):
        for kind in KINDS:
            figure = figures[f"ids-{kind}{path}"]
            assert figure["unit"] == "us/record" and figure["value"] > 0
            assert ("ratio" in figure) == (kind != PLAIN)
        assert figures[f"ids{path}-wrong"]["runs"] == [0]
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_python_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", None)
    done = CliRunner().invoke(app, [*WORDS, "--dir", str(tmp_path)])
    assert done.exit_code == 0 and "native" not in done.stdout.partition('"figures"')[2]


def test_a_cancel_that_is_not_counted_off_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", None)
    monkeypatch.setattr(NotedKills, "note", lambda *_: None)
    done = CliRunner().invoke(app, [*WORDS, "--dir", str(tmp_path)])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["figures"]["ids-wrong"]["runs"] == [2000]


def test_it_needs_no_brokers() -> None:
    done = CliRunner().invoke(app, ["bench", "ids", "--bootstrap", "kafka:9092"])
    assert done.exit_code == 2 and "needs no brokers" in done.output
