"""The audit of a real cluster and real nodes, by its command."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import standing_spark
from clusters import TestCluster
from confluent_kafka import Producer
from nodes import CLOCK, CLUSTER_KEY, HANGS_S, NodeProcess, master_of, node_group, wait_for

from chaos.cross_check import WRONG, cross_check, cut_of
from chaos.evidence import read_all
from chaos.records import Logged
from delayd.client import Client

pytestmark = pytest.mark.real

COUNT = 3_000
CANCELLED = 300
SPREAD_MS = 20_000
DAY_MS = 86_400_000


def audit(cluster: TestCluster, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `delayd audit --json`."""
    ended = standing_spark.audit(
        *("--json", "--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd),
        *("--cluster", cluster.name, "--prefix", f"{cluster.name}-"),
        *("--cluster-key", CLUSTER_KEY, "--nodes", "3"),
        *arguments,
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
        future.result(HANGS_S)
    written_ms = CLOCK.wall_ms()
    for number in range(CANCELLED):
        client.cancel(f"id-{2 * number + 1}", wait=False)
    return written_ms


def has_passed(master: NodeProcess, requests: Iterable[Logged]) -> bool:
    """Does the frontier cover these records of the buffer?"""
    covered: list[int] = master.status().get("frontier", {}).get("offsets") or []
    return bool(covered) and all(r.offset < covered[r.partition] for r in requests)


def forge(cluster: TestCluster, target: str, row: Logged, source: str) -> None:
    """Write a delivered record once more, under this source."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    told = {**row.fields, "source": source}
    headers: list[tuple[str, str | bytes | None]] = [
        *row.own,
        *((f"delayd-{name}", content.encode()) for name, content in told.items()),
    ]
    producer.produce(target, row.value, row.key, row.partition, headers=headers)
    assert producer.flush(HANGS_S) == 0


def test_of_a_cluster_at_work_each_thing_that_is_wrong_is_named_and_nothing_else(
    cluster: TestCluster, tmp_path: Path
) -> None:
    target = cluster.target("orders")
    with node_group([cluster.node(n, export_hold_s=900) for n in range(3)]) as nodes:
        for node in nodes:
            node.start()
        master = master_of(nodes)
        first_ms = CLOCK.wall_ms() + 1_000
        with cluster.client() as client:
            written_ms = schedule(client, target, first_ms)
        requests = read_all(cluster.bootstrap, [cluster.buffer])
        wait_for(lambda: has_passed(master, requests), "the master has read every cancel")
        [killed, *_] = [node for node in nodes if node is not master]
        killed.kill()
        wait_for(lambda: bool(read_all(cluster.bootstrap, [target])), "the first delivery")
        row = read_all(cluster.bootstrap, [target])[0]
        forge(cluster, target, row, row.fields["source"])
        forge(cluster, target, row, "0/999999")
        page = tmp_path / "report.html"
        code, report = audit(cluster, "--html", str(page), "--at", str(written_ms))

    assert code == 1
    assert report["found"] == {"duplicate": 1, "unknown": 1, "replica-absent": 1}, report
    [duplicate] = [found for found in report["examples"] if found["fault"] == "duplicate"]
    assert duplicate["source"] == row.fields["source"]
    assert report["accepted"] == COUNT
    assert report["cancelled"] == CANCELLED or report["marks"]["too-late"] > 0
    assert report["pending"] >= COUNT // 3 - CANCELLED
    problems = {node["node"]: node["problem"] for node in report["nodes"]}
    absent = problems.pop(killed.name, None) or problems.pop("?", None)  # its key ends some day
    assert absent
    assert problems == dict.fromkeys({"n0", "n1", "n2"} - {killed.name})
    later = sum(due_ms(number, first_ms) > written_ms for number in range(COUNT))
    assert later - CANCELLED <= report["travel"]["pending"] <= COUNT
    assert "Verdict: failed" in page.read_text(encoding="utf-8")
    # What is delivered in between is pending for one of the two: the rest must agree.
    counts = cross_check(cluster.bootstrap, f"{cluster.name}-", cut_of(report))
    names = ("accepted", *WRONG)
    assert {name: report[name] for name in names} == {name: counts[name] for name in names}
