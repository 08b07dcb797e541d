"""A real cluster, broken in the ways of Kubernetes, judged by an independent count and the audit.

`make k8s-test` runs it on the cluster that kubectl points at. Times are for the table alone: what
must hold is that nothing is lost, doubled, early or altered, and that all become ready again.

    K8S_REUSE=1   go on with the cluster that is there
    K8S_KEEP=1    leave it there; after a failure it stays anyway
"""

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from k8s_cluster import (
    BEGUN,
    NODES,
    SHARDS,
    STEADY_S,
    Cluster,
    KubectlError,
    Run,
    Traffic,
    is_held_back,
    is_ready,
    last_words,
    node_state,
    wait_for,
)

IDLE_S = 30


@contextmanager
def masters_noted(cluster: Cluster, seen: list[str]) -> Iterator[None]:
    """Who was master meanwhile, each change once."""
    ending = threading.Event()

    def look() -> None:
        while not ending.wait(0.3):
            try:
                found = cluster.master()
            except KubectlError:
                continue
            if found and (not seen or seen[-1] != found):
                seen.append(found)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def test_it_comes_up_from_nothing(cluster: Cluster, traffic: Traffic) -> None:
    with traffic("still") as run, run.mark("nothing"):
        time.sleep(STEADY_S)


def test_an_idle_node_needs_little(cluster: Cluster, note: list[str]) -> None:
    master = cluster.wait_master()
    for pod in cluster.wait_ready():
        before, _ = usage(cluster, pod)
        begun = time.monotonic()
        time.sleep(IDLE_S)
        after, memory = usage(cluster, pod)
        role = "master" if pod == master else "follower"
        cores = (after - before) / 1e9 / (time.monotonic() - begun)
        note.append(f"idle {role}: {memory / 1e6:.0f} MB, {1000 * cores:.0f} m of a core")
        assert memory < 1e9


def usage(cluster: Cluster, pod: str) -> tuple[float, float]:
    """Nanoseconds of CPU, and bytes of memory without what the kernel may drop at once."""
    told = cluster.inside("exec", pod, "-c", "node", "--", "python", "-c", USAGE).split()
    spent, held, droppable = map(int, told)
    return spent, held - droppable


USAGE = """
from pathlib import Path
root = Path("/sys/fs/cgroup")
def said(file):
    return dict(line.split()[:2] for line in (root / file).read_text().splitlines())
if (root / "memory.current").exists():
    held = (root / "memory.current").read_text()
    print(int(said("cpu.stat")["usage_usec"]) * 1000, held, said("memory.stat")["inactive_file"])
else:
    held = (root / "memory/memory.usage_in_bytes").read_text()
    spent = (root / "cpuacct/cpuacct.usage").read_text()
    print(spent, held, said("memory/memory.stat")["total_inactive_file"])
"""
"""cgroups of version 2, and of version 1."""


def test_a_master_that_is_deleted_by_force_five_times(cluster: Cluster, traffic: Traffic) -> None:
    with traffic("kill") as run:
        for number in range(5):
            master = cluster.wait_master()
            with run.mark(f"master deleted by force, {number + 1}"), cluster.replacing(master):
                cluster.inside("delete", "pod", master, "--force", "--grace-period=0")
            cluster.wait_ready()
            time.sleep(STEADY_S)


def test_a_rolling_update(cluster: Cluster, traffic: Traffic, note: list[str]) -> None:
    masters: list[str] = []
    with masters_noted(cluster, masters), traffic("roll") as run:
        wait_for("a master", lambda: masters, 60)
        before = cluster.read("statefulset", "delayd")["status"]["updateRevision"]
        with run.mark("rolling update"):
            cluster.inside("rollout", "restart", "statefulset/delayd")
            cluster.wait_rolled(before)
    note.append(f"rolling update: masters {' -> '.join(masters)}")


def test_evictions_leave_a_node_that_is_ready(cluster: Cluster, traffic: Traffic) -> None:
    with traffic("evict") as run:
        master = cluster.wait_master()
        first, second = (pod for pod in cluster.wait_ready() if pod != master)
        both = (cluster.replacing(master), cluster.replacing(first))
        with run.mark("master and a follower evicted"), both[0], both[1]:
            cluster.evict(master)
            cluster.evict(first)
            with pytest.raises(KubectlError, match="disruption budget"):
                cluster.evict(second)


def test_more_nodes_and_fewer_again(cluster: Cluster, traffic: Traffic) -> None:
    with traffic("scale") as run:
        with run.mark("scale 3 to 5"):
            cluster.inside("scale", "statefulset/delayd", "--replicas=5")
            cluster.wait_ready(5)
        with run.mark("scale 5 to 3"):
            cluster.inside("scale", "statefulset/delayd", "--replicas=3")
            cluster.wait_ready(3)
    kept = {each["metadata"]["name"] for each in cluster.read("pvc")["items"]}
    assert {f"data-delayd-{number}" for number in range(5)} <= kept


