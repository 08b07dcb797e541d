"""The frontier topic is deleted while a cluster delivers; a command that is killed on the way finds
out what was delivered, and the nodes go on.

Source: docs/disaster-recovery.md, "A lost frontier".
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from clusters import BY_APPEND_TIME, TestCluster, make_cluster
from confluent_kafka.admin import AdminClient
from nodes import CLOCK, HANGS_S, NodeProcess, delayd, master_of, node_group, wait_for
from topics_read import Seen, read_until

from delayd.bus.confluent import ConfluentBus
from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode

pytestmark = pytest.mark.real

COUNT = 1_200
SPAN_MS = 24_000
"""Messages are due evenly in it; the nodes are killed within."""
TIMEOUT_MS = int(HANGS_S * 1000)
DAY_MS = 86_400_000
KILLED = """
import os, signal
from delayd.bus.confluent.producer import ConfluentProducer as Producer
Producer.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from delayd.commands.cli import main
main()
"""


def age(cluster: TestCluster, topic: str) -> None:
    """Let a target show a delivery from yesterday."""
    past = b"%d" % (CLOCK.wall_ms() - DAY_MS)
    with closing(ConfluentBus(cluster.bootstrap).idempotent_producer()) as producer:
        producer.send(
            topic,
            key=None,
            value=b"old",
            headers=[("delayd-due", past), ("delayd-fired", past), ("delayd-source", b"0/0")],
            partition=0,
        )
        producer.flush(TIMEOUT_MS)


def deleted(cluster: TestCluster, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics([topic])[topic].result(HANGS_S)
    with closing(ConfluentBus(cluster.bootstrap).cluster()) as kafka:
        wait_for(lambda: not kafka.survey([topic], TIMEOUT_MS).states, f"{topic} is gone")


def in_target(cluster: TestCluster, topic: str) -> int:
    """How far it goes."""
    with closing(ConfluentBus(cluster.bootstrap).cluster()) as kafka:
        return sum(kafka.end_offsets(topic, TIMEOUT_MS, committed=True).values())


def has_come(count: int, seen: list[Seen]) -> bool:
    """Are so many there?"""
    return len(seen) >= count


def recover(node: NodeProcess, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command; while etcd remembers a killed node, or its transaction is open, again."""
    arguments = ("recover", "frontier", "--config", str(node.config), *options)
    ran = delayd(*arguments)

    def is_over() -> bool:
        nonlocal ran
        plan = json.loads(ran.stdout) if "--json" in options and ran.stdout else {}
        if "etcd knows" not in ran.stderr and not plan.get("open_transactions"):
            return True
        ran = delayd(*arguments)
        return False

    wait_for(is_over, "etcd forgets the nodes, and Kafka their transaction")
    return ran


@pytest.mark.parametrize("shards", [1, 3])
def test_a_lost_frontier_costs_no_message_and_doubles_none(
    kafka_and_etcd: LocalCluster, tmp_path: Path, shards: int
) -> None:
    """With several shards, the command is killed before the commit of the first record."""
    cluster = make_cluster(kafka_and_etcd, tmp_path, 3, shards=shards)
    target = cluster.target("orders", 2, BY_APPEND_TIME)
    plain = cluster.target("plain", 1)
    for topic in (target, plain):
        age(cluster, topic)
    nodes = [cluster.node(0), cluster.node(1)]
    with node_group(nodes), cluster.client() as client:
        for node in nodes:
            node.start()
        master = master_of(nodes)
        start_ms = CLOCK.wall_ms() + 4_000
        told = [
            client.schedule_async(
                (target, plain)[n % 2],
                b"%d" % n,
                id=f"m-{n}" if n % 3 == 0 else None,
                at=start_ms + n * SPAN_MS // COUNT,
            )
            for n in range(COUNT)
        ]
        for each in told:
            each.result(HANGS_S)
        gone = range(COUNT // 2, COUNT, 6)
        for n in gone:
            client.cancel(f"m-{n}", wait=False)
        client.replace("m-1197", target, b"replaced", at=start_ms + SPAN_MS // 2, wait=False)
        wait_for(lambda: in_target(cluster, target) > COUNT // 10, "some are delivered")
        for node in nodes:
            node.kill()
    deleted(cluster, f"{cluster.name}-frontier")
    wheel = nodes[0] if nodes[1] is master else nodes[1]
    shown = recover(wheel, "--json")
    assert shown.returncode == ExitCode.FINE, shown.stdout + shown.stderr
    plan = json.loads(shown.stdout)
    assert plan["ok"] and plan["is_lost"] and plan["pending"] > 0 and plan["written"] is None
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, "recover", "frontier", "--config", str(wheel.config),
         "--yes"],
        env=os.environ, timeout=HANGS_S, check=False,
    )  # fmt: skip
    assert ran.returncode == -signal.SIGKILL, "it was killed before its commit"
    done = recover(wheel, "--yes", "--json")
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["written"] is not None and result["lost_shards"] == [*range(shards)]
    again = json.loads(recover(wheel, "--yes", "--json").stdout)
    assert not again["is_lost"] and again["written"] is None
    wanted = Counter(b"%d" % n for n in range(COUNT) if n not in gone and n != 1197)
    wanted[b"replaced"] = 1
    with node_group(nodes):
        for node in nodes:
            node.start()
        master_of(nodes)
        seen: list[Seen] = []
        counts = {target: COUNT // 2 - len(gone) + 2, plain: COUNT // 2}
        for topic, count in counts.items():
            seen += read_until(cluster.bootstrap, topic, partial(has_come, count))
    assert Counter(record.value for record in seen) == wanted + Counter({b"old": 2})
