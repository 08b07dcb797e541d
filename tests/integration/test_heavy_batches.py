"""Batches that no node can hold, written to real nodes with both drivers: nobody ends, each batch
is one dead letter through failovers, and the audit finds nothing wrong.

Source: docs/design/frontier.md, "Unreadable batches". What the drivers do alone:
`tests/conformance/test_bus_unreadable.py`.
"""

import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka import Producer
from nodes import CLOCK, CLUSTER_KEY, HANGS_S, NodeProcess, master_of, node_group, wait_for
from standing_spark import audit
from topics_read import Seen, all_of, read_until

from delayd.bus.unreadable import BATCH_BYTES_MAX, TOO_LARGE
from delayd.client import Client
from delayd.dev.cluster import LocalCluster
from replication.settings import NAMED_BY_CLUSTER

pytestmark = pytest.mark.real

MIB = 1 << 20
DRIVERS = ("confluent", "confluent", "kafka-python")
BATCHES = (("zstd", 140 * MIB, 1), ("gzip", 64 * 1024, 3_000))
"""librdkafka refuses the first, and hands out the records of the second."""
HUGE_BYTES = 600 * MIB
MESSAGES = 30


def write_batch(cluster: TestCluster, partition: int, codec: str, size: int, times: int) -> int:
    """Write one batch of so many records of zeros. Return the offset of its last one."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "compression.type": codec,
            "linger.ms": 30_000,
            "batch.size": 1_000_000_000,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "enable.idempotence": True,
        }
    )
    offsets: list[int] = []

    def acknowledged(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for _ in range(times):
        producer.produce(
            cluster.buffer,
            bytes(size),
            partition=partition,
            headers=[("delayd-topic", b"never"), ("delayd-delay", b"1s")],
            on_delivery=acknowledged,
        )
    assert producer.flush(HANGS_S) == 0
    return max(offsets)


def schedule(client: Client, target: str, numbers: "count[int]") -> None:
    """Messages for all partitions, due in a second."""
    due_ms = CLOCK.wall_ms() + 1_000
    futures = [
        client.schedule_async(target, b"%d" % next(numbers), key=b"k%d" % key, at=due_ms)
        for key in range(MESSAGES)
    ]
    for future in futures:
        future.result(HANGS_S)


def letters(cluster: TestCluster) -> list[Seen]:
    return read_until(cluster.bootstrap, cluster.dead, lambda _: False, timeout_s=5)


def fail_over(nodes: list[NodeProcess]) -> None:
    """Kill the master, wait for its successor, and start it again."""
    killed = master_of(nodes)
    killed.kill()
    master_of([node for node in nodes if node is not killed])
    killed.start().wait_ready()


def memory_peak_mib(node: NodeProcess) -> int:
    """Return the most that the node ever had in memory."""
    assert node.process is not None, "the node was never started"
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


@pytest.mark.rehearsal
@pytest.mark.parametrize("is_altered", [False, True])
def test_a_node_on_a_buffer_of_compressed_batches_expands_none_beyond_the_limit(
    kafka_and_etcd: LocalCluster, tmp_path: Path, *, is_altered: bool
) -> None:
    """docs/operations.md, "Compressed batches"; `is_altered`: the buffer is `uncompressed` again
    when the node rebuilds. Rules: batch-unreadable"""
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=2, naming=NAMED_BY_CLUSTER)
    # As of clusters that were made before brokers kept such batches out.
    cluster.alter_topic(cluster.buffer, "compression.type", "producer")
    node = cluster.node(0, driver="confluent")
    with node_group([node]), cluster.client() as client:
        node.start()
        master_of([node])
        before_mib = memory_peak_mib(node)
        if is_altered:
            node.kill()
            shutil.rmtree(node.data)
        last = write_batch(cluster, 0, "gzip", HUGE_BYTES, 1)
        if is_altered:
            cluster.alter_topic(cluster.buffer, "compression.type", "uncompressed")
            node.start()
        schedule(client, cluster.target("orders"), count())
        wait_for(
            lambda: len(all_of(cluster.bootstrap, cluster.target("orders"), 4)) >= MESSAGES,
            "all is delivered",
        )
        wait_for(lambda: bool(letters(cluster)), "the batch is a dead letter")
        [letter] = letters(cluster)
        assert letter.header("delayd-source") == f"0/{last}"
        print(f"{before_mib} MiB before, {memory_peak_mib(node)} MiB at most")
        assert memory_peak_mib(node) < before_mib + 2 * (BATCH_BYTES_MAX >> 20)


def test_each_batch_is_one_dead_letter_on_nodes_of_both_drivers_and_the_audit_agrees(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """Rules: batch-unreadable"""
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=2)
    target = cluster.target("orders")
    numbers = count()
    made = [cluster.node(n, driver=driver, export_hold_s=900) for n, driver in enumerate(DRIVERS)]
    with node_group(made) as nodes, cluster.client() as client:
        for node in nodes:
            node.start()
        master_of(nodes)
        # The nodes that run go on with librdkafka, guarded; those that start again read carefully.
        cluster.alter_topic(cluster.buffer, "compression.type", "producer")
        written: dict[str, int] = {}
        for codec, size, times in BATCHES:
            schedule(client, target, numbers)
            for partition in (0, 1):
                last = write_batch(cluster, partition, codec, size, times)
                written[f"{partition}/{last}"] = times
            fail_over(nodes)
        schedule(client, target, numbers)
        sent = next(numbers)
        wait_for(lambda: len(all_of(cluster.bootstrap, target, 4)) >= sent, "all is delivered")
        fail_over(nodes)

        found = {letter.header("delayd-source"): letter for letter in letters(cluster)}
        assert found.keys() == written.keys() and len(letters(cluster)) == len(written)
        for source, letter in found.items():
            assert letter.header("delayd-reason") == "unreadable-batch"
            detail, last = letter.header("delayd-detail"), int(source.partition("/")[2])
            times = written[source]
            assert f"offsets {last - times + 1} to {last} of partition {source[0]}" in detail
            assert TOO_LARGE in detail and (letter.key, letter.value) == (None, None)
        values = sorted(int(r.value or b"") for r in all_of(cluster.bootstrap, target, 4))
        assert values == list(range(sent))
        ended = audit(
            *("--json", "--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd),
            *("--cluster", cluster.name, "--prefix", f"{cluster.name}-"),
            *("--cluster-key", CLUSTER_KEY, "--nodes", "3"),
        )
        report = json.loads(ended.stdout)
        assert report["verdict"] == "ok", (report, ended.stderr)
        assert report["rejected"] == len(written) and report["delivered"] == sent
