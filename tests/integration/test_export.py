"""Three real nodes export one cut while everything goes on: row for row the same, and true.

Source: docs/design/storage.md, "Exports"; docs/reference/http.md.
"""

import io
import json
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, HANGS_S, NodeProcess, master_of, running, wait_for

from delayd.bus.confluent import ConfluentBus
from delayd.client import Client
from delayd.cluster.topics import load_settings
from delayd.dev.cluster import LocalCluster
from replication.record import FrontierRecord, encode

pytestmark = pytest.mark.real

FAR_COUNT, FAR_CANCELLED = 400, 100


class Cluster:
    """Three nodes, and what was asked for an hour ahead."""

    def __init__(self, at: TestCluster, nodes: list[NodeProcess]) -> None:
        self.at = at
        self.nodes = nodes
        self.far: set[str] = set()
        """Sources of what must be pending at every cut from now on."""

    def cut(self) -> FrontierRecord:
        """The newest committed frontier."""
        bus = ConfluentBus(self.at.bootstrap)
        return load_settings(bus, self.at.name, f"{self.at.name}-", 20_000).record


def request_of(record: FrontierRecord, wait_ms: int) -> bytes:
    """The body of a request."""
    return json.dumps({"frontier": json.loads(encode(record)), "wait_ms": wait_ms}).encode()


def ask_export(node: NodeProcess, record: FrontierRecord, wait_ms: int = 20_000) -> bytes:
    """The file; HTTPError otherwise."""
    url = f"http://127.0.0.1:{node.port}/export"
    request = urllib.request.Request(url, request_of(record, wait_ms))
    with urllib.request.urlopen(request, timeout=HANGS_S) as answer:
        assert answer.headers["content-type"] == "application/vnd.apache.parquet"
        data: bytes = answer.read()
        return data


def rows_of(data: bytes) -> list[dict[str, Any]]:
    """The rows by source."""
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
    hours = [row["slot"] // 3600 for row in rows]
    assert hours == sorted(hours)
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def is_passed(record: FrontierRecord, places: list[tuple[int, int]]) -> bool:
    """Does the frontier take all these records into account?"""
    return all(offset < record.frontier.offsets[partition] for partition, offset in places)


@pytest.fixture(scope="module")
def cluster(
    kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    at = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("export"))
    nodes = [at.node(number) for number in range(3)]
    with running(nodes), at.client() as client:
        made = Cluster(at, nodes)
        target = at.target("far")
        far = [
            client.schedule_async(target, b"far", id=f"far-{n}", in_=("1h", "30h")[n % 2])
            for n in range(FAR_COUNT)
        ]
        told = [future.result(HANGS_S) for future in far]
        cancels = [client.cancel(f"far-{n}", wait=False) for n in range(FAR_CANCELLED)]
        wait_for(
            lambda: is_passed(made.cut(), [(c.partition, c.offset) for c in cancels]),
            "a step passes all cancels",
        )
        made.far = {f"{each.partition}/{each.offset}" for each in told[FAR_CANCELLED:]}
        yield made


@contextmanager
def traffic(cluster: Cluster, client: Client) -> Iterator[None]:
    """Messages that become due all the time, a third of them cancelled before."""
    target = cluster.at.target(f"near{CLOCK.wall_ms()}")
    ending = threading.Event()

    def send() -> None:
        number = 0
        while not ending.wait(0.002):
            number += 1
            id = f"{target}-{number}"
            client.schedule_async(target, b"v" * (number % 300), id=id, in_=200 + number % 3_000)
            if number % 3 == 0 and number > 30:
                client.cancel(f"{target}-{number - 30}", wait=False)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ending.set()
        sender.join()


def test_at_one_cut_all_nodes_export_the_same_rows_while_traffic_goes_on(cluster: Cluster) -> None:
    with (
        cluster.at.client() as client,
        traffic(cluster, client),
        ThreadPoolExecutor(3) as pool,
    ):
        master = master_of(cluster.nodes)
        wait_for(lambda: master.status()["delivered_count"] > 100, "traffic is delivered")
        for _ in range(4):
            delivered = master.status()["delivered_count"]
            record = cluster.cut()
            files = list(pool.map(ask_export, cluster.nodes, [record] * 3))
            one, *others = map(rows_of, files)
            for other in others:
                assert other == one
            check(one, record, cluster.far)
            assert pq.read_metadata(io.BytesIO(files[0])).metadata[b"delayd.step"] == (
                b"%d" % record.frontier.step
            )
            assert master.status()["delivered_count"] > delivered, "the master goes on"
        assert master.is_master()


def check(rows: list[dict[str, Any]], record: FrontierRecord, far: set[str]) -> None:
    """What any reader of the log could say of the rows."""
    cut = record.frontier
    near = [row for row in rows if not str(row["id"]).startswith("far-")]
    assert near, "messages of the traffic are pending at any moment"
    for row in rows:
        assert row["offset"] < cut.offsets[row["partition"]]
        rank = (row["due_ms"], row["partition"], row["offset"])
        assert rank >= cut.cursors[row["lane"]]
        assert row["slot"] == row["due_ms"] // 1000 and len(row["digest"]) == 16
    pending = {
        f"{row['partition']}/{row['offset']}" for row in rows if str(row["id"]).startswith("far-")
    }
    assert pending == far


def writer_of(node: NodeProcess) -> int | None:
    """Return the process id of the node's writer, while it has one."""
    assert node.process is not None
    for child in psutil.Process(node.process.pid).children():
        with suppress(psutil.NoSuchProcess):
            if "delayd.node.export.writer" in child.cmdline():
                return child.pid
    return None


def freeze_writer(node: NodeProcess) -> int:
    """Stop the node's writer as soon as it has one."""
    found: list[int] = []

    def stopped() -> bool:
        pid = writer_of(node)
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)
            found.append(pid)
        return bool(found)

    wait_for(stopped, "the node starts a writer")
    return found[0]


