"""A limit of a cluster with several shards, on real Kafka: each master counts the whole topic.

By receipts and by the audit: a sender who waits for each answer, in partitions of both shards, is
refused within the overshoot that is documented; so it is when the master of a shard was killed, and
when the cluster has got more shards, and fewer; what was cancelled makes room everywhere.
Source: docs/design/quotas.md, "Shards".
"""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from nodes import HANGS_S, master_of, running, wait_for
from test_audit import audit
from test_pauses_on_kafka import command
from test_quotas_on_kafka import ask, listed
from test_shards_set import set_shards, wait_led

from delayd.bus.murmur2 import partition_of
from delayd.client import Client
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

PARTITIONS, SHARDS, LIMIT, FREE = 4, 2, 20, 2
OVERSHOOT = 4
"""What a sender who waits may get through: a message of each other shard while its master has not
read what filled the topic, and some more where it reads late."""


def ids_of(partition: int, name: str) -> list[str]:
    """Return some ids whose requests stand in this partition."""
    found = []
    for number in count():
        id = f"{name}-{number}"
        if partition_of(id.encode(), PARTITIONS) == partition:
            found.append(id)
        if len(found) == 3 * LIMIT:
            return found
    raise AssertionError("there is no end of numbers")


def fill(client: Client, target: str) -> list[str]:
    """Schedule from partition to partition, until all refuse; return the ids that were taken."""
    taken: list[str] = []
    of_partitions = [ids_of(partition, "id") for partition in range(PARTITIONS)]
    refused: set[int] = set()
    for number in range(3 * LIMIT):
        for partition, ids in enumerate(of_partitions):
            verdict = ask(client, target, ids[number])
            if verdict == "scheduled":
                taken.append(ids[number])
            else:
                assert verdict == "over-quota"
                refused.add(partition)
        if len(refused) == PARTITIONS:
            return taken
    raise AssertionError("it is full at some time")


def check_refused(client: Client, target: str, name: str) -> None:
    """Check that each partition refuses what is sent now."""
    verdicts = [ask(client, target, ids_of(p, name)[0]) for p in range(PARTITIONS)]
    assert verdicts == ["over-quota"] * PARTITIONS, name


def cancel(client: Client, ids: Sequence[str]) -> None:
    told = [client.cancel(id, timeout_ms=int(HANGS_S * 1_000)).verdict for id in ids]
    assert told == ["cancelled"] * len(ids)


def test_one_limit_is_kept_by_the_masters_of_all_shards(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """Rules: quota-shards, quota-full, quota-opened, quota-in-frontier, resharded"""
    cluster: TestCluster = make_cluster(kafka_and_etcd, tmp_path, PARTITIONS, shards=SHARDS)
    target = cluster.target("small", partitions=1)
    nodes = [cluster.node(number) for number in range(2)]
    with running(nodes), cluster.client() as client:
        told = command(cluster, "limits", "set", target, "--max-pending", str(LIMIT))
        assert (told["state"], told["max_pending"]) == ("open", LIMIT)
        taken = fill(client, target)
        print(f"{len(taken)} taken of {LIMIT}")
        assert LIMIT <= len(taken) <= LIMIT + OVERSHOOT
        check_refused(client, target, "full")

        killed = master_of(nodes)
        killed.kill()
        wait_led(cluster, SHARDS)
        check_refused(client, target, "killed")
        assert listed(cluster)["state"] == "full"
        killed.start().wait_ready()

        for shards in (4, 2):
            assert set_shards(cluster, shards) == shards
            wait_led(cluster, shards)
            check_refused(client, target, f"of-{shards}")
            wait_for(lambda: listed(cluster)["state"] == "full", "the new masters know it")

        gone = taken[: len(taken) - LIMIT + FREE]
        cancel(client, gone)
        wait_for(lambda: listed(cluster)["state"] != "full", "there is room in all shards")
        after = ids_of(3, "after")[0]
        assert ask(client, target, after) == "scheduled"
        cancel(client, [*taken[len(gone) :], after])
        assert command(cluster, "limits", "clear", target)["state"] == "unlimited"
        code, report = audit(cluster, "--nodes", "2")
        assert (code, report["found"]) == (0, {}), report["examples"]
        assert report["cancelled"] == len(taken) + 1
