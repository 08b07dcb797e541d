"""The pending messages of one cluster go into another one, by a command that is killed on the way.

Source: docs/guides/moving.md.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, HANGS_S, delayd, master_of, node_group, wait_for
from topics_read import Seen, read_until

from delayd.bus import Record
from delayd.bus.confluent import ConfluentBus
from delayd.bus.reading import read_between
from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode
from delayd.runtime.clock import SystemClock

pytestmark = pytest.mark.real

COUNT = 4_000
CANCELLED = 100
KILLS = 2
FAR_MS = 3_600_000
AHEAD_MS = 60_000
"""By then the old nodes are stopped."""
TIMEOUT_MS = int(HANGS_S * 1000)
SMALL_STEPS = """
import delayd.commands.move.moving as moving
moving.STEP_RECORDS = 10
from delayd.commands.cli import main
main()
"""


def in_topic(cluster: TestCluster, topic: str) -> int:
    """How far a topic goes; 0 if there is none."""
    with closing(ConfluentBus(cluster.bootstrap).cluster()) as kafka:
        if topic not in kafka.describe([topic], TIMEOUT_MS):
            return 0
        return sum(kafka.end_offsets(topic, TIMEOUT_MS, committed=False).values())


def requeued(cluster: TestCluster) -> Record | None:
    """The record in the buffer by which the master has requeued a message."""
    bus = ConfluentBus(cluster.bootstrap)
    with closing(bus.cluster()) as kafka:
        ends = kafka.end_offsets(cluster.buffer, TIMEOUT_MS, committed=True)
    runs = read_between(bus, cluster.buffer, dict.fromkeys(ends, 0), ends, SystemClock(),
                        records_max=10_000, timeout_ms=TIMEOUT_MS)  # fmt: skip
    found = [record for run in runs for record in run if "delayd-continues" in dict(record.headers)]
    return found[0] if found else None


def killed_move(new: TestCluster, arguments: list[str]) -> None:
    """Begin the command with small transactions, and kill it while it writes."""
    before = in_topic(new, new.buffer)
    process = subprocess.Popen(
        [sys.executable, "-c", SMALL_STEPS, "move", *arguments],
        stdout=subprocess.DEVNULL,
        env=os.environ,
    )
    try:
        wait_for(
            lambda: in_topic(new, new.buffer) > before + 200 or process.poll() is not None,
            "it writes",
        )
    finally:
        process.kill()
        process.wait(HANGS_S)
    assert process.returncode == -signal.SIGKILL, "it was killed before its end"


@pytest.mark.rehearsal
@pytest.mark.parametrize("shards", [1, 2])
def test_a_cluster_moves_each_message_once_though_the_command_is_killed(
    kafka_and_etcd: LocalCluster, tmp_path: Path, shards: int
) -> None:
    old = make_cluster(
        kafka_and_etcd, tmp_path / "old", 2, retry_delays_ms=(FAR_MS,), shards=shards
    )
    new = make_cluster(kafka_and_etcd, tmp_path / "new", 3, shards=1 if shards == 1 else 3)
    target = old.target("later")
    missing = f"target.{old.name}.missing"
    master, follower = old.node(0), old.node(1)
    with node_group([master, follower]), old.client() as client:
        master.start().wait_ready()
        wait_for(master.is_master, "the first node leads")
        follower.start().wait_ready()
        due_ms = CLOCK.wall_ms() + FAR_MS
        soon_ms = CLOCK.wall_ms() + AHEAD_MS
        told = [
            client.schedule_async(
                target,
                b"%d" % n,
                id=f"m-{n}" if n % 2 else None,
                at=due_ms if n < CANCELLED else soon_ms + n % 500,
            )
            for n in range(COUNT)
        ]
        told.append(client.schedule_async(missing, b"retried", at=0, id="retried"))
        for each in told:
            each.result(HANGS_S)
        for n in range(1, CANCELLED, 2):
            client.cancel(f"m-{n}", wait=False)
        sent = COUNT + 1 + CANCELLED // 2
        wait_for(lambda: requeued(old) is not None, "the message without a target is requeued")
        last = requeued(old)
        assert last is not None
        wait_for(
            lambda: (
                follower.status().get("ingested_count", 0) > sent
                and follower.status()["ingested"][last.partition] > last.offset
            ),
            "all is ingested",
        )
        follower.signal(signal.SIGTERM)
        assert follower.wait_exit() == 0
        arguments = [str(follower.data), "--bootstrap", new.bootstrap, "--cluster", new.name,
                     "--prefix", f"{new.name}-", "--frontier-from", old.bootstrap]  # fmt: skip
        dry = json.loads(delayd("move", *arguments, "--dry-run", "--json").stdout)
        pending = COUNT - CANCELLED // 2 + 1
        assert dry["pending"] == pending and dry["ok"], dry
        assert in_topic(new, new.buffer) == in_topic(new, f"{new.name}-moved") == 0
        # The master must not be able to deliver once the move has begun.
        master.signal(signal.SIGSTOP)
        assert old.target("missing") == missing
        for _ in range(KILLS):
            killed_move(new, [*arguments, "--yes"])
        with node_group([new.node(2)]) as [node]:
            node.start()
            master_of([node])
            moved = delayd("move", *arguments, "--yes", "--json", "--timeout-s", str(HANGS_S))
            assert moved.returncode == ExitCode.FINE, moved.stdout + moved.stderr
            result = json.loads(moved.stdout)
            assert result["written"] == result["accepted"] == result["pending"] == pending
            assert 0 < result["written_now"] < pending, "earlier runs have written some"
            # The frozen master wakes up, ends, and is started by mistake.
            master.signal(signal.SIGCONT)
            assert master.wait_exit() != 0
            assert master.start().wait_exit() != 0
            assert "was moved" in master.log, master.log[-2000:]
            due = COUNT - CANCELLED
            seen = read_until(new.bootstrap, target, lambda found: len(found) >= due)
            check_delivered(seen)
            with new.client() as others:
                assert others.cancel("m-1", timeout_ms=TIMEOUT_MS).verdict == "not-found"
            [retried] = read_until(new.bootstrap, missing, lambda found: len(found) >= 1)
            assert (retried.value, retried.header("delayd-id")) == (b"retried", "retried")


def check_delivered(seen: list[Seen]) -> None:
    """Each once, with its id and its due time, and not before that."""
    values = Counter(record.value for record in seen)
    assert values == Counter(b"%d" % n for n in range(CANCELLED, COUNT))
    for record in seen:
        number = int(record.value or b"")
        ids = [content for name, content in record.headers if name == "delayd-id"]
        assert ids == ([b"m-%d" % number] if number % 2 else [])
        assert int(record.header("delayd-due")) <= int(record.header("delayd-fired"))
        assert not any(name == "delayd-origin" for name, _ in record.headers)
