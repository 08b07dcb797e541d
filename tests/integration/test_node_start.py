"""A node that cannot do its work says so in one line, in bounded time, and with the right code.

Source: docs/operations.md, "When a node refuses to start".
"""

import itertools
import json
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from nodes import (
    CLUSTER_KEY,
    HANGS_S,
    NodeProcess,
    delayd,
    master_of,
    node_group,
    wait_for,
)

from delayd.client import Client
from delayd.dev.cluster import LocalCluster
from delayd.dev.ports import pick_ports

pytestmark = pytest.mark.real
_numbers = itertools.count()


@pytest.fixture
def cluster(kafka_and_etcd: LocalCluster) -> str:
    """An initialised delayd cluster of the test's own; its prefix is its name and a dash."""
    name = f"start-{next(_numbers)}"
    made = delayd(
        *("topics", "create", "--bootstrap", kafka_and_etcd.bootstrap),
        *("--cluster", name, "--prefix", f"{name}-", "--partitions", "2"),
        *("--cluster-key", CLUSTER_KEY),
    )
    assert made.returncode == 0, made.stderr
    return name


def a_node(
    kafka_and_etcd: LocalCluster, tmp_path: Path, cluster: str, **settings: object
) -> NodeProcess:
    """A node of the cluster, not started yet."""
    chosen: dict[str, object] = {"connect_timeout_s": 5, **settings}
    return NodeProcess(
        tmp_path,
        "n1",
        cluster=cluster,
        bootstrap=str(chosen.pop("bootstrap", kafka_and_etcd.bootstrap)),
        etcd=str(chosen.pop("etcd", kafka_and_etcd.etcd_url)),
        settings=chosen,
    )


def alter(bootstrap: str, topic: str, key: str, value: str) -> None:
    """Change one setting of a topic."""
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)],
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def refused(node: NodeProcess, code: int) -> str:
    """Start a node that must refuse; its log."""
    with node_group([node]):
        node.start()
        assert node.wait_exit(30) == code, node.log
    assert "Traceback" not in node.log
    return node.log


def test_unreachable_kafka_is_exit_3_after_a_bounded_wait(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    node = a_node(kafka_and_etcd, tmp_path, "x", bootstrap=f"127.0.0.1:{pick_ports(1)[0]}")
    assert "kafka-unreachable" in refused(node, 3)


def test_unreachable_etcd_is_exit_3_after_a_bounded_wait(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    node = a_node(kafka_and_etcd, tmp_path, "x", etcd=f"http://127.0.0.1:{pick_ports(1)[0]}")
    assert "etcd-unreachable" in refused(node, 3)


def test_a_node_with_another_cluster_key_is_refused_and_shows_neither(
    kafka_and_etcd: LocalCluster, tmp_path: Path, cluster: str
) -> None:
    """docs/operations.md, "The cluster key"."""
    node = a_node(kafka_and_etcd, tmp_path, cluster, cluster_key="another key, as long")
    log = refused(node, 1)
    assert "wrong-cluster-key" in log and "another key" not in log and CLUSTER_KEY not in log


def test_a_new_cluster_without_a_key_gets_one_that_is_shown_once(
    kafka_and_etcd: LocalCluster,
) -> None:
    """docs/operations.md, "The cluster key"."""
    name = f"start-{next(_numbers)}"
    command = [
        *("topics", "create", "--bootstrap", kafka_and_etcd.bootstrap, "--json"),
        *("--cluster", name, "--prefix", f"{name}-", "--partitions", "1"),
        *("--retry-delays", "250ms,10s", "--receipts", "all"),
    ]
    first, again = (json.loads(delayd(*command).stdout) for _ in range(2))
    key = first.pop("cluster_key")
    assert first == again and key not in str(again)
    assert (first["retry_delays_ms"], first["receipts_written"]) == ([250, 10_000], "all")
    assert delayd(*command, "--cluster-key", key).returncode == 0
    wrong = delayd(*command, "--cluster-key", "another key, as long")
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
    refusal = delayd(*command, option, value)
    assert refusal.returncode == 2 and says in " ".join(refusal.stderr.split())


def test_an_uninitialised_cluster_is_refused_with_the_command_that_makes_one(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    log = refused(a_node(kafka_and_etcd, tmp_path, "never-made"), 1)
    assert "delayd topics create" in log and "not-initialised" in log


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        ("buffer", "retention.ms", "60000"),
        ("buffer", "message.timestamp.type", "CreateTime"),
        ("frontier", "message.timestamp.type", "CreateTime"),
        ("frontier", "cleanup.policy", "delete"),
        ("buffer", "max.message.bytes", "1000"),
    ],
)
def test_a_topic_setting_that_breaks_the_contract_is_refused_with_its_remedy(
    kafka_and_etcd: LocalCluster, tmp_path: Path, cluster: str, topic: str, key: str, value: str
) -> None:
    name = f"{cluster}-{topic}"
    alter(kafka_and_etcd.bootstrap, name, key, value)
    log = refused(a_node(kafka_and_etcd, tmp_path, cluster), 1)
    assert name in log and f"--add-config {key}=" in log
    checked = delayd(
        *("topics", "check", "--bootstrap", kafka_and_etcd.bootstrap),
        *("--cluster", cluster, "--prefix", f"{cluster}-"),
    )
    assert checked.returncode == 1 and key in checked.stdout


def test_another_partition_count_is_refused(
    kafka_and_etcd: LocalCluster, tmp_path: Path, cluster: str
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_and_etcd.bootstrap})
    for future in admin.create_partitions([NewPartitions(f"{cluster}-buffer", 3)]).values():
        future.result(10)
    log = refused(a_node(kafka_and_etcd, tmp_path, cluster), 1)
    assert "has 3 partitions" in log and "delayd topics create" in log


