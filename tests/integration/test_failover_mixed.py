"""Masters die and freeze under a load of everything at once; each request has one true outcome.

These nodes have no librdkafka; those that have it die and freeze under such a load in
test_chaos_runs.py. What the load holds and how it is judged: mixed_load.py. Source:
docs/design/frontier.md, "Takeover", "Verdicts" and "Targets".
"""

import signal
from pathlib import Path

import pytest
from clusters import make_cluster
from mixed_load import RETRY_DELAYS_MS, under_load
from nodes import master_of, wait_for

from delayd.dev.cluster import LocalCluster

pytestmark = [pytest.mark.real, pytest.mark.rehearsal]

DRIVER = "kafka-python"


def test_a_master_killed_twice_under_a_mixed_load_gives_each_request_one_outcome(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path, retry_delays_ms=RETRY_DELAYS_MS)
    nodes = [cluster.node(number, driver=DRIVER) for number in range(3)]
    with under_load(cluster, nodes) as stage:
        for share in (0.25, 0.6):
            stage.wait(share)
            killed = master_of(stage.nodes)
            killed.kill()
            successor = master_of([node for node in stage.nodes if node is not killed])
            assert successor is not killed
            killed.start()


def test_a_master_frozen_past_its_lease_changes_no_outcome_when_it_wakes(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path, retry_delays_ms=RETRY_DELAYS_MS)
    nodes = [cluster.node(number, driver=DRIVER) for number in range(2)]
    with under_load(cluster, nodes) as stage:
        stage.wait(0.25)
        frozen = master_of(stage.nodes)
        frozen.signal(signal.SIGSTOP)
        [other] = [node for node in stage.nodes if node is not frozen]
        assert master_of([other]) is other
        term = other.status()["term"]
        frozen.signal(signal.SIGCONT)
        wait_for(lambda: frozen.status().get("role") == "follower", "the woken one follows")
        stage.wait(1.0)
        assert other.status()["term"] == frozen.status()["term"] == term
