"""A cluster without transactions on the real Kafka and the real etcd: the master is killed.

Nothing may be lost, and doubled only what was delivered after the last progress that etcd took.
Source: docs/design/frontier.md, "At least once"; docs/guarantees.md, "At least once".
"""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from clusters import BY_APPEND_TIME, make_cluster, schedule
from nodes import CLOCK, delayd, master_of, node_group, wait_for, wait_until_wall
from topics_read import all_of

from delayd.bus import Record
from delayd.dev.batch import Batch
from delayd.dev.cluster import LocalCluster
from replication.rank import Rank, lane_of
from replication.record import decode
from replication.settings import AT_LEAST_ONCE, LANES

pytestmark = pytest.mark.real

COUNT = 6_000
SPREAD_MS = 4_000


def test_a_killed_master_loses_nothing_and_doubles_only_its_last_step(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path, guarantee=AT_LEAST_ONCE)
    nodes = [
        cluster.node(0, guarantee=AT_LEAST_ONCE),
        cluster.node(1, driver="kafka-python"),
    ]
    target = cluster.target("a", config=BY_APPEND_TIME)
    with node_group(nodes), cluster.client() as client:
        nodes[0].start()
        assert master_of(nodes) is nodes[0]
        nodes[1].start().wait_ready()
        batch = Batch("once", (target,), COUNT, CLOCK.wall_ms() + 2_000, SPREAD_MS)
        schedule(client, batch)
        wait_until_wall(batch.first_due_ms + SPREAD_MS // 3)
        nodes[0].kill()
        assert master_of([nodes[1]]) is nodes[1]
        wait_until_wall(batch.first_due_ms + SPREAD_MS)
        wait_for(
            lambda: len({source(r) for r in all_of(cluster.bootstrap, target, 4)}) == COUNT,
            "all messages have come",
        )
    frontiers = [
        decode(record.value or b"")
        for record in all_of(cluster.bootstrap, f"{cluster.name}-frontier", 1)
    ]
    assert all(a.precedes(b) for a, b in pairwise(record.frontier for record in frontiers))
    began = next(record for record in frontiers if record.frontier.term == 2)
    arrivals = all_of(cluster.bootstrap, target, 4)
    early = [r for r in arrivals if r.append_ms < int(dict(r.headers)["delayd-due"] or 0)]
    assert early == []
    times = Counter(source(record) for record in arrivals)
    assert max(times.values()) <= 2
    for record in arrivals:
        if times[source(record)] == 2:
            # What the last progress covered when the second master began is never doubled.
            partition, offset = map(int, source(record).split("/"))
            rank = Rank(int(dict(record.headers)["delayd-due"] or 0), partition, offset)
            assert not began.frontier.covers(lane_of(target, LANES), rank)
    refused = delayd(
        *("audit", "--bootstrap", cluster.bootstrap, "--cluster", cluster.name),
        *("--prefix", f"{cluster.name}-", "--json"),
    )
    assert refused.returncode != 0 and "at-least-once" in refused.stdout + refused.stderr
    print(json.dumps({"doubled": sum(n - 1 for n in times.values()), "steps": len(frontiers)}))


def source(record: Record) -> str:
    """Of a delivered record."""
    return (dict(record.headers)["delayd-source"] or b"").decode()
