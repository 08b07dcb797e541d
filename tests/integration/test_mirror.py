"""What etcd shows of a running cluster: leader, members, settings, and the mirrored cursor.

Source: docs/design/election.md, "Keys".
"""

import json

import pytest
from clusters import RETRY_DELAYS_MS, TestCluster
from nodes import CLOCK, delayd_in_process, running, wait_for

from delayd.cluster.connect import open_bus
from delayd.cluster.topics import load_settings
from delayd.coordination.etcd import EtcdCoordination

pytestmark = pytest.mark.real


def test_the_master_mirrors_its_cursor_and_status_tells_the_whole_picture(
    cluster: TestCluster,
) -> None:
    nodes = [cluster.node(number) for number in range(2)]
    etcd = EtcdCoordination([cluster.etcd], cluster.name)
    bus = open_bus(cluster.bootstrap)
    seen = load_settings(bus, cluster.name, f"{cluster.name}-", 10_000)
    etcd.enter(seen.record.settings.realm)
    asked = (
        *("status", "--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd),
        *("--cluster", cluster.name, "--prefix", f"{cluster.name}-", "--json"),
    )
    with running(nodes) as master:

        def cursor_age_ms() -> int:
            mirrored = etcd.cursor(0)
            if mirrored is None:
                return 10**9
            return CLOCK.wall_ms() - int(json.loads(mirrored)["cursor_ms"])

        wait_for(lambda: cursor_age_ms() < 5_000, "the mirrored cursor follows the clock")
        held = etcd.leader(0)
        assert held is not None and json.loads(held.owner)["node"] == master.name
        wait_for(lambda: etcd.members().keys() == {"n0", "n1"}, "both nodes are announced")
        answer = delayd_in_process(*asked)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        report = json.loads(answer.stdout)
        assert report["master"] == master.name and report["term"] == 1
        assert {node["node"]: node["role"] for node in report["nodes"]} == {
            node.name: "master" if node is master else "follower" for node in nodes
        }
        assert report["failing_targets"] == []
        stray = bus.idempotent_producer()
        stray.send(f"{cluster.name}-frontier", key=b"another-key", value=b"hello", headers=[])
        stray.flush(10_000)
        stray.close()
        wait_for(
            lambda: [node.status()["frontier_strays"] for node in nodes] == [1, 1],
            "each node has skipped a record that no master wrote",
        )
        begun_ms = CLOCK.wall_ms()
        with cluster.client() as client:
            client.schedule("a.topic.nobody.made", b"v", in_="1ms")
        wait_for(lambda: bool(master.status()["failing_targets"]), "the target fails")
        [failing] = json.loads(delayd_in_process(*asked).stdout)["failing_targets"]
        assert failing["topic"] == "a.topic.nobody.made"
        # A slow machine sees several attempts at the one message.
        assert failing["messages"] == 1
        assert 1 <= failing["attempts"] <= 1 + len(RETRY_DELAYS_MS)
        assert begun_ms <= failing["since_ms"] <= CLOCK.wall_ms()
        text = delayd_in_process(*asked[:-1])
        assert text.returncode == 0 and "a.topic.nobody.made" in text.stdout
    wait_for(lambda: etcd.leader(0) is None, "the lease of the dead master ends")
    dead = delayd_in_process(*asked)
    assert dead.returncode == 1 and "no node holds the leader key" in dead.stdout
    etcd.close()