def test_a_lost_volume(cluster: Cluster, traffic: Traffic) -> None:
    with traffic("volume") as run:
        master = cluster.wait_master()
        pod = next(pod for pod in cluster.wait_ready() if pod != master)
        with run.mark("volume of a follower lost"), cluster.replacing(pod):
            cluster.lose_volume(pod)


def test_a_changed_setting_rolls_the_nodes(cluster: Cluster, traffic: Traffic) -> None:
    with traffic("config") as run:
        before = cluster.read("statefulset", "delayd")["status"]["updateRevision"]
        with run.mark("changed setting"):
            cluster.settings["idle_step_interval_ms"] = "4000"
            cluster.apply()
            cluster.wait_rolled(before)


def test_a_master_cut_off_the_network(cluster: Cluster, traffic: Traffic) -> None:
    if "K8S_CUT" not in os.environ:
        pytest.skip("K8S_CUT and K8S_MEND say how a pod is taken off the network; they are not set")
    with traffic("cut") as run:
        master = cluster.wait_master()
        ip = cluster.read("pod", master)["status"]["podIP"]
        with run.mark("master cut from Kafka, etcd and nodes"):
            cluster.shell("K8S_CUT", ip=ip)
            try:
                wait_for("another master", lambda: cluster.master() not in (None, master), 60)
                time.sleep(STEADY_S)
            finally:
                cluster.shell("K8S_MEND", ip=ip)
            cluster.wait_ready()


def test_a_master_that_is_killed(cluster: Cluster, traffic: Traffic) -> None:
    """SIGKILL: it neither resigns nor ends its step. Its container is started again in its pod."""
    if "K8S_KILL" not in os.environ:
        pytest.skip("K8S_KILL says how the process of a pod's node is killed; it is not set")

    def is_back(pod: str, restarts: int) -> bool:
        found = cluster.read("pod", pod)
        return node_state(found)["restartCount"] > restarts and is_ready(found)

    with traffic("sigkill") as run:
        for number in range(3):
            master = cluster.wait_master()
            before = node_state(cluster.read("pod", master))["restartCount"]
            with run.mark(f"master's process killed (SIGKILL), {number + 1}"):
                cluster.shell("K8S_KILL", pod=master)
                wait_for(f"{master} to be started again", partial(is_back, master, before), 300)
            cluster.wait_ready()
            time.sleep(STEADY_S)


def test_a_frozen_kubelet(cluster: Cluster, traffic: Traffic) -> None:
    if "K8S_FREEZE" not in os.environ:
        pytest.skip("K8S_FREEZE and K8S_THAW say how the kubelet is stopped; they are not set")
    with traffic("kubelet") as run, run.mark("kubelet frozen for 20 s"):
        cluster.shell("K8S_FREEZE")
        try:
            time.sleep(20)
        finally:
            cluster.shell("K8S_THAW")
        cluster.wait_ready()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"leese_ttl_s": "3"}, "leese_ttl_s: extra inputs are not permitted"),
        ({"guarantee": '"at-least-once"'}, "was made for 'exactly-once'"),
        ({"kafka_security_protocol": '"SSL"', "connect_timeout_s": "5"}, "[kafka-unreachable]"),
    ],
    ids=["unknown key", "another guarantee", "Kafka not reached"],
)
def test_a_bad_setting_is_told_by_one_node_and_the_others_go_on(
    cluster: Cluster, traffic: Traffic, settings: dict[str, str], said: str, note: list[str]
) -> None:
    """The update ends at the first node that does not become ready; another one goes on."""
    good = dict(cluster.settings)
    with traffic("bad") as run, run.mark(f"bad setting {next(iter(settings))}, and mended"):
        try:
            cluster.settings.update(settings)
            cluster.apply()
            [pod] = wait_for(f"one that says {said!r}", lambda: tellers(cluster, said), 180)
            assert sum(is_ready(each) for each in cluster.pods()) == 2
            note.append(told_by(pod))
        finally:
            cluster.settings.clear()
            cluster.settings.update(good)
            cluster.apply()
        cluster.wait_ready()


def tellers(cluster: Cluster, said: str) -> list[Any]:
    """The nodes that ended with these words and that Kubernetes does not start at once again."""
    return [pod for pod in cluster.pods() if said in last_words(pod) and is_held_back(pod)]


def told_by(pod: Any) -> str:
    """For the reader of the table."""
    line = last_words(pod).strip().splitlines()[-1]
    return f"{pod['metadata']['name']} ({node_state(pod)['restartCount']} restarts): {line}"


def test_a_retention_that_is_too_short_is_told_and_the_nodes_go_on(
    cluster: Cluster, traffic: Traffic, note: list[str]
) -> None:
    """It is no setting of delayd: whoever mends it has nothing to apply."""
    with traffic("retention") as run, run.mark("retention too short, told and mended"):
        before = restarts(cluster)
        alter_buffer(cluster, "retention.ms=86400000")
        wait_for("three nodes that say so", lambda: warned(cluster) == 3, 120)
        assert cluster.ready(3)
        [said] = cluster.status("delayd-0")["topic_warnings"]
        note.append(f"retention too short: {said}")
        named = re.search(r"retention.ms is 86400000: too short.*--add-config (\S+)`", said)
        assert named, "the line has the command that mends it"
        alter_buffer(cluster, named[1])
        wait_for("three nodes without a warning", lambda: warned(cluster) == 0, 120)
        assert restarts(cluster) == before


