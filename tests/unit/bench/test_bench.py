"""What benchmarks report. Not here: measuring, which is `delayd bench` itself."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from delayd.bench.audits import stage_seconds
from delayd.bench.commands import bench
from delayd.bench.figures import Figure, is_wrong
from delayd.bench.process_costs import tree_of, tree_pss
from delayd.runtime import native


def test_the_ratio_is_of_paired_runs() -> None:
    figure = Figure("p99", "ms", (10.0, 40.0, 30.0), "whole", (10.0, 20.0, 10.0))
    assert (figure.value, figure.ratio) == (30.0, 2.0)


def test_a_lateness_of_nothing_can_be_compared_with() -> None:
    assert Figure("p50", "ms", (3.0,), "whole", (0.0,)).ratio == 3.0


@pytest.mark.parametrize("wrong", [(0.0, 1.0), (2.0, 0.0)])
def test_one_wrong_message_in_any_run_is_wrong(wrong: tuple[float, ...]) -> None:
    right = Figure("neighbours-wrong", "messages", (0.0, 0.0))
    late = Figure("neighbours-p99", "ms", (50.0,))
    assert not is_wrong([right, late])
    assert is_wrong([right, late, Figure("retried-wrong", "messages", wrong)])


def test_what_an_audit_says_of_its_stages_is_added_up() -> None:
    told = "reading delayd-buffer: 40 %\nreading delayd-buffer: done in 2.5 s\nnonsense\n"
    told += "judging order: done in 0.2 s\nreading 4 targets: done in 1.0 s\n"
    told += "judging verdicts: failed after 9.0 s\n"

    assert stage_seconds(told) == (3.5, 0.2)


def test_the_memory_of_a_process_is_that_of_its_children_too() -> None:
    held = "x = b'x' * 80_000_000; print('held', flush=True); input()"
    parent = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
        " stdin=sys.stdin); p.wait()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent, held],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline() == b"held\n"
        found = list(tree_of(process.pid))
        held_bytes = tree_pss(process.pid)
        process.stdin.close()
        process.stdout.read()

    assert len(found) == 2 and 80_000_000 < held_bytes < 160_000_000
    assert tree_pss(process.pid) == 0


def test_both_paths_are_measured_where_there_are_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(typer.BadParameter, match="measures one path"):
        bench("lateness", both_paths=True)
    monkeypatch.setattr(native, "BUILT", tmp_path / "not there")
    with pytest.raises(typer.BadParameter, match="not built"):
        bench("ingest", both_paths=True)
