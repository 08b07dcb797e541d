"""The demo from end to end, as a person runs it: real parts, a killed master, a verdict."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from delayd.dev.processes import processes_of

pytestmark = pytest.mark.real

ORDERS = 3_000
SECONDS = 12
TIMEOUT_S = 1_100  # with an audit, on a machine that does other things too
COMMAND = [sys.executable, "-m", "delayd.commands.cli", "dev", "demo"]
COMMAND += ["--orders", str(ORDERS), "--seconds", str(SECONDS), "--json"]


def witnesses_of(demo: int) -> list[psutil.Process]:
    """Return the witnesses that this process has started."""
    children = psutil.Process(demo).children()
    return [child for child in children if "delayd.dev.job" in child.cmdline()]


def test_every_order_comes_once_or_is_cancelled_for_good_through_a_killed_master(
    tmp_path: Path,
) -> None:
    demo = subprocess.run(
        [*COMMAND, "--dir", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )

    assert demo.returncode == 0, demo.stderr
    report = json.loads(demo.stdout)
    faults = ("lost", "doubled", "early", "altered", "unknown", "wrong_verdicts", "unanswered")
    assert {name: report[name] for name in faults} == dict.fromkeys(faults, 0)
    assert report["verdict"] == "ok"
    assert report["delivered"] + report["cancelled"] == ORDERS
    assert report["cancelled"] + report["too_late"] == report["payments"] == ORDERS // 3
    assert report["cancelled"] > 0
    assert report["too_late"] > 0
    assert report["successor"] != report["killed"]
    [failover] = report["failovers"]
    assert failover["counts"]
    assert 0 < failover["gap_ms"] < SECONDS * 1000
    assert report["lateness_ms"]["max"] >= report["steady_lateness_ms"]["max"]
    assert report["audit"]["verdict"] == "ok"
    assert report["audit"]["accepted"] == ORDERS
    assert [node["problem"] for node in report["audit"]["nodes"]] == [None, None, None]
    page = Path(report["page"])
    assert page == tmp_path / "demo" / "delayd-audit.html"
    assert "<html" in page.read_text()
    assert processes_of(tmp_path / "demo") == frozenset()


def test_an_interrupted_demo_leaves_nothing_running_and_no_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "orders scheduled" in line:
                break
        [directory] = tmp_path.glob("delayd-demo-*")
        [witness] = witnesses_of(demo.pid)
        assert processes_of(directory)
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=TIMEOUT_S)

    assert demo.returncode == 128 + signal.SIGTERM
    assert processes_of(directory) == frozenset()
    assert not witness.is_running()
    assert list(tmp_path.iterdir()) == []