def warned(cluster: Cluster) -> int:
    """How many nodes warn of their topics."""
    names = [pod["metadata"]["name"] for pod in cluster.pods()]
    return sum(bool(cluster.status(name)["topic_warnings"]) for name in names)


def restarts(cluster: Cluster) -> dict[str, int]:
    """How often each node was started again in its pod."""
    return {p["metadata"]["uid"]: node_state(p)["restartCount"] for p in cluster.pods()}


def test_etcd_is_away_for_a_minute(cluster: Cluster, traffic: Traffic) -> None:
    """Its pod is deleted, with what it holds on its volume kept."""
    with traffic("etcd") as run, run.mark("etcd away for a minute"):
        before = restarts(cluster)
        cluster.inside("scale", "statefulset/etcd", "--replicas=0")
        time.sleep(60)
        assert len(cluster.ready(3) or ()) == 3, "no node needs etcd to be ready"
        cluster.inside("scale", "statefulset/etcd", "--replicas=1")
        cluster.wait_master()
        assert restarts(cluster) == before


def test_the_broker_comes_back_under_another_address(
    cluster: Cluster, traffic: Traffic, note: list[str]
) -> None:
    """A roll of the broker: its pod is replaced, and its name leads to another address."""
    with traffic("roll") as run, run.mark("broker's pod replaced"):
        began = restarts(cluster)
        address = cluster.read("pod", "kafka-0")["status"]["podIP"]
        with cluster.replacing("kafka-0"):
            cluster.inside("delete", "pod", "kafka-0")
        assert cluster.read("pod", "kafka-0")["status"]["podIP"] != address
        back = time.monotonic()
        delivered = delivered_count(cluster)
        wait_for("deliveries", lambda: delivered_count(cluster) > delivered + BEGUN, 60)
        note.append(f"{BEGUN} deliveries {time.monotonic() - back:.1f} s after the broker is ready")
        cluster.wait_ready()
        assert restarts(cluster) == began


def delivered_count(cluster: Cluster) -> int:
    """By its master since it was started."""
    return int(cluster.status(cluster.wait_master())["delivered_count"])


def alter_buffer(cluster: Cluster, config: str) -> None:
    """What kafka-configs.sh does, which not every image has."""
    tool = ("java", "-cp", "/opt/kafka/libs/*", "-Xmx64m", "kafka.admin.ConfigCommand")
    where = ("--bootstrap-server", "kafka:9092", "--entity-type", "topics")
    what = ("--entity-name", "delayd-buffer", "--alter", "--add-config", config)
    cluster.inside("exec", "kafka-0", "--", *tool, *where, *what)


def test_the_labels_show_the_masters(cluster: Cluster) -> None:
    cluster.wait_ready()
    wait_for("the labels", lambda: shown_masters(cluster) == said_masters(cluster), 60)


def shown_masters(cluster: Cluster) -> dict[str, str | None]:
    """What the labels say of each master."""
    shown = cluster.pods(f"{NODES},delayd.io/role=master")
    found = (pod["metadata"] for pod in shown)
    return {each["name"]: each["labels"].get("delayd.io/shards") for each in found}


def said_masters(cluster: Cluster) -> dict[str, str | None]:
    """What the nodes say themselves, if all shards are delivered."""
    found = cluster.are_led(SHARDS) or {}
    return {pod: ".".join(map(str, led)) for pod, led in found.items() if led}


def test_the_audit_says_ok_of_all_of_it(cluster: Cluster, note: list[str], runs: list[Run]) -> None:
    cluster.wait_ready()
    name = f"audit-{time.time_ns()}"
    cluster.start_job("delayd-audit", name, {})
    is_well = cluster.wait_job(name, 900)
    lines = cluster.log(name)
    report = json.loads(next(line for line in lines if line.startswith("{")))
    wanted = ("accepted", "delivered", "cancelled", "pending", "lost", "duplicate", "early")
    counts = {key: report[key] for key in (*wanted, "altered", "unknown", "replicas_differ")}
    note.append(f"audit: {report['verdict']} {counts} failovers {len(report['failovers'])}")
    assert is_well and report["verdict"] == "ok", report["found"]
    if "K8S_REUSE" not in os.environ and all(run.report for run in runs):
        sent = sum(run.report["sent"] for run in runs)
        unsure = sum(run.report["unsure"] for run in runs)
        assert sent - unsure <= report["accepted"] <= sent
    assert [node["problem"] for node in report["nodes"]] == [None] * 3
    assert all(".delayd-nodes." in node["admin"] for node in report["nodes"])