def is_gone(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return True


@contextmanager
def frozen_writer(node: NodeProcess, record: FrontierRecord) -> Iterator[int]:
    """An export whose writer stands still."""
    failed: list[str] = []

    def ask() -> None:
        try:
            ask_export(node, record)
        except urllib.error.HTTPError as error:
            with error:
                failed.append(str(json.load(error)["problem"]))
        except OSError as error:
            failed.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    pid = freeze_writer(node)
    try:
        yield pid
    finally:
        if not is_gone(pid):
            os.kill(pid, signal.SIGCONT)
        asking.join(HANGS_S)
    assert failed, "the client was told nothing"


def exports_left(node: NodeProcess) -> list[Path]:
    return list((node.data / "exports").iterdir())


def test_a_killed_node_leaves_no_writer_and_its_successor_no_files(cluster: Cluster) -> None:
    node = cluster.nodes[2]
    with frozen_writer(node, cluster.cut()) as pid:
        assert exports_left(node)
        node.kill()
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: is_gone(pid), "the writer ends with its node")
    node.start().wait_ready()
    assert exports_left(node) == []
    assert rows_of(ask_export(node, cluster.cut()))


def test_a_node_that_is_asked_to_end_ends_its_writer(cluster: Cluster) -> None:
    node = cluster.nodes[2]
    with frozen_writer(node, cluster.cut()) as pid:
        node.signal(signal.SIGTERM)
        assert node.wait_exit() == 0, node.log
        assert is_gone(pid) and exports_left(node) == []
    node.start().wait_ready()


def test_a_second_export_is_refused_meanwhile_and_a_client_that_leaves_ends_the_first(
    cluster: Cluster,
) -> None:
    node, record = cluster.nodes[1], cluster.cut()
    body = request_of(record, 0)
    with socket.create_connection(("127.0.0.1", node.port)) as client:
        client.sendall(
            b"POST /export HTTP/1.1\r\nhost: n\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        client.sendall(body)
        pid = freeze_writer(node)
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask_export(node, record)
        with refused.value as answer:
            assert answer.code == 503
            assert json.load(answer)["problem"] == "an export is running"
    wait_for(lambda: is_gone(pid), "the writer is ended")
    wait_for(lambda: not exports_left(node), "its files are removed")
    assert rows_of(ask_export(node, record))
