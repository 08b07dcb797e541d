"""A target is paused by the command, and the master dies while messages for it wait.

By its own consumer (kafka-python): nothing arrives before the pause is over, then each message
once, in rank order, not faster than the rate; the neighbour in the same cluster is not put off;
what was cancelled while it waited never comes; and the audit agrees.
Source: docs/design/pauses.md.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, CLUSTER_KEY, HANGS_S, delayd_in_process, master_of, running, wait_for
from scraping import scrape
from test_audit import audit
from topics_read import read_until

from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode

pytestmark = pytest.mark.real

COUNT = 200
RATE = 50
LEAD_MS = 500
SPREAD_MS = 6_000
AHEAD_AND_BEHIND_MS = 1_250
"""What a topic may borrow of its rate: docs/design/frontier.md, "Smoothing"."""


def command(cluster: TestCluster, *arguments: str, code: int = ExitCode.FINE) -> Any:
    where = ("--bootstrap", cluster.bootstrap, "--cluster", cluster.name)
    named = ("--prefix", f"{cluster.name}-", "--cluster-key", CLUSTER_KEY, "--json")
    ended = delayd_in_process(*arguments, *where, *named)
    assert ended.returncode == code, ended.stderr
    return json.loads(ended.stdout) if ended.stdout else ended.stderr


def rank_of(source: str, due_ms: int) -> tuple[int, int, int]:
    partition, offset = map(int, source.split("/"))
    return due_ms, partition, offset


def test_a_pause_outlives_the_master_and_what_has_waited_comes_in_order_at_the_rate(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """Rules: pause-holds, pause-order, pause-rate, pause-in-frontier, pause-resumed"""
    cluster = make_cluster(kafka_and_etcd, tmp_path)
    target, neighbour = cluster.target("held", partitions=1), cluster.target("calm", partitions=1)
    nodes = [cluster.node(number) for number in range(3)]
    with running(nodes) as master, cluster.client() as client:
        assert "there is no topic" in command(cluster, "pause", "nowhere", "--for", "1h", code=1)
        hold = command(cluster, "pause", target, "--for", "1h", "--rate", str(RATE))
        assert (hold["state"], hold["rate"]) == ("paused", RATE)
        first_ms = CLOCK.wall_ms() + LEAD_MS
        dues_ms = [first_ms + number * SPREAD_MS // COUNT for number in range(COUNT)]
        sent = [
            client.schedule_async(target, b"%d" % number, at=due_ms, id=f"id-{number}")
            for number, due_ms in enumerate(dues_ms)
        ]
        others = [client.schedule_async(neighbour, b"v", at=due_ms) for due_ms in dues_ms[::10]]
        sources = [future.result(HANGS_S).source for future in sent]
        due_of = dict(zip(sources, dues_ms, strict=True))
        calm = read_until(cluster.bootstrap, neighbour, lambda seen: len(seen) >= len(others))
        assert len(calm) == len(others), "it is not put off"
        wait_for(
            lambda: (
                scrape(master.port).sum("delayd_step_messages_total", fate="held") >= COUNT // 2
            ),
            "messages wait",
        )
        master.kill()
        successor = master_of([node for node in nodes if node is not master])
        assert scrape(successor.port).sum("delayd_paused_seconds", topic=target) > 0
        [told] = [client.cancel(f"id-{number}") for number in (COUNT - 1,)]
        assert told is not None and told.verdict == "cancelled"
        wait_for(lambda: CLOCK.wall_ms() > dues_ms[-1] + 500, "all of them are due")
        assert read_until(cluster.bootstrap, target, lambda _: True, timeout_s=1) == []

        resumed_ms = CLOCK.wall_ms()
        hold = command(cluster, "resume", target)
        assert hold["state"] == "resuming"
        left = sorted(sources, key=lambda source: rank_of(source, due_of[source]))
        left.remove(sources[-1])
        seen = read_until(cluster.bootstrap, target, lambda seen: len(seen) >= len(left))
        assert [record.origin for record in seen] == left, "each once, in rank order"
        fired_ms = [int(record.header("delayd-fired")) for record in seen]
        assert fired_ms[0] >= resumed_ms - 500, "a clock may be behind"
        for first, from_ms in enumerate(fired_ms):
            for last in range(first, len(fired_ms)):
                most = RATE * (fired_ms[last] - from_ms + AHEAD_AND_BEHIND_MS) / 1_000
                assert last - first <= most, f"{last - first + 1} from {from_ms} on"
        wait_for(
            lambda: command(cluster, "resume", target)["state"] == "not-paused", "the hold is over"
        )
        master.start().wait_ready()
        code, report = audit(cluster)
        assert (code, report["found"]) == (0, {}), report["examples"]
        assert (report["delivered"], report["cancelled"]) == (len(left) + len(others), 1)
