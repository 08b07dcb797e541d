"""Faults that are planted in a real cluster, and `delayd doctor`, which names each and what mends
it. Of a cluster that is well it says nothing.

Source: docs/operations.md, "The doctor".
"""

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import Authority
from clusters import TestCluster, make_cluster
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from doctor_visits import visit, visit_until
from nodes import (
    CLUSTER_KEY,
    HANGS_S,
    NodeProcess,
    delayd_in_process,
    master_of,
    node_group,
    running,
    wait_for,
)

from delayd.bus.confluent import ConfluentBus
from delayd.cluster import status
from delayd.cluster.topics import create_topics
from delayd.commands.doctor import transactions
from delayd.dev.cluster import LocalCluster
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.errors import ExitCode
from replication.settings import DAY_MS, RULES_VERSION

pytestmark = pytest.mark.real

ADVICE = {"one-broker", "one-etcd"}
"""What there is to say of the broker and the etcd of these tests, however well they are."""


@pytest.fixture(scope="module")
def site(
    kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestCluster]:
    """Two nodes that run, with a message that is pending for a target."""
    cluster = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("doctor"))
    nodes = [cluster.node(0), cluster.node(1)]
    with running(nodes), cluster.client() as client:
        for node in nodes:
            node.wait_ready()
        client.schedule(cluster.target("well"), b"", in_=DAY_MS)
        wait_for(
            lambda: all(node.status()["ingested_count"] for node in nodes), "both have read it"
        )
        wait_for(lambda: "one-node" not in visit(cluster).findings, "both are announced")
        yield cluster


@contextmanager
def altered(cluster: TestCluster, topic: str, name: str, value: str, right: str) -> Iterator[None]:
    """A topic's setting is wrong inside: for less time than nodes need to believe it."""
    cluster.alter_topic(topic, name, value)
    try:
        yield
    finally:
        cluster.alter_topic(topic, name, right)


def test_nothing_is_wrong_with_a_cluster_that_is_well(site: TestCluster) -> None:
    found = visit(site)
    assert set(found.findings) == ADVICE, found.findings
    assert found.code == ExitCode.FINE
    assert found.rebuilding == {"from_log": True, "from_peer": True, "why": ""}


def test_a_topic_that_breaks_the_contract(site: TestCluster) -> None:
    with altered(site, site.dead, "max.message.bytes", "100000", "1048588"):
        found = visit(site).findings["topic-broken"]
    assert f"topic {site.dead}: max.message.bytes is 100000" in found["what"]
    assert found["mend"].startswith("kafka-configs.sh") and site.dead in found["mend"]


@pytest.mark.parametrize(
    ("name", "value", "right", "told"),
    [
        ("retention.ms", "3600000", str(41 * DAY_MS), "1 message of those pending"),
        ("retention.bytes", "1000000000", "-1", "limits what is kept by size"),
    ],
)
def test_a_retention_that_is_too_short_for_what_is_pending(
    site: TestCluster, name: str, value: str, right: str, told: str
) -> None:
    with altered(site, site.buffer, name, value, right):
        found = visit(site).findings["buffer-endangered"]
    assert told in found["what"] and f"--add-config {name}={right}" in found["mend"]


def test_a_buffer_that_takes_compressed_batches(site: TestCluster) -> None:
    with altered(site, site.buffer, "compression.type", "producer", "uncompressed"):
        found = visit(site)
    assert found.wrong == {"buffer-unguarded"}


def test_targets_that_will_not_take_what_is_pending_for_them(site: TestCluster) -> None:
    strict = site.target("strict", config={"message.timestamp.before.max.ms": "1000"})
    missing = f"target.{site.name}.missing"
    with site.client() as client:
        for number, topic in enumerate((strict, missing)):
            client.schedule(topic, b"", in_=DAY_MS, id=f"doomed {number}")

        def mends() -> list[str]:
            found = visit_until(site, "target-failing")
            return [found.findings["target-failing"]["mend"]]

        wait_for(lambda: any(f"--create --topic {missing}" in each for each in mends()), "missing")
        client.cancel("doomed 1")
        wait_for(lambda: any(f"--describe --topic {strict}" in each for each in mends()), "strict")
        client.cancel("doomed 0")
        wait_for(lambda: not visit(site).wrong, "nothing is pending for them any more")


