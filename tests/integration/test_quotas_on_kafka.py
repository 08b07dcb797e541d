"""What is pending for a target is limited by the command, and the master dies while it is full.

By receipts, by a consumer of its own (kafka-python) and by the audit: a sender who waits for each
answer is refused exactly, before and after the failover; what was cancelled makes room; a
neighbour is taken all the time; and what was refused never comes.
Source: docs/design/quotas.md.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, HANGS_S, delayd_in_process, master_of, running, wait_for
from scraping import scrape
from test_audit import audit
from test_pauses_on_kafka import command
from topics_read import read_until

from delayd.client import Client
from delayd.dev.cluster import LocalCluster
from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE

pytestmark = pytest.mark.real

LIMIT = 20
FREE = 2
"""A tenth of it: then the topic is open again."""
HOUR_MS = 3_600_000
HANGS_MS = int(HANGS_S * 1_000)


def ask(client: Client, topic: str, name: str) -> str:
    """Schedule a message, due much later, and return what became of it."""
    at_ms = CLOCK.wall_ms() + HOUR_MS
    return client.schedule(
        topic, name.encode(), at=at_ms, id=name, wait=True, timeout_ms=HANGS_MS
    ).verdict


def check_forecast(client: Client, topic: str) -> None:
    """Check that receipts count the messages of their second: the last of three knows of all."""
    at_ms = (CLOCK.wall_ms() + HOUR_MS) // 1_000 * 1_000
    told = [
        client.schedule(topic, b"crowd", at=at_ms + n, wait=True, timeout_ms=HANGS_MS)
        for n in range(3)
    ]
    assert [(each.forecast_messages, each.forecast_span_ms) for each in told] == [
        (n, 1_000) for n in (1, 2, 3)
    ]


def refused_by_rate(client: Client, topic: str) -> bool:
    """Send more than ten seconds' worth at once; return whether the next request is refused."""
    at_ms = CLOCK.wall_ms() + HOUR_MS
    for _ in range(30):
        client.schedule(topic, b"one of many", at=at_ms)
    told = client.schedule(topic, b"late", at=at_ms, id="late", wait=True, timeout_ms=HANGS_MS)
    return told.verdict == "over-quota" and "1 requests a second" in (told.detail or "")


def listed(cluster: TestCluster) -> Any:
    """Return what the only limit of the cluster is."""
    where = ("--bootstrap", cluster.bootstrap, "--cluster", cluster.name)
    ended = delayd_in_process("limits", "list", *where, "--prefix", f"{cluster.name}-", "--json")
    assert ended.returncode == 0, ended.stderr
    [limit] = json.loads(ended.stdout)
    return limit


@pytest.mark.parametrize(
    "guarantee", [EXACTLY_ONCE, pytest.param(AT_LEAST_ONCE, marks=pytest.mark.rehearsal)]
)
def test_a_limit_is_kept_through_the_death_of_the_master(
    kafka_and_etcd: LocalCluster, tmp_path: Path, guarantee: str
) -> None:
    """Rules: quota-full, quota-opened, quota-refused, quota-in-frontier, quota-rate"""
    cluster = make_cluster(kafka_and_etcd, tmp_path, guarantee=guarantee)
    target, neighbour = cluster.target("small", partitions=1), cluster.target("calm", partitions=1)
    nodes = [cluster.node(number, guarantee=guarantee) for number in range(3)]
    with running(nodes) as master, cluster.client() as client:
        assert [ask(client, target, f"before-{n}") for n in range(3)] == ["scheduled"] * 3
        told = command(cluster, "limits", "set", target, "--max-pending", str(LIMIT))
        assert (told["state"], told["max_pending"]) == ("open", LIMIT)
        taken = [f"before-{n}" for n in range(3)]
        while (verdict := ask(client, target, f"id-{len(taken)}")) == "scheduled":
            taken.append(f"id-{len(taken)}")
            assert len(taken) <= 2 * LIMIT, "it is full at some time"
        assert verdict == "over-quota"
        if guarantee == EXACTLY_ONCE:
            assert len(taken) == LIMIT, "who waits for each answer is refused exactly"
        assert ask(client, neighbour, "other-1") == "scheduled"
        check_forecast(client, cluster.target("crowded", partitions=1))

        master.kill()
        successor = master_of([node for node in nodes if node is not master])
        assert ask(client, target, "refused-1") == "over-quota"
        assert ask(client, neighbour, "other-2") == "scheduled"
        assert (listed(cluster)["topic"], listed(cluster)["state"]) == (target, "full")
        assert scrape(successor.port).sum("delayd_quota_full", topic=target) == 1

        gone = taken[: len(taken) - LIMIT + FREE]
        assert [client.cancel(name).verdict for name in gone] == ["cancelled"] * len(gone)
        wait_for(lambda: listed(cluster)["state"] != "full", "there is room")
        assert ask(client, target, "after") == "scheduled"
        left = [*taken[len(gone) :], "after"]
        assert [client.fire(name).verdict for name in left] == ["rescheduled"] * len(left)
        seen = read_until(cluster.bootstrap, target, lambda seen: len(seen) >= len(left))
        assert sorted((record.value or b"").decode() for record in seen) == sorted(left)
        assert command(cluster, "limits", "clear", target)["state"] == "unlimited"
        assert command(cluster, "limits", "set", neighbour, "--rate", "1/s")["rate"] == 1
        wait_for(lambda: refused_by_rate(client, neighbour), "too many requests came")
        if guarantee == AT_LEAST_ONCE:
            return  # No audit proves that nothing was doubled.
        master.start().wait_ready()
        code, report = audit(cluster)
        assert (code, report["found"]) == (0, {}), report["examples"]
        assert (report["delivered"], report["cancelled"]) == (len(left), len(gone))
