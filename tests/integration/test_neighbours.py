"""A target that is missing costs its neighbours nothing but time, and loses nothing itself.

How much time, `delayd bench neighbours` measures. Source: docs/design/frontier.md, "Targets".
"""

from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest
from clusters import BY_APPEND_TIME, make_cluster, schedule
from loads import evidence_of, findings_once_over
from nodes import CLOCK, HANGS_S, master_of, running, wait_for

from chaos.evidence import Evidence
from delayd.dev.batch import Batch
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

COUNT = 3_000
RATE = 1_000
LEAD_MS = 3_000
RETRY_DELAYS_MS = (3_000,) * 20
"""Nothing is given up while the neighbours are waited for."""


def test_a_missing_topic_holds_nobody_up_and_gets_everything_once_it_is_there(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path, retry_delays_ms=RETRY_DELAYS_MS)
    nodes = [cluster.node(number) for number in range(2)]
    healthy = tuple(cluster.target(name, config=BY_APPEND_TIME) for name in "abc")
    missing = f"target.{cluster.name}.missing"
    with running(nodes), closing(evidence_of(cluster, (*healthy, missing))) as evidence:
        begin_ms, spread_ms = CLOCK.wall_ms() + LEAD_MS, COUNT * 1_000 // RATE
        with cluster.client() as client:
            schedule(client, Batch("a", (missing,), COUNT // 10, begin_ms, spread_ms))
            schedule(client, Batch("b", healthy, COUNT * 9 // 10, begin_ms, spread_ms))

        def neighbours_have_arrived() -> bool:
            evidence.read()
            return sum(len(evidence.of(topic)) for topic in healthy) >= COUNT * 9 // 10

        wait_for(neighbours_have_arrived, "the neighbours arrive meanwhile")
        [failing] = master_of(nodes).status()["failing_targets"]
        assert failing["topic"] == missing and "exist" in failing["problem"]
        cluster.create_topic(missing, 2, BY_APPEND_TIME)
        findings = findings_once_over(cluster, evidence, healthy[0], HANGS_S)
    assert findings.ok, findings
    assert len(evidence.of(missing)) == COUNT // 10
    assert findings.outcomes["message: delivered after retries"] == COUNT // 10
    for topic in healthy:
        check_order(evidence, topic)


def check_order(evidence: Evidence, topic: str) -> None:
    """All was scheduled in time, so each partition of the target is in rank order."""
    ranks: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    for record in evidence.of(topic):
        if record.value != b"fence":
            source = (record.header("delayd-source") or "").split("/")
            rank = (int(record.header("delayd-due") or ""), *map(int, source))
            ranks[record.partition].append(rank)
    assert len(ranks) > 1 and all(found == sorted(found) for found in ranks.values())
