"""A real node's wheel is damaged, repaired from a real buffer by the command, and goes on.

Source: docs/operations.md, "A damaged wheel".
"""

import json
import signal
from typing import Any

import pytest
from clusters import TestCluster
from nodes import HANGS_S, NodeProcess, delayd, master_of, running, wait_for

from delayd.errors import ExitCode

pytestmark = pytest.mark.real

FAR_MS = (3_600_000, 30 * 3_600_000)
COUNT = 300


def stored(node: NodeProcess) -> int:
    """Frames in the node's wheel at its last checkpoint."""
    shown = delayd("wheel", "inspect", str(node.data), "--json")
    assert shown.returncode == ExitCode.FINE, shown.stderr
    frames: int = json.loads(shown.stdout)["frames"]
    return frames


def counted(node: NodeProcess) -> dict[str, Any]:
    """What the node counts as pending, by the command."""
    shown = delayd("pending", "--admin", f"127.0.0.1:{node.port}", "--json")
    assert shown.returncode == ExitCode.FINE, shown.stderr
    found = json.loads(shown.stdout)
    assert sum(each["messages"] for each in found["hours"]) == found["total"]
    hours = len(found["hours"])
    return {"total": found["total"], "topics": found["topics"], "hours": hours}


def test_a_damaged_wheel_is_repaired_and_its_node_goes_on(cluster: TestCluster) -> None:
    target = cluster.target("later")
    node = cluster.node(0)
    with running([node]), cluster.client() as client:
        told = [
            client.schedule_async(target, b"v%d" % n, id=f"r-{n}", in_=FAR_MS[n % 2])
            for n in range(COUNT)
        ]
        for each in told:
            each.result(HANGS_S)
        wait_for(lambda: node.status()["ingested_count"] >= COUNT, "all are ingested")
        assert counted(node) == {"total": COUNT, "topics": {target: COUNT}, "hours": 2}
        node.signal(signal.SIGTERM)
        assert node.wait_exit() == 0
        held = stored(node)
        assert held >= COUNT
        files = [path for path in (node.data / "slots").rglob("*") if path.is_file()]
        assert any(path.name.startswith("hour.") for path in files) and len(files) > 1
        for path in files:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
        assert delayd("wheel", "verify", str(node.data)).returncode == ExitCode.PROBLEM
        repaired = delayd("wheel", "repair", "--config", str(node.config), "--json")
        assert repaired.returncode == ExitCode.FINE, repaired.stdout + repaired.stderr
        told = json.loads(repaired.stdout)
        assert told["whole"] and len(told["repaired"]) == len(files)
        assert told["from_buffer"] >= len(files)
        assert delayd("wheel", "verify", str(node.data)).returncode == ExitCode.FINE
        assert stored(node) == held
        left = node.data / "repair" / "catalogue"  # As by a repair that is killed.
        left.mkdir(parents=True)
        node.start()
        master_of([node])
        assert not left.parent.exists()
        assert counted(node) == {"total": COUNT, "topics": {target: COUNT}, "hours": 2}
        refused = delayd("wheel", "repair", "--config", str(node.config))
        assert refused.returncode != ExitCode.FINE and "runs on" in refused.stderr
