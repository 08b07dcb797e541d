"""Nodes that begin with an empty directory where the buffer has lost its beginning.

Source: docs/design/trimmed.md.
"""

import shutil
from pathlib import Path

import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from nodes import CLOCK, HANGS_S, master_of, node_group, wait_for
from topics_read import read_until

from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

MAX_DELAY_MS, ID_MEMORY_MS, RETRIES_MS = 6_000, 2_000, (1_000,)
LONG_ENOUGH_MS = 2 * MAX_DELAY_MS + ID_MEMORY_MS


def trim(cluster: TestCluster, offset: int) -> None:
    """Delete what is before an offset of the buffer's one partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for done in admin.delete_records([TopicPartition(cluster.buffer, 0, offset)]).values():
        done.result(HANGS_S)


def test_a_node_without_a_disk_joins_by_what_was_kept_of_the_buffer_and_takes_over(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """docs/design/trimmed.md, When it starts; What decides later."""
    cluster = make_cluster(
        kafka_and_etcd,
        tmp_path,
        partitions=1,
        max_delay_ms=MAX_DELAY_MS,
        id_memory_ms=ID_MEMORY_MS,
        retry_delays_ms=RETRIES_MS,
    )
    target = cluster.target("a", partitions=1)
    stays, loses = cluster.node(0), cluster.node(1)
    with node_group([stays, loses]), cluster.client() as client:
        stays.start()
        assert master_of([stays]) is stays
        loses.start().wait_ready()
        for number in range(20):
            client.schedule(target, b"old", in_=0, id=f"id {number % 5} {number}")
        client.schedule(target, b"old", in_=MAX_DELAY_MS - 1_000)
        loses.kill()
        shutil.rmtree(loses.data)
        client.schedule(target, b"first that is kept", in_=0)
        kept_ms = CLOCK.wall_ms()
        assert len(read_until(cluster.bootstrap, target, lambda seen: len(seen) == 22)) == 22
        trim(cluster, 21)
        wait_for(
            lambda: stays.status()["frontier"]["cursor_ms"] > kept_ms + LONG_ENOUGH_MS,
            "all that was trimmed is done, and counts no more",
        )
        client.schedule(target, b"new", in_=2_000, id="id 0 0")
        loses.start().wait_ready()
        assert loses.status()["rebuilt_from"]["0"]["offset"] == 21
        assert "rebuild_from_trimmed_buffer" in loses.log
        stays.kill()
        assert master_of([loses]) is loses
        client.schedule(target, b"new", in_=0)
        seen = read_until(cluster.bootstrap, target, lambda seen: len(seen) == 24)
        assert sorted(record.value or b"" for record in seen) == [
            b"first that is kept",
            *[b"new"] * 2,
            *[b"old"] * 21,
        ]
        # It goes on from its checkpoint as any other node.
        loses.kill()
        loses.start()
        assert master_of([loses]) is loses
        assert loses.status()["rebuilt_from"]["0"]["offset"] == 21


def test_a_node_says_from_when_on_what_was_kept_is_enough(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """docs/design/trimmed.md, When it starts."""
    cluster = make_cluster(kafka_and_etcd, tmp_path, partitions=1)
    target = cluster.target("a", partitions=1)
    stays, comes = cluster.node(0), cluster.node(1, on_damage="stop")
    with node_group([stays, comes]), cluster.client() as client:
        stays.start()
        assert master_of([stays]) is stays
        for _ in range(3):
            client.schedule(target, b"v", in_=0)
        assert len(read_until(cluster.bootstrap, target, lambda seen: len(seen) == 3)) == 3
        trim(cluster, 2)
        assert comes.start().wait_exit() != 0
        assert "now begins at offset 2" in comes.log and "provable from 20" in comes.log
        trim(cluster, 3)
        assert comes.start().wait_exit() != 0
        assert "holds no record" in comes.log
        assert stays.is_master()
