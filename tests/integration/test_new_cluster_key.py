"""A cluster key is replaced on real nodes, under a load of everything at once (mixed_load.py).

Step by step as docs/operations.md, "A new cluster key", says, and with what may go wrong on the
way: both masters are killed half-way, each while it signs by another key, and a node starts that
was given a third one.
"""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from clusters import TestCluster, make_cluster
from loads import playing
from mixed_load import RETRY_DELAYS_MS, Stage, under_load
from nodes import CLOCK, CLUSTER_KEY, NodeProcess, delayd_in_process, master_of, node_group
from standing_spark import audit

from chaos.evidence import read_all
from chaos.workload import Scene, mixture
from delayd.config.cluster_key import fingerprint, proof_key
from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode
from delayd.request.proof import is_proof
from delayd.request.request import RequestLimits
from replication.record import decode
from replication.settings import Settings

pytestmark = pytest.mark.real

OLD = CLUSTER_KEY
NEW = "the key that replaces it, line 1"
UNKNOWN = "a key that nobody was given"
BOTH = f"{OLD}\n{NEW}"
NEW_FIRST = f"{NEW}\n{OLD}"

SPREAD_MS = 24_000
"""Most of a rotation falls into it."""

AFTER_AT = 0.5
"""At the earliest: the late target is there by then (mixed_load.py)."""
AFTER_REQUESTS = 300
AFTER_SPREAD_MS = 3_000
AFTER_LEAD_MS = 3_500


class Signed(NamedTuple):
    """A record that a master requeued, and the key that proves it."""

    append_ms: int
    key: str | None


def start(node: NodeProcess, lines: str) -> NodeProcess:
    """Start a node with these cluster keys."""
    return node.start(env={"DELAYD_CLUSTER_KEY": lines})


def restart(node: NodeProcess, lines: str) -> None:
    """End a node as docs/operations.md, Rolling restart, says, and start it with these keys."""
    node.signal(signal.SIGTERM)
    assert node.wait_exit() == ExitCode.FINE, node.log[-3000:]
    start(node, lines).wait_ready()


def is_refused(cluster: TestCluster, number: int, lines: str) -> str:
    """Start one more node with these keys, which ends at once. Return what it says."""
    with node_group([cluster.node(number)]) as [node]:
        start(node, lines)
        assert node.wait_exit() == ExitCode.PROBLEM
        return node.log


def rotate(nodes: list[NodeProcess]) -> None:
    """Carry out steps 2 and 3, with masters that are killed between two restarts."""
    for node in nodes:
        restart(node, BOTH)
    last = master_of(nodes)
    [first] = [node for node in nodes if node is not last]
    restart(first, NEW_FIRST)
    last.kill()
    assert master_of(nodes) is first  # signs by the new key
    start(last, BOTH).wait_ready()
    first.kill()
    assert master_of(nodes) is last  # signs by the old one again
    start(first, NEW_FIRST).wait_ready()
    restart(last, NEW_FIRST)


def play_more(stage: Stage) -> None:
    """Send more of the same, messages for a missing target too."""
    stage.wait(AFTER_AT)
    scene, first_ms = stage.scene, CLOCK.wall_ms() + AFTER_LEAD_MS
    more = Scene(
        f"{scene.run}-after",
        scene.targets,
        scene.late,
        scene.never,
        first_ms,
        AFTER_SPREAD_MS,
        retried_for_ms=AFTER_SPREAD_MS,
    )
    with playing(stage.cluster, mixture(more, count=AFTER_REQUESTS, seed=1)):
        pass


def settings_of(cluster: TestCluster) -> list[Settings]:
    """Return the settings of the frontier's records, where they change."""
    found: list[Settings] = []
    for record in read_all(cluster.bootstrap, [f"{cluster.name}-frontier"]):
        if record.is_frontier and record.value:
            settings = decode(record.value).settings
            found += [settings] if not found or settings != found[-1] else []
    return found


def signed_records(cluster: TestCluster, settings: Settings) -> list[Signed]:
    """Return the records that masters have requeued."""
    limits = {key: RequestLimits.of(settings, proof_key(key)) for key in (OLD, NEW)}
    found = []
    for record in read_all(cluster.bootstrap, [cluster.buffer]):
        name, proof = record.headers[-1]
        if name == "delayd-proof" and proof is not None and "origin" in record.fields:
            place = (record.partition, record.key, record.value, list(record.headers[:-1]))
            keys = [key for key, limit in limits.items() if is_proof(proof, limit, *place)]
            found.append(Signed(record.append_ms, keys[0] if keys else None))
    return found


def check_audits(cluster: TestCluster, nodes: list[NodeProcess], old: str) -> None:
    """Check that an audit is well with both keys, and refuses to go with the new one alone."""
    options = (
        *("--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd, "--nodes", "2"),
        *("--cluster", cluster.name, "--prefix", f"{cluster.name}-"),
    )
    refused = delayd_in_process("audit", "--json", *options, "--cluster-key", NEW)
    assert refused.returncode == ExitCode.PROBLEM
    assert f"the key whose fingerprint is {old} may have signed" in refused.stderr
    with node_group(nodes):
        for node in nodes:
            start(node, NEW)
        for node in nodes:
            node.wait_ready()
        both = {"DELAYD_CLUSTER_KEY": NEW_FIRST}
        told = audit("--json", *options, env=both)
    assert told.returncode == ExitCode.FINE, told.stdout + told.stderr
    report = json.loads(told.stdout)
    assert report["verdict"] == "ok" and not report["found"], report


@pytest.mark.rehearsal
def test_a_cluster_key_is_replaced_without_an_outage(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """docs/operations.md, "A new cluster key". All requests have one true outcome (under_load).

    Rules: continuation-proof, keys-accepted
    """
    cluster = make_cluster(kafka_and_etcd, tmp_path, retry_delays_ms=RETRY_DELAYS_MS)
    nodes = [cluster.node(number) for number in range(2)]
    old, new = (fingerprint(key, cluster.name) for key in (OLD, NEW))
    with under_load(cluster, nodes, spread_ms=SPREAD_MS) as stage:
        stage.wait(0.1)
        rotate(nodes)
        told = is_refused(cluster, 2, UNKNOWN)
        assert "wrong-cluster-key" in told and f"whose fingerprint is {new}" in told, told
        for node in nodes:
            restart(node, NEW)
        dropped_ms = CLOCK.wall_ms()
        assert "wrong-cluster-key" in is_refused(cluster, 3, OLD)
        play_more(stage)

    history = settings_of(cluster)
    fingerprints = [settings.key_fingerprint for settings in history]
    assert fingerprints[0] == old and fingerprints[-1] == new and len(fingerprints) >= 4
    assert list(history[-1].keys_before_ms()) == [old]
    signed = signed_records(cluster, history[-1])
    assert Counter(each.key for each in signed).keys() == {OLD, NEW}, "nothing to prove"
    assert {each.key for each in signed if each.append_ms > dropped_ms} == {NEW}

    check_audits(cluster, nodes, old)
