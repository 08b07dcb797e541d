"""Masters die and freeze under a load of everything at once; each request has one true outcome.

Messages with and without ids, cancels and replaces around the due time, a target that comes into
being while its messages are retried and one that never does, bad requests, users' transactions of
which some are aborted (chaos/workload.py). It is judged from the topics alone, read through another
driver (chaos/judge.py). Source: docs/design/frontier.md, "Takeover", "Verdicts" and "Targets".
"""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from loads import evidence_of, findings_once_over, playing
from nodes import CLOCK, HANGS_S, NodeProcess, master_of, node_group, wait_for

from chaos.workload import Scene, mixture
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

DRIVERS = ("confluent", "kafka-python")
SEED = 4
REQUESTS = 4_000
SPREAD_MS = 16_000
LEAD_MS = 3_500
RETRY_DELAYS_MS = (2_000, 3_000, 5_000)
LATE_SHARE = (0.2, 0.5)
LATE_AT = 0.55
"""When the late target is created: its first messages are in their last retry by then."""

OUTCOMES_TIMEOUT_S = 60

assert (LATE_AT - LATE_SHARE[0]) * SPREAD_MS < sum(RETRY_DELAYS_MS) - 4_000


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster under load."""

    nodes: list[NodeProcess]
    cluster: TestCluster
    scene: Scene

    def wait(self, share: float) -> None:
        """Wait until that share of the due times is over."""
        at_ms = self.scene.first_due_ms + int(self.scene.spread_ms * share)
        wait_for(lambda: CLOCK.wall_ms() >= at_ms, 120, "time passes")

    def create_late_target(self) -> None:
        """From now on the retries succeed."""
        self.wait(LATE_AT)
        self.cluster.create_topic(self.scene.late, 2, {"message.timestamp.type": "LogAppendTime"})


@contextmanager
def under_load(
    kafka_and_etcd: LocalCluster, folder: Path, node_count: int, driver: str
) -> Iterator[Stage]:
    """Nodes with a driver under the load; at the end everything must have had its outcome."""
    cluster = make_cluster(kafka_and_etcd, folder, retry_delays_ms=RETRY_DELAYS_MS)
    by_append_time = {"message.timestamp.type": "LogAppendTime"}
    targets = tuple(cluster.target(name, config=by_append_time) for name in "ab")
    late, never = (f"target.{cluster.name}.{name}" for name in ("late", "never"))
    nodes = [cluster.node(number, driver=driver) for number in range(node_count)]
    with (
        node_group(nodes),
        closing(evidence_of(cluster, (*targets, late, never))) as evidence,
    ):
        for node in nodes:
            node.start()
        master_of(nodes)
        run, first_ms = f"r{CLOCK.wall_ms()}", CLOCK.wall_ms() + LEAD_MS
        scene = Scene(run, targets, late, never, first_ms, SPREAD_MS, LATE_SHARE)
        with playing(cluster, mixture(scene, count=REQUESTS, seed=SEED)):
            yield Stage(nodes, cluster, scene)
        findings = findings_once_over(cluster, evidence, targets[0], OUTCOMES_TIMEOUT_S)
        assert findings.ok, findings
        check_variety(findings.outcomes)
        asked = [r for r in evidence.requests if r.header("delayd-continues") is None]
        for_late = [r for r in asked if r.header("delayd-topic") == late]
        assert len(for_late) == len(evidence.of(late)), "all were retried until it was there"
        wait_for(lambda: have_the_whole_buffer(nodes), HANGS_S, "every node has the whole buffer")


def have_the_whole_buffer(nodes: list[NodeProcess]) -> bool:
    """Are all ready, and is what they have ingested the same?"""
    said = [node.status() for node in nodes]
    return all(s.get("ready") and s["ingested"] == said[0]["ingested"] for s in said)


def check_variety(outcomes: Counter[str]) -> None:
    """The load was what it claims to be."""
    for outcome in (
        *("cancel: cancelled", "cancel: too-late", "cancel: not-found"),
        *("replace: replaced", "replace: too-late"),
        *("message: delivered", "message: delivered after retries", "message: killed"),
        *("message: dead after retries", "message: killed after retries"),
        *("message: duplicate", "message: conflict", "bad: rejected"),
    ):
        assert outcomes[outcome], f"nothing was {outcome}: {outcomes}"


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_master_killed_twice_under_a_mixed_load_gives_each_request_one_outcome(
    kafka_and_etcd: LocalCluster, tmp_path: Path, driver: str
) -> None:
    with under_load(kafka_and_etcd, tmp_path, 3, driver) as stage:
        for share in (0.25, 0.6):
            if share > LATE_AT:
                stage.create_late_target()
            stage.wait(share)
            killed = master_of(stage.nodes)
            killed.kill()
            successor = master_of([node for node in stage.nodes if node is not killed])
            assert successor is not killed
            killed.start()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_master_frozen_past_its_lease_changes_no_outcome_when_it_wakes(
    kafka_and_etcd: LocalCluster, tmp_path: Path, driver: str
) -> None:
    with under_load(kafka_and_etcd, tmp_path, 2, driver) as stage:
        stage.wait(0.25)
        frozen = master_of(stage.nodes)
        frozen.signal(signal.SIGSTOP)
        [other] = [node for node in stage.nodes if node is not frozen]
        assert master_of([other]) is other
        term = other.status()["term"]
        frozen.signal(signal.SIGCONT)
        wait_for(
            lambda: frozen.status().get("role") == "follower", HANGS_S, "the woken one follows"
        )
        stage.create_late_target()
        stage.wait(1.0)
        assert other.status()["term"] == frozen.status()["term"] == term
