"""All disks are lost and the buffer is trimmed: a backup brings back what is pending, each message
once.

Source: docs/disaster-recovery.md.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from nodes import CLOCK, HANGS_S, NodeProcess, delayd, master_of, running, wait_for
from topics_read import read_until

from delayd.client import Client
from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode

pytestmark = pytest.mark.real

COUNT = 300
VALUE = b"v" * 2_000
LATER_MS = 25_000
"""Long enough for two backups on a busy machine; who is slower delivers some of it before."""
CANCELS = 30


def trim(cluster: TestCluster, offsets: list[int]) -> None:
    """Delete the buffer below these offsets, as retention does."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    below = [TopicPartition(cluster.buffer, p, offset) for p, offset in enumerate(offsets)]
    for done in admin.delete_records(below).values():
        done.result(HANGS_S)


def backed_up(target: Path, node: NodeProcess) -> dict[str, Any]:
    """What a backup says of itself."""
    done = delayd("backup", str(target), "--config", str(node.config), "--json")
    assert done.returncode == ExitCode.FINE, done.stderr
    assert "copies the wheel of" in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Traffic:
    """What was asked for, and what must come of it."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self.expected: dict[str, bytes] = {}
        self.last_due_ms = 0

    def schedule(self, name: str, count: int, in_ms: int) -> None:
        due_ms = CLOCK.wall_ms() + in_ms
        self.last_due_ms = max(self.last_due_ms, due_ms)
        told = []
        for number in range(count):
            id = f"{name}-{number}"
            self.expected[id] = id.encode() + VALUE
            told.append(
                self._client.schedule_async(self._topic, self.expected[id], id=id, at=due_ms)
            )
        for each in told:
            each.result(HANGS_S)

    def cancel(self, name: str, numbers: range) -> None:
        for number in numbers:
            id = f"{name}-{number}"
            if self._client.cancel(id, timeout_ms=HANGS_S * 1_000).verdict == "cancelled":
                self.expected.pop(id, None)


def test_a_backup_brings_back_what_is_pending(kafka_and_etcd: LocalCluster, tmp_path: Path) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=2)
    topic = cluster.target("later")
    nodes = [cluster.node(0, on_damage="stop"), cluster.node(1)]
    target = tmp_path / "backups"
    target.mkdir()
    with running(nodes), cluster.client() as client:
        master = master_of(nodes)
        traffic = Traffic(client, topic)
        traffic.schedule("before", 50, 0)
        traffic.schedule("later", COUNT, LATER_MS)
        traffic.cancel("later", range(CANCELS))
        first = backed_up(target, nodes[0])
        assert first["node"] != master.name
        assert first["written_bytes"] > len(VALUE) * 200

        # The second one takes what is new alone.
        traffic.schedule("meanwhile", 20, LATER_MS)
        traffic.cancel("later", range(CANCELS, 2 * CANCELS))
        traffic.schedule("soon", 20, 1_000)
        second = backed_up(target, nodes[0])
        assert 40 * len(VALUE) < second["written_bytes"] < first["written_bytes"] / 2
        assert second["pending"] > 0

        # After it: messages and cancels that only the log knows, deliveries that only the frontier
        # knows.
        traffic.schedule("after", 20, 0)
        traffic.schedule("after-later", 20, LATER_MS)
        traffic.cancel("later", range(2 * CANCELS, 3 * CANCELS))
        read_until(cluster.bootstrap, topic, lambda seen: len(seen) >= 90)
        for node in nodes:
            node.kill()
            shutil.rmtree(node.data)
            node.data.mkdir()
        trim(cluster, second["reached"])

        # Without a backup that is the end.
        assert nodes[0].start().wait_exit() != 0
        assert "now begins at offset" in nodes[0].log
        into = ("restore", str(target), "--into", str(nodes[0].data), "-c", str(nodes[0].config))

        # A backup from before the trim is no help, and is not taken for one.
        older = (*into, "--at", str(second["made_ms"] - 1), "--yes")
        refused = delayd(*older)
        assert refused.returncode == ExitCode.PROBLEM and "no node would use" in refused.stderr
        assert delayd(*older, "--behind-the-log").returncode == ExitCode.FINE
        ends = nodes[0].log.count("now begins at offset")
        assert nodes[0].start().wait_exit() != 0
        assert nodes[0].log.count("now begins at offset") > ends, "it must not skip what is gone"
        shutil.rmtree(nodes[0].data)
        nodes[0].data.mkdir()

        # The newest one, into one node; the other one copies its wheel.
        assert "would restore into" in delayd(*into).stdout
        done = delayd(*into, "--yes", "--json")
        assert done.returncode == ExitCode.FINE, done.stderr
        assert json.loads(done.stdout)["pending"] == second["pending"]
        again = delayd(*into, "--yes")
        assert again.returncode == ExitCode.PROBLEM and "holds a wheel" in again.stderr
        nodes[0].start().wait_ready()
        nodes[1].start().wait_ready()
        assert f"donor={nodes[0].name}" in nodes[1].log

        traffic.cancel("meanwhile", range(5))
        assert client.cancel("later-0", timeout_ms=HANGS_S * 1_000).verdict == "cancelled"
        traffic.schedule("last", 5, 0)
        wait_for(
            lambda: nodes[0].status()["frontier"]["cursor_ms"] > traffic.last_due_ms,
            "all is delivered",
        )
        count = len(traffic.expected)
        seen = read_until(cluster.bootstrap, topic, lambda seen: len(seen) >= count)
        assert sorted(record.value or b"" for record in seen) == sorted(traffic.expected.values())
