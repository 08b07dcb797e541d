"""The audit as a user runs it: a real cluster, real nodes, the real command."""

import json
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka import Producer
from nodes import CLOCK, CLUSTER_KEY, NodeProcess, delayd, master_of, node_group, wait_for

from chaos.plain_check import Row, agree, plain_check, read_all
from delayd.client import Client
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

COUNT = 3_000
CANCELLED = 300
SPREAD_MS = 20_000
DAY_MS = 86_400_000
AUDIT_TIMEOUT_S = 600


def audit(cluster: TestCluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `delayd audit --json`."""
    ended = delayd(
        *("audit", "--json", "--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd),
        *("--cluster", cluster.name, "--prefix", f"{cluster.name}-"),
        *("--cluster-key", CLUSTER_KEY, "--nodes", "3"),
        *arguments,
        timeout_s=AUDIT_TIMEOUT_S,
    )
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def due_ms(number: int, first_ms: int) -> int:
    return first_ms + (number * SPREAD_MS // COUNT if number % 3 else 2 * DAY_MS + number)


def schedule(client: Client, target: str, first_ms: int) -> int:
    """Messages over the next seconds, and a third of them in days; half of them with an id, and
    some are cancelled. Returns when all were written, before the cancels."""
    futures = [
        client.schedule_async(
            target,
            b"value %d" % number,
            at=due_ms(number, first_ms),
            id=f"id-{number}" if number % 2 else None,
            key=b"key-%d" % number,
            headers=[("trace", b"%d" % number), ("empty", b"")],
        )
        for number in range(COUNT)
    ]
    for future in futures:
        future.result(60)
    written_ms = CLOCK.wall_ms()
    for number in range(CANCELLED):
        client.cancel(f"id-{2 * number + 1}", wait=False)
    return written_ms


def is_at_rest(nodes: list[NodeProcess], last_due_ms: int) -> bool:
    """Is all that is due delivered, and is it known to all nodes?"""
    said = [node.status() for node in nodes]
    return all(
        s.get("ready")
        and s["frontier"]["cursor_ms"] > last_due_ms
        and s["frontier"]["offsets"] == s["ingested"] == said[0]["ingested"]
        for s in said
    )


def forge(cluster: TestCluster, target: str, row: Row, source: str) -> None:
    """Write a delivered record once more, under this source."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    told = {**row.told, "source": source}
    headers: list[tuple[str, str | bytes | None]] = [
        *row.own,
        *((f"delayd-{name}", content.encode()) for name, content in told.items()),
    ]
    producer.produce(target, row.value, row.key, row.partition, headers=headers)
    assert producer.flush(30) == 0


def test_a_cluster_at_work_is_well_and_each_thing_that_is_wrong_is_named(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path)
    target = cluster.target("orders")
    with node_group([cluster.node(n, export_hold_s=900) for n in range(3)]) as nodes:
        for node in nodes:
            node.start()
        master = master_of(nodes)
        first_ms = CLOCK.wall_ms() + 1_000
        with cluster.client() as client:
            written_ms = schedule(client, target, first_ms)
        page = tmp_path / "report.html"
        code, report = audit(cluster, "--html", str(page), "--at", str(written_ms))

        assert (code, report["verdict"], report["found"]) == (0, "ok", {}), report
        assert report["accepted"] == COUNT
        assert report["cancelled"] == CANCELLED or report["marks"]["too-late"] > 0
        assert report["pending"] >= COUNT // 3 - CANCELLED
        assert sorted(node["node"] for node in report["nodes"]) == ["n0", "n1", "n2"]
        assert all(node["problem"] is None for node in report["nodes"])
        later = sum(due_ms(number, first_ms) > written_ms for number in range(COUNT))
        assert later - CANCELLED <= report["travel"]["pending"] <= COUNT
        assert "ok" in page.read_text(encoding="utf-8")

        wait_for(lambda: is_at_rest(nodes, first_ms + SPREAD_MS), 60, "all is delivered")
        [killed, *_] = [node for node in nodes if node is not master]
        killed.kill()
        row = read_all(cluster.bootstrap, [target])[0]
        forge(cluster, target, row, row.told["source"])
        forge(cluster, target, row, "0/999999")
        code, report = audit(cluster)

    assert code == 1
    assert report["found"] == {"duplicate": 1, "unknown": 1, "replica-absent": 1}, report
    [duplicate] = [found for found in report["examples"] if found["fault"] == "duplicate"]
    assert duplicate["source"] == row.told["source"]
    agree(report, plain_check(cluster.bootstrap, f"{cluster.name}-", report["cut"]["offset"]))
