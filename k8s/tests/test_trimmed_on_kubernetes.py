"""The same cluster after the beginning of its buffer was deleted, with messages in it that are
still pending: they are on the nodes' volumes alone. No hand is needed for a node that is added, or
comes back without its volume: it copies another node's wheel. When all are lost, a backup has them.

After the audit of test_on_kubernetes.py: it would take for lost what it cannot read any more.
"""

import time

import pytest
from k8s_cluster import Cluster, KubectlError, Traffic, now_ms, wait_for

LONG_S = 120
"""The longest delay: so long do messages wait that only wheels have."""
GATHER_S = 20
"""For messages that are pending when the buffer is trimmed."""
WATCHED_S = 40
"""Longer than nodes take to look at their topics."""


def test_a_trimmed_beginning_is_no_problem_to_nodes_that_have_read_it(
    cluster: Cluster, traffic: Traffic, note: list[str]
) -> None:
    with traffic("trimmed", LONG_S) as run:
        time.sleep(GATHER_S)
        with run.mark("buffer trimmed"):
            note.append(f"the buffer begins at {cluster.trim_buffer()}")
            time.sleep(WATCHED_S)
        for pod in cluster.wait_ready():
            status = cluster.status(pod)
            assert (status["topic_warnings"], status["kafka_problem"]) == ([], None)
            cluster.inside("exec", pod, "-c", "node", "--", "delayd", "topics", "check")


def test_nodes_that_are_added_copy_a_wheel(cluster: Cluster, traffic: Traffic) -> None:
    """One on an empty volume; and one on a volume that was left by an earlier node of that name,
    if there is one."""
    cluster.inside("delete", "pvc", "data-delayd-3", "--ignore-not-found")
    with traffic("trimmed-scale", LONG_S) as run:
        time.sleep(GATHER_S)
        cluster.trim_buffer()
        with run.mark("scale 3 to 5, buffer trimmed"):
            cluster.inside("scale", "statefulset/delayd", "--replicas=5")
            cluster.wait_ready(5)
        for pod in ("delayd-3", "delayd-4"):
            assert "fetch_ended" in cluster.node_events(pod)
        with run.mark("scale 5 to 3, buffer trimmed"):
            cluster.inside("scale", "statefulset/delayd", "--replicas=3")
            cluster.wait_ready(3)


def test_every_node_in_turn_loses_its_volume(cluster: Cluster, traffic: Traffic) -> None:
    """In the end what was trimmed is delivered from copies alone."""
    with traffic("trimmed-volumes", 2 * LONG_S) as run:
        time.sleep(GATHER_S)
        cluster.trim_buffer()
        for pod in cluster.wait_ready():
            with run.mark(f"volume of {pod} lost, buffer trimmed"), cluster.replacing(pod):
                cluster.lose_volume(pod)
            assert "fetch_ended" in cluster.node_events(pod)
            cluster.wait_ready()


def test_drains_go_on_while_a_node_copies(cluster: Cluster, traffic: Traffic) -> None:
    """One host after the other, the master's too; but the last node that is ready stays."""
    before = cluster.read("statefulset", "delayd")["status"]["updateRevision"]
    cluster.settings["snapshot_bytes_per_s"] = "65536"
    cluster.apply()
    cluster.wait_rolled(before)
    with traffic("trimmed-drain", 2 * LONG_S) as run:
        time.sleep(2 * GATHER_S)
        cluster.trim_buffer()
        master = cluster.wait_master()
        copying, other = (pod for pod in cluster.wait_ready() if pod != master)

        def copies() -> bool:
            return bool(cluster.status(copying).get("fetch", {}).get("done_bytes", 0) > 0)

        with run.mark("a node copies, both others are drained"):
            cluster.lose_volume(copying)
            wait_for(f"{copying} to copy a wheel", copies, 120)
            with cluster.replacing(other):
                cluster.evict(other)
                with pytest.raises(KubectlError, match="disruption budget"):
                    cluster.evict(master)
            with cluster.replacing(master):
                cluster.evict(master)
            assert cluster.status(copying)["role"] == "fetching"
            del cluster.settings["snapshot_bytes_per_s"]
            cluster.apply()
            cluster.wait_ready(timeout_s=600)


def test_all_volumes_are_lost_and_there_is_a_backup(
    cluster: Cluster, traffic: Traffic, note: list[str]
) -> None:
    """docs/disaster-recovery.md, step by step. The buffer still has what came after the backup."""
    with traffic("restore", 2 * LONG_S) as run:
        time.sleep(GATHER_S)
        note.append(f"backup: {work(cluster, 'backup')[-1]}")
        note.append(f"verified: {work(cluster, 'verify')[-1]}")
        with run.mark("all volumes lost, one restored"):
            lose_all_volumes(cluster)
            note.append(f"restored: {work(cluster, 'restore')[-1]}")
            cluster.inside("scale", "statefulset/delayd", "--replicas=1")
            cluster.wait_ready(1)
            cluster.inside("scale", "statefulset/delayd", "--replicas=3")
            cluster.wait_ready()


def work(cluster: Cluster, what: str) -> list[str]:
    """Run a Job of the component backup; what it printed."""
    name = f"{what}-{now_ms()}"
    cluster.inside("create", "job", name, f"--from=cronjob/delayd-{what}")
    is_well = cluster.wait_job(name, 300)
    lines = cluster.log(name)
    assert is_well, "\n".join(lines)
    return lines


def lose_all_volumes(cluster: Cluster) -> None:
    """No node is left, and the claim of the first one is there again, empty."""
    scale_to_none(cluster)
    for claim in cluster.read("pvc")["items"]:
        if (name := claim["metadata"]["name"]).startswith("data-delayd-"):
            cluster.inside("delete", "pvc", name)
    # The restore writes to this claim, and a StatefulSet makes it for a pod only.
    cluster.inside("scale", "statefulset/delayd", "--replicas=1")
    wait_for("its claim", lambda: cluster.read("pvc", "data-delayd-0"), 60)
    scale_to_none(cluster)


def scale_to_none(cluster: Cluster) -> None:
    cluster.inside("scale", "statefulset/delayd", "--replicas=0")
    wait_for("all nodes to be gone", lambda: not cluster.pods(), 120)