def test_a_transaction_that_stays_open_in_the_buffer_with_its_producers_name(
    site: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Producer({"bootstrap.servers": site.bootstrap, "transactional.id": "the-shop"})
    shop.init_transactions(HANGS_S)
    shop.begin_transaction()
    shop.produce(site.buffer, b"", partition=1)
    shop.flush(HANGS_S)
    try:
        assert not visit(site).wrong, "it may stay open for a minute"
        monkeypatch.setattr(transactions, "HELD_MS_MAX", 0)
        monkeypatch.setattr(status, "HELD_MS_MAX", 0)
        findings = visit_until(site, "buffer-held").findings
    finally:
        shop.abort_transaction(HANGS_S)
    assert "partition 1 of the buffer" in findings["buffer-held"]["what"]
    found = findings["transaction-open"]
    assert "'the-shop'" in found["what"] and f"{site.buffer}/1" in found["what"]
    assert f"abort --topic {site.buffer} --partition 1" in found["mend"]
    assert found["severity"] == "critical"


def test_somebody_else_who_writes_to_the_frontier(site: TestCluster) -> None:
    stranger = Producer({"bootstrap.servers": site.bootstrap})
    stranger.produce(f"{site.name}-frontier", b"?", key=b"not ours", partition=0)
    stranger.flush(HANGS_S)
    assert visit_until(site, "frontier-strays").wrong == {"frontier-strays"}


def test_a_cluster_whose_nodes_are_all_away(cluster: TestCluster) -> None:
    assert visit(cluster).wrong == {"no-master"}


def test_a_node_that_is_frozen_and_then_missing(cluster: TestCluster) -> None:
    nodes = [cluster.node(0), cluster.node(1)]
    with running(nodes) as master:
        [other] = [node.wait_ready() for node in nodes if node is not master]
        wait_for(lambda: "one-node" not in visit(cluster).findings, "both are announced")
        other.signal(signal.SIGSTOP)
        assert (
            f"node {other.name} does not answer" in visit(cluster).findings["node-silent"]["what"]
        )
        other.kill()
        found = visit_until(cluster, "node-missing")
        assert f"node {other.name} is missing" in found.findings["node-missing"]["what"]
        assert found.rebuilding is not None and not found.rebuilding["from_peer"]


def test_a_disk_that_could_be_rebuilt_from_nothing(cluster: TestCluster) -> None:
    with running([cluster.node(0)]), cluster.client() as client:
        target = cluster.target("a")
        place = client.schedule(target, b"", in_=DAY_MS).source
        partition = int(place.partition("/")[0])
        client.schedule(target, b"", in_=DAY_MS)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        assert visit(cluster).rebuilding == {"from_log": True, "from_peer": False, "why": ""}
        trimmed = [TopicPartition(cluster.buffer, partition, 1)]
        for done in admin.delete_records(trimmed).values():
            done.result(HANGS_S)
        found = visit(cluster)
    assert found.wrong == {"not-rebuildable"}
    assert "now begins at offset 1" in found.findings["not-rebuildable"]["what"]
    assert set(found.findings) == {*ADVICE, "one-node", "not-rebuildable"}


def test_clocks_of_nodes_and_brokers_that_differ(cluster: TestCluster) -> None:
    node = cluster.node(0)
    with node_group([node]):
        node.start({"DELAYD_CLOCK_OFFSET_MS": "-400"})
        master_of([node])
        found = visit_until(cluster, "broker-clock")
    assert "the clock of node n0 is -" in found.findings["node-clock"]["what"]
    assert found.wrong == {"node-clock", "broker-clock"}


def test_limits_of_a_process_and_room_on_its_disk(cluster: TestCluster) -> None:
    free = shutil.disk_usage(cluster.folder).free
    node = cluster.node(0, disk_free_min_bytes=int(0.7 * free))
    with node_group([node]):
        node.start_program(prelude="ulimit -n 512; ")
        master_of([node])
        found = visit(cluster)
    assert found.wrong == {"open-files", "disk-low"}
    assert "may have 512" in found.findings["open-files"]["what"]
    assert "ulimit -n" in found.findings["open-files"]["mend"]


def test_a_disk_without_room(cluster: TestCluster) -> None:
    usage = shutil.disk_usage(cluster.folder)
    node = cluster.node(0, disk_free_min_bytes=min(usage.total, usage.free + 2**40))
    with running([node]):
        found = visit_until(cluster, "disk-short")
    assert found.findings["disk-short"]["severity"] == "critical"


def test_a_certificate_that_ends_soon(cluster: TestCluster) -> None:
    leaf = Authority(cluster.folder, "authority").leaf("node")
    node = cluster.node(0, admin_cert_file=str(leaf.cert), admin_key_file=str(leaf.key))
    with running([node]):
        found = visit(cluster)
        assert found.wrong == {"certificate"}
        assert "the certificate of node n0 ends" in found.findings["certificate"]["what"]
        # Its own settings name the file.
        assert str(leaf.cert) in str(_all(cluster, node, "certificate"))


def _all(cluster: TestCluster, node: NodeProcess, code: str) -> list[str]:
    done = delayd_in_process(
        *("doctor", "--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd, "--json"),
        *("--cluster", cluster.name, "--prefix", f"{cluster.name}-", "-c", str(node.config)),
    )
    return [each["what"] for each in json.loads(done.stdout)["findings"] if each["code"] == code]


def test_rules_that_are_older_than_what_all_nodes_know(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    name = f"old{pick_ports(1)[0]}"
    create_topics(
        ConfluentBus(kafka_and_etcd.bootstrap),
        cluster=name,
        cluster_key=CLUSTER_KEY,
        prefix=f"{name}-",
        rules_version=RULES_VERSION - 1,
    )
    cluster = TestCluster(name, kafka_and_etcd.bootstrap, kafka_and_etcd.etcd_url, tmp_path)
    with running([cluster.node(0)]):
        found = visit(cluster)
    assert found.wrong == set()
    assert found.findings["rules-behind"]["mend"].startswith("delayd upgrade rules --bootstrap")


def test_what_is_away_ends_it_with_exit_code_3_and_the_rest_is_looked_at(
    cluster: TestCluster,
) -> None:
    nobody = f"{LOOPBACK}:{pick_ports(1)[0]}"
    found = visit(cluster, "--bootstrap", nobody)
    assert found.code == ExitCode.UNREACHABLE
    assert found.wrong == {"kafka-unreachable"} and "one-etcd" in found.findings
    found = visit(cluster, "--etcd", f"http://{nobody}")
    assert found.code == ExitCode.UNREACHABLE
    assert {"etcd-unreachable", "etcd-away"} <= found.wrong and "one-broker" in found.findings


def test_top_shows_the_nodes_until_it_has_looked_as_often_as_asked(site: TestCluster) -> None:
    done = delayd_in_process(
        *("top", "--bootstrap", site.bootstrap, "--etcd", site.etcd, "--number", "2"),
        *("--cluster", site.name, "--prefix", f"{site.name}-", "--every-s", "0.2"),
    )
    assert done.returncode == ExitCode.FINE
    assert "master" in done.stdout and "follower" in done.stdout
    assert "0 delivered, 0 late (over 1 s)" in done.stdout


def test_for_people_it_prints_what_mends_a_problem(cluster: TestCluster) -> None:
    done = delayd_in_process(
        *("doctor", "--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd),
        *("--cluster", cluster.name, "--prefix", f"{cluster.name}-"),
    )
    assert done.returncode == ExitCode.PROBLEM
    assert "critical no-master: no node holds the leader key\n" in done.stdout
    assert "delayd node --config FILE" in done.stdout
    assert "A lost disk would be rebuilt from the log." in done.stdout
    assert "1 problem" in done.stdout
