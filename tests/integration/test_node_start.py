"""A node that cannot do its work says so in one line, in bounded time, and with the right code.

Source: docs/operations.md, "When a node refuses to start".
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]
from nodes import (
    CLUSTER_KEY,
    HANGS_S,
    NodeProcess,
    delayd_in_process,
    master_of,
    node_group,
    wait_for,
)

from delayd.dev.cluster import LocalCluster
from delayd.dev.ports import pick_ports

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def untouched(
    kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> TestCluster:
    """An initialised cluster whose topics stay as they are."""
    return make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("untouched"), 2)


@pytest.fixture
def cluster(kafka_and_etcd: LocalCluster, tmp_path: Path) -> TestCluster:
    """An initialised cluster of the test's own."""
    return make_cluster(kafka_and_etcd, tmp_path, 2)


def refused(node: NodeProcess, code: int) -> str:
    """Start a node that must refuse; its log."""
    with node_group([node]):
        node.start()
        assert node.wait_exit() == code, node.log
    assert "Traceback" not in node.log
    return node.log


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({"bootstrap": "{nowhere}", "connect_timeout_s": 2}, 3, ["kafka-unreachable"]),
        ({"etcd": ["http://{nowhere}"], "connect_timeout_s": 1}, 3, ["etcd-unreachable"]),
        ({"prefix": "never-made-"}, 1, ["delayd topics create", "not-initialised"]),
        ({"leese_ttl_s": 3}, 2, ["leese_ttl_s"]),
        ({"disk_free_min_bytes": 10**15}, 1, ["disk_free_min_bytes", "nothing is lost"]),
        (
            {"guarantee": "at-least-once"},
            2,
            ["was made for 'exactly-once'", 'set guarantee = "exactly-once" or leave it out'],
        ),
        # docs/operations.md, "The cluster key"
        ({"cluster_key": "another key, as long"}, 1, ["wrong-cluster-key"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_node_that_cannot_work_exits_after_a_bounded_wait_and_says_why(
    untouched: TestCluster,
    tmp_path: Path,
    settings: dict[str, object],
    code: int,
    says: list[str],
) -> None:
    nowhere = f"127.0.0.1:{pick_ports(1)[0]}"
    changed = json.loads(json.dumps(settings).replace("{nowhere}", nowhere))
    log = refused(replace(untouched, folder=tmp_path).node(1, **changed), code)
    assert all(text in log for text in says)
    assert "another key" not in log and CLUSTER_KEY not in log


def test_a_new_cluster_without_a_key_gets_one_that_is_shown_once(
    kafka_and_etcd: LocalCluster,
) -> None:
    """docs/operations.md, "The cluster key"."""
    command = [
        *("topics", "create", "--bootstrap", kafka_and_etcd.bootstrap, "--json"),
        *("--cluster", "start-keyless", "--prefix", "start-keyless-", "--partitions", "1"),
        *("--retry-delays", "250ms,10s", "--receipts", "all"),
    ]
    first, again = (json.loads(delayd_in_process(*command).stdout) for _ in range(2))
    key = first.pop("cluster_key")
    assert first == again and key not in str(again)
    assert (first["retry_delays_ms"], first["receipts_written"]) == ([250, 10_000], "all")
    assert delayd_in_process(*command, "--cluster-key", key).returncode == 0
    wrong = delayd_in_process(*command, "--cluster-key", "another key, as long")
    assert wrong.returncode == 1 and "wrong-cluster-key" in wrong.stderr and not wrong.stdout


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--retry-delays", "10s,soon", "is not a list such as 10s,30s,1m"),
        ("--receipts", "some", "verdicts or all"),
        ("--cluster-key", "short", "fewer than 16"),
    ],
)
def test_a_choice_that_makes_no_sense_is_a_usage_error(
    kafka_and_etcd: LocalCluster, option: str, value: str, says: str
) -> None:
    command = ("topics", "create", "--bootstrap", kafka_and_etcd.bootstrap, "--prefix", "never-")
    refusal = delayd_in_process(*command, option, value)
    assert refusal.returncode == 2 and says in " ".join(refusal.stderr.split())


def test_topic_settings_that_break_the_contract_are_refused_with_their_remedies(
    cluster: TestCluster,
) -> None:
    broken = (
        (cluster.buffer, "message.timestamp.type", "CreateTime"),
        (cluster.buffer, "max.message.bytes", "1000"),
        (f"{cluster.name}-frontier", "message.timestamp.type", "CreateTime"),
        (f"{cluster.name}-frontier", "cleanup.policy", "delete"),
    )
    check = (
        *("topics", "check", "--bootstrap", cluster.bootstrap),
        *("--cluster", cluster.name, "--prefix", f"{cluster.name}-"),
    )
    cluster.alter_topic(cluster.buffer, "retention.ms", "60000")
    checked = delayd_in_process(*check)  # Nodes start nevertheless: nothing is lost yet.
    assert checked.returncode == 1
    assert f"topic {cluster.buffer}: retention.ms is" in checked.stdout
    for topic, key, value in broken:
        cluster.alter_topic(topic, key, value)
    log = refused(cluster.node(1), 1)
    checked = delayd_in_process(*check)
    assert checked.returncode == 1
    for topic, key, _ in broken:
        assert f"--entity-name {topic} --add-config {key}=" in log
        assert f"topic {topic}: {key} is" in checked.stdout


def test_other_partitions_and_a_topic_that_was_created_again_are_refused(
    cluster: TestCluster,
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_partitions([NewPartitions(cluster.buffer, 3)])[cluster.buffer].result(10)
    admin.delete_topics([cluster.dead])[cluster.dead].result(10)

    def created() -> bool:
        try:
            admin.create_topics([NewTopic(cluster.dead, 2, 1)])[cluster.dead].result(10)
        except Exception:
            return False
        return True

    wait_for(created, "the topic can be created again")
    log = refused(cluster.node(1), 1)
    assert "has 3 partitions" in log and "delayd topics create" in log
    assert "deleted and created again" in log


def test_a_write_that_fails_stops_the_node_which_resigns_and_says_why(
    cluster: TestCluster,
) -> None:
    """A file size limit makes the kernel refuse the write, as a full disk would.

    Source: docs/design/storage.md, "Failures".
    """
    bad, good = cluster.node(1), cluster.node(2)
    with node_group([bad, good]):
        bad.start_program(prelude="ulimit -f 512; ")
        assert master_of([bad]) is bad
        with cluster.client() as client:
            futures = [
                client.schedule_async("nowhere", b"x" * 100_000, in_="1h") for _ in range(40)
            ]
            for future in futures:
                future.result(HANGS_S)
        assert bad.wait_exit() == 1, bad.log
        assert "disk" in bad.log and "Traceback" not in bad.log
        good.start()
        assert master_of([good]) is good
        wait_for(lambda: sum(good.status().get("ingested", [0])) >= 40, "the other node has it all")
