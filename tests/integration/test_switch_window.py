"""A node of v0.1.0 starts unseen while the rules are switched: one partition at most is ruled in
two ways, and docs/operations.md, Upgrade, tells how to go on. No message is lost or doubled.

Source: docs/design/frontier.md, "Rules switch".
"""

import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
from clusters import TestCluster
from nodes import CLOCK, CLUSTER_KEY, NodeProcess, master_of, node_group, wait_for
from releases import ROOT, Code, create_cluster, release_before
from topics_read import Seen, all_of, read_until

from delayd.bus.confluent import ConfluentBus
from delayd.client import Client
from delayd.cluster import rules_switch
from delayd.cluster.connect import open_coordination
from delayd.cluster.topics import load_settings
from delayd.config.security import Security
from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode, UpgradeError
from replication.settings import RULES_VERSION

pytestmark = [pytest.mark.real, pytest.mark.rehearsal]

PARTITIONS = 3
MESSAGES = 30
TIMEOUT_MS = 20_000


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The release before."""
    return release_before(tmp_path_factory.mktemp("before"))


def switch(cluster: TestCluster, meanwhile: Callable[[], object] = lambda: None) -> list[int]:
    """Do what `delayd upgrade rules` does; `meanwhile` is after it has looked, before it writes."""
    write = rules_switch.write_barriers
    begun = [meanwhile]

    def written(*parts: object) -> None:
        while begun:
            begun.pop()()
        write(*parts)  # type: ignore[arg-type]

    etcd = open_coordination([cluster.etcd], cluster.name, Security.none())
    with closing(etcd), mock.patch.object(rules_switch, "write_barriers", written):
        return rules_switch.switch_rules(
            ConfluentBus(cluster.bootstrap),
            etcd,
            CLOCK,
            cluster=cluster.name,
            prefix=f"{cluster.name}-",
            cluster_key=CLUSTER_KEY,
            version=RULES_VERSION,
            timeout_ms=TIMEOUT_MS,
        )


def switch_until_done(cluster: TestCluster) -> None:
    """Repeat the command as its errors ask: etcd forgets a node that ended after a while."""

    def is_done() -> bool:
        try:
            switch(cluster)
        except UpgradeError as error:
            print(error)
            return False
        return True

    wait_for(is_done, "the rules are switched")


def barriers(cluster: TestCluster) -> dict[int, list[int]]:
    """The offsets of what was written as a barrier, by partition."""
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for record in all_of(cluster.bootstrap, cluster.buffer, PARTITIONS):
        if any(name == "delayd-rules" for name, _ in record.headers):
            found[record.partition].append(record.offset)
    return found


def named(cluster: TestCluster) -> dict[int, int]:
    """The barriers that the last frontier names."""
    seen = load_settings(
        ConfluentBus(cluster.bootstrap), cluster.name, f"{cluster.name}-", TIMEOUT_MS
    )
    return {each.partition: each.offset for each in seen.record.barriers}


def letters(cluster: TestCluster) -> list[Seen]:
    return read_until(cluster.bootstrap, cluster.dead, lambda _: False, timeout_s=5)


def schedule(client: Client, target: str) -> None:
    """Messages for all partitions of the buffer, due in some seconds."""
    due_ms = CLOCK.wall_ms() + 3_000
    futures = [
        client.schedule_async(target, b"v", key=b"k%d" % number, at=due_ms)
        for number in range(MESSAGES)
    ]
    for future in futures:
        future.result(TIMEOUT_MS / 1_000)


def delivered_once(cluster: TestCluster, target: str, sent: int) -> None:
    """Wait until so many messages have come; each did once."""
    found: list[str] = []

    def have_come() -> bool:
        records = all_of(cluster.bootstrap, target, 4)
        found[:] = [str(dict(record.headers)["delayd-source"]) for record in records]
        return len(found) >= sent

    wait_for(have_come, f"{sent} are delivered")
    assert len(found) == len(set(found)) == sent


def test_an_older_node_that_becomes_master_has_one_partition_ruled_in_two_ways(
    before: Code, kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """Rules: switch-gate, switch-repeated"""
    now = Code(ROOT)
    cluster = create_cluster(before, kafka_and_etcd, tmp_path)
    target = cluster.target("orders")
    older, newer = nodes = [cluster.node(number) for number in range(2)]

    def older_leads() -> None:
        before.start(older)
        older.wait_ready()
        newer.kill()
        master_of([older])

    with node_group(nodes), cluster.client() as client:
        now.start(newer)
        master_of([newer])
        schedule(client, target)
        with pytest.raises(UpgradeError, match="partitions 0, and no master"):
            switch(cluster, older_leads)
        schedule(client, target)
        delivered_once(cluster, target, 2 * MESSAGES)
        [offset] = barriers(cluster).pop(0)
        assert sum(map(len, barriers(cluster).values())) == 1, "no second partition is risked"
        assert [letter.header("delayd-source") for letter in letters(cluster)] == [f"0/{offset}"]
        assert named(cluster) == {}

        older.signal(signal.SIGTERM)
        assert older.wait_exit() == ExitCode.FINE
        shutil.rmtree(older.data)
        for node in nodes:
            now.start(node)
            node.wait_ready()
        switch_until_done(cluster)
        schedule(client, target)
        delivered_once(cluster, target, 3 * MESSAGES)
        assert named(cluster) == {number: at[0] for number, at in barriers(cluster).items()}
        assert named(cluster)[0] == offset
        assert len(letters(cluster)) == 1


def test_an_older_node_that_does_not_lead_ends_at_the_first_barrier(
    before: Code, kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """Rules: switch-gate"""
    now = Code(ROOT)
    cluster = create_cluster(before, kafka_and_etcd, tmp_path)
    target = cluster.target("orders")
    older, newer = nodes = [cluster.node(number) for number in range(2)]

    def older_starts() -> NodeProcess:
        before.start(older)
        return older.wait_ready()

    with node_group(nodes), cluster.client() as client:
        now.start(newer)
        master_of([newer])
        schedule(client, target)
        try:
            switch(cluster, older_starts)
        except UpgradeError as error:
            assert f"{older.name} do not say" in str(error)
        assert older.wait_exit() == ExitCode.PROBLEM
        assert "unknown frontier format 3" in older.log
        switch_until_done(cluster)
        schedule(client, target)
        delivered_once(cluster, target, 2 * MESSAGES)
        assert named(cluster) == {number: at[0] for number, at in barriers(cluster).items()}
        assert letters(cluster) == []
