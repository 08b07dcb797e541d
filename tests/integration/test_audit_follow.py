"""`delayd audit --follow` on a real cluster: silent while all is well, then one alarm each.

What is violated is planted in the topics themselves. The follower is killed in between, and must
neither repeat nor forget an alarm.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest
from clusters import TestCluster
from nodes import CLOCK, CLUSTER_KEY, master_of, node_group, wait_for
from raw_records import RawHeaders, RawWriter
from topics_read import Seen, read_until

from delayd.bus.murmur2 import partition_of
from delayd.client import Scheduled
from delayd.cluster.connect import open_bus
from delayd.cluster.frontier_log import FrontierLog
from replication.rank import Rank
from replication.record import StepCounts, encode

pytestmark = [pytest.mark.real, pytest.mark.timeout(1_200)]

ALARM_S = 60
"""An alarm comes within a minute."""

START_S = 600
"""Long enough to end a test that hangs; a start is promised no time."""
COUNT = 60
DAY_MS = 24 * 60 * 60 * 1000
Alarms: TypeAlias = "Counter[tuple[str, str | None]]"


@dataclass
class Follower:
    """The process, its alarm lines and its metrics."""

    cluster: TestCluster
    work: Path
    process: "subprocess.Popen[bytes] | None" = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.work.with_name("follow.log")

    def start(self) -> None:
        command = [sys.executable, "-m", "delayd.commands.cli", "audit", "--follow", "--json"]
        command += ["--bootstrap", self.cluster.bootstrap, "--prefix", f"{self.cluster.name}-"]
        command += ["--cluster", self.cluster.name]
        command += ["--work", str(self.work), "--metrics", str(self.metrics), "--interval", "5s"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "DELAYD_CLUSTER_KEY": CLUSTER_KEY},
                start_new_session=True,
            )

    @property
    def metrics(self) -> Path:
        return self.work.with_name("delayd.prom")

    def metric(self, name: str) -> float | None:
        """The value of a sample; None before there is one."""
        text = self.metrics.read_text() if self.metrics.exists() else ""
        found = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(found[0].split(" ")[1]) if found else None

    def alarms(self) -> Alarms:
        """What was told, by fault and source."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        told = [json.loads(line) for line in lines if line.startswith('{"')]
        return Counter((alarm["fault"], alarm["source"]) for alarm in told)

    def wait_for_alarms(self, expected: Alarms, within_s: int = ALARM_S) -> None:
        wait_for(lambda: self.alarms() >= expected, f"{expected - self.alarms()}", within_s)

    def kill(self) -> None:
        """SIGKILL; what it started ends by itself."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM to it and all that it started, as from who runs services; the exit code."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGTERM)
        return self.process.wait(60)

    def left(self) -> list[int]:
        """Processes that belong to it, whoever is their parent now."""
        return [
            process.pid
            for process in psutil.process_iter(["cmdline", "environ"])
            if str(self.work) in f"{process.info['cmdline']} {process.info['environ']}"
        ]


@contextmanager
def following(cluster: TestCluster, work: Path) -> Iterator[Follower]:
    follower = Follower(cluster, work)
    follower.start()
    try:
        yield follower
    finally:
        if follower.process is not None and follower.process.poll() is None:
            follower.kill()


def forge(cluster: TestCluster, topic: str, delivered: Seen, **changed: Any) -> None:
    """Write a record like this one to a target, with something else in it."""
    headers: RawHeaders = [*changed.get("headers", delivered.headers)]
    with closing(RawWriter(cluster.bootstrap, topic)) as writer:
        value = changed.get("value", delivered.value)
        partition = changed.get("partition", delivered.partition)
        writer.send(partition, changed.get("key", delivered.key), value, headers)
        writer.flush()


def as_delivered(at: Scheduled, id: str | None, fired_ms: int) -> RawHeaders:
    """The headers of a delivery."""
    own: RawHeaders = [] if id is None else [("delayd-id", id.encode())]
    return [
        ("n", b"1"),
        *own,
        ("delayd-due", b"%d" % at.due_ms),
        ("delayd-fired", b"%d" % fired_ms),
        ("delayd-source", b"%d/%d" % (at.partition, at.offset)),
    ]


def cover_everything(cluster: TestCluster) -> None:
    """A frontier record that nobody made: all that is due within a minute is done, it says."""
    bus = open_bus(cluster.bootstrap)
    topic = f"{cluster.name}-frontier"
    with closing(FrontierLog(bus, topic, 0)) as log, closing(bus.cluster()) as kafka:
        seen = log.open(20_000)
        assert seen is not None
        ends = kafka.end_offsets(cluster.buffer, 20_000, committed=True)
    record, frontier = seen.record, seen.record.frontier
    moved = replace(
        frontier,
        step=frontier.step + 1,
        offsets=tuple(ends[number] for number in range(len(ends))),
        cursors=(Rank(CLOCK.wall_ms() + 60_000, 0, 0),) * len(frontier.cursors),
    )
    forged = replace(record, frontier=moved, counts=StepCounts(), digest=0)
    with closing(RawWriter(cluster.bootstrap, topic)) as writer:
        writer.send(0, b"shard-0", encode(forged), [])
        writer.flush()


@pytest.mark.rehearsal
def test_violations_raise_one_alarm_each_though_the_follower_is_killed(
    cluster: TestCluster, tmp_path: Path
) -> None:
    topic, never = cluster.target("a"), f"target.{cluster.name}.never"
    node = cluster.node(1)
    with (
        node_group([node]),
        cluster.client() as client,
        following(cluster, tmp_path / "work") as follower,
    ):
        node.start()
        master_of([node])
        wait_for(lambda: follower.metric("delayd_audit_pending") == 0, "the first look", START_S)
        far = {
            name: client.schedule(topic, "v", headers={"n": "1"}, in_=DAY_MS, id=name)
            for name in ("cancelled", "early")
        }
        for number in range(COUNT):
            where, in_ms = never if number % 20 == 0 else topic, 500 + number * 20
            id = f"m-{number}" if number % 2 else None
            client.schedule_async(where, "v", headers={"n": "1"}, in_=in_ms, id=id)
        client.flush()
        for number in range(1, COUNT, 6):
            client.cancel(f"m-{number}", wait=False)
        assert client.cancel("cancelled").verdict == "cancelled"

        # All is well: one by one things come out, are cancelled or die.
        requests = len(far) + COUNT
        wait_for(
            lambda: follower.metric("delayd_audit_requests_total") == requests, "read", START_S
        )
        wait_for(lambda: follower.metric("delayd_audit_pending") == 1, "all over but one", START_S)
        assert follower.alarms() == Counter()

        now_ms = CLOCK.wall_ms()
        copied = read_until(cluster.bootstrap, topic, bool)[0]
        source = copied.header("delayd-source")
        unknown = [(name, content) for name, content in copied.headers if name != "delayd-source"]
        forge(cluster, topic, copied)
        forge(cluster, topic, copied, headers=[*unknown, ("delayd-source", b"0/999999")])
        for name, at in far.items():
            key = name.encode()
            headers = as_delivered(at, name, now_ms)
            partition = partition_of(key, 4)
            forge(cluster, topic, copied, key=key, headers=headers, partition=partition)
        expected: Alarms = Counter(
            {
                ("duplicate", source): 1,
                ("unknown", "0/999999"): 1,
                ("ghost", far["cancelled"].source): 1,
                ("early", far["early"].source): 1,
            }
        )
        follower.wait_for_alarms(expected)
        follower.kill()

        node.kill()
        lost = client.schedule(topic, "v", headers={"n": "1"}, in_=10)
        altered = client.schedule(topic, "v", headers={"n": "1"}, in_=10)
        wait_for(lambda: CLOCK.wall_ms() > altered.due_ms + 5, "a delivery would not be early")
        headers = as_delivered(altered, None, altered.due_ms + 5)
        forge(cluster, topic, copied, key=None, value=b"w", headers=headers)
        cover_everything(cluster)
        wait_for(lambda: not follower.left(), "its processes end when it was killed")
        follower.start()
        expected += Counter({("altered", altered.source): 1, ("lost", lost.source): 1})
        follower.wait_for_alarms(expected, START_S)

        assert follower.stop() == 1
        assert follower.alarms() == expected
        assert follower.left() == []