def test_a_topic_that_was_created_again_is_refused(
    kafka_and_etcd: LocalCluster, tmp_path: Path, cluster: str
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_and_etcd.bootstrap})
    name = f"{cluster}-dead"
    for future in admin.delete_topics([name]).values():
        future.result(10)

    def created() -> bool:
        try:
            for future in admin.create_topics([NewTopic(name, 2, 1)]).values():
                future.result(10)
        except Exception:
            return False
        return True

    wait_for(created, HANGS_S, "the topic can be created again")
    log = refused(a_node(kafka_and_etcd, tmp_path, cluster), 1)
    assert "deleted and created again" in log


def test_an_unknown_key_is_a_usage_error_that_names_it(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    log = refused(a_node(kafka_and_etcd, tmp_path, "x", leese_ttl_s=3), 2)
    assert "leese_ttl_s" in log


def test_a_disk_without_room_stops_the_node_which_says_why(
    kafka_and_etcd: LocalCluster, tmp_path: Path, cluster: str
) -> None:
    node = a_node(kafka_and_etcd, tmp_path, cluster, disk_free_min_bytes=10**15)
    log = refused(node, 1)
    assert "disk_free_min_bytes" in log and "nothing is lost" in log


def test_a_write_that_fails_stops_the_node_which_resigns_and_says_why(
    kafka_and_etcd: LocalCluster, tmp_path: Path, cluster: str
) -> None:
    """A file size limit makes the kernel refuse the write, as a full disk would.

    Source: docs/design/storage.md, "Failures".
    """
    bad = a_node(kafka_and_etcd, tmp_path, cluster)
    good = NodeProcess(
        tmp_path,
        "n2",
        cluster=cluster,
        bootstrap=kafka_and_etcd.bootstrap,
        etcd=kafka_and_etcd.etcd_url,
        settings={},
    )
    with node_group([bad, good]):
        bad.start(prelude="ulimit -f 512; ")
        assert master_of([bad]) is bad
        with Client(kafka_and_etcd.bootstrap, buffer=f"{cluster}-buffer") as client:
            futures = [
                client.schedule_async("nowhere", b"x" * 100_000, in_="1h") for _ in range(40)
            ]
            for future in futures:
                future.result(30)
        assert bad.wait_exit(30) == 1, bad.log
        assert "disk" in bad.log and "Traceback" not in bad.log
        good.start()
        assert master_of([good]) is good
        wait_for(
            lambda: sum(good.status().get("ingested", [0])) >= 40, 20, "the other node has it all"
        )
