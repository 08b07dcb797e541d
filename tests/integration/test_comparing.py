"""A node whose wheel differs from those of the others is found and named while they run.

Source: docs/design/storage.md, "Comparing running nodes".
"""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from clusters import make_cluster
from nodes import HANGS_S, NodeProcess, delayd, running, wait_for
from wheel_rewriting import Held, rewrite

from delayd.client import Client
from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode

pytestmark = pytest.mark.real

COUNT = 300
FAR_MS = 5 * 3_600_000


def stop(node: NodeProcess) -> None:
    node.signal(signal.SIGTERM)
    assert node.wait_exit() == 0


def told(node: NodeProcess) -> dict[str, tuple[list[str], str]]:
    """What a node has found: by source, who is wrong, and how that was found out."""
    messages = node.status()["compared"]["messages"]
    return {each["source"]: (each["wrong"], each["by"]) for each in messages}


def is_alike(a: NodeProcess, b: NodeProcess) -> bool:
    """Compare all that two stopped nodes must both hold."""
    told = delayd("wheel", "diff", str(a.data), str(b.data), "--json")
    return bool(json.loads(told.stdout)["alike"])


def test_a_wheel_that_differs_is_found_named_and_replaced_by_hand(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=2)
    target = cluster.target("later")
    nodes = [cluster.node(n, compare_s=1, on_difference="alert") for n in range(3)]
    wrong = nodes[2]
    with running(nodes), cluster.client() as client:
        plain = [client.schedule_async(target, b"v" * 100, in_=FAR_MS) for _ in range(COUNT)]
        named = client.schedule(target, b"mine", id="m-1", in_=FAR_MS)
        sent = [each.result(HANGS_S) for each in plain]
        wait_for(
            lambda: all(sum(n.status().get("ingested", ())) > COUNT for n in nodes), "ingested"
        )
        wait_for(
            lambda: all(n.status()["compared"]["rounds"] > 1 for n in nodes if not n.is_master()),
            "all but the master compare themselves",
        )
        assert all(n.status()["compared"]["confirmed"] == 0 for n in nodes)

        # By hand, with all checksums right: one message lost, and the value of one altered.
        stop(wrong)
        altered = sent[7].source

        def change(held: Held) -> list[Held]:
            source = f"{held.partition}/{held.offset}"
            if source == named.source:
                return []
            fields = tuple(b"w" * 100 if each == b"v" * 100 else each for each in held.fields)
            return [held._replace(fields=fields) if source == altered else held]

        assert rewrite(wrong.data, change) > 0
        assert delayd("wheel", "verify", str(wrong.data)).returncode == ExitCode.FINE
        others = [node for node in nodes if node is not wrong]
        stop(others[0])
        assert not is_alike(others[0], wrong)
        others[0].start().wait_ready()

        # All go on, and say so: the log knows what was altered, the majority what is missing.
        wrong.start().wait_ready()
        found = {altered: ([wrong.name], "log"), named.source: ([wrong.name], "majority")}
        wait_for(lambda: told(wrong) == found, "the node itself finds what is wrong with it")
        wait_for(lambda: any(told(n) == found for n in nodes if n is not wrong), "so do others")
        assert "event=wheel_differs" in wrong.log
        assert f"{named.source} (message, id m-1" in wrong.log
        assert wrong.status()["ready"] and not (wrong.data / "damage.json").exists()

        # By hand, as docs/operations.md says.
        stop(wrong)
        by_hand = ("wheel", "fetch", "--config", str(wrong.config), "--from", others[0].name)
        fetched = delayd(*by_hand, "--yes")
        assert fetched.returncode == ExitCode.FINE, fetched.stderr
        assert (wrong.data / "replaced" / "format.json").exists()
        stop(others[0])
        assert is_alike(others[0], wrong)
        others[0].start().wait_ready()
        wrong.start().wait_ready()
        wait_for(lambda: not any(told(node) for node in nodes), "no node finds anything any more")
        rounds = wrong.status()["compared"]["rounds"]
        wait_for(
            lambda: wrong.is_master() or wrong.status()["compared"]["rounds"] > rounds + 2,
            "it compares itself again",
        )
        assert wrong.status()["compared"]["confirmed"] == 0


def repair_of(node: NodeProcess) -> dict[str, Any]:
    """What a node says of the repair of its wheel; nothing if it does not run."""
    return (node.status().get("compared") or {}).get("repair") or {}


def repaired(wrong: NodeProcess) -> None:
    """Wait until a node ends to repair its wheel; then start it, until that is repaired."""
    assert wrong.wait_exit() == ExitCode.PROBLEM
    assert "event=wheel_repair_begun" in wrong.log and "wheel-differs" in wrong.log
    wrong.start().wait_ready()
    wait_for(lambda: repair_of(wrong).get("state") == "repaired", "it is like the others")
    assert wrong.log.count("event=wheel_repair_begun") == 1
    assert (wrong.data / "replaced" / "format.json").exists(), "the evidence"


def scheduled(nodes: list[NodeProcess], client: Client, target: str) -> list[str]:
    """The sources of messages with ids, of which the log's record alone does not tell whether they
    were stored."""
    sent = [client.schedule(target, b"v", id=f"m-{n}", in_=FAR_MS) for n in range(20)]
    client.cancel("m-3")
    wait_for(lambda: all(sum(n.status().get("ingested", ())) > 20 for n in nodes), "ingested")
    return [each.source for each in sent]


def lose(node: NodeProcess, source: str) -> None:
    """Stop a node, and take a message from its wheel."""
    stop(node)
    assert rewrite(node.data, lambda h: [] if f"{h.partition}/{h.offset}" == source else [h])


def test_a_wheel_that_differs_is_repaired_from_the_log(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """docs/design/repairing.md: of two nodes nobody knows who is wrong."""
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=2)
    nodes = [cluster.node(number, compare_s=1) for number in range(2)]
    with running(nodes) as other, cluster.client() as client:
        sources = scheduled(nodes, client, cluster.target("later"))
        [wrong] = [node for node in nodes if node is not other]
        lose(wrong, sources[7])
        repaired(wrong.start())
        assert f"{sources[7]} (message, id m-7" in wrong.log
        stop(wrong)
        stop(other)
        assert is_alike(other, wrong)


@pytest.mark.rehearsal
def test_a_master_that_is_wrong_hands_over_and_repairs_its_wheel(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=2)
    nodes = [cluster.node(number, compare_s=1) for number in range(3)]
    with running(nodes) as master, cluster.client() as client:
        sources = scheduled(nodes, client, cluster.target("later"))
        wrong, *others = sorted(nodes, key=lambda node: node is master)
        for node in others:
            stop(node)
        lose(wrong, sources[7])
        wrong.start()
        wait_for(wrong.is_master, "it is the only one")
        for node in others:
            node.start().wait_ready()
        repaired(wrong)
        assert "event=node_ends_to_repair" in wrong.log
        assert any(node.is_master() for node in others), "it has handed over"
        wait_for(lambda: not any(told(node) for node in nodes), "no node finds anything any more")
        for node in nodes:
            stop(node)
        assert all(is_alike(node, wrong) for node in others)
