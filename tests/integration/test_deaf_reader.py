"""A node that hears nothing of the buffer, while Kafka answers its other questions, says so."""

import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deaf_wire import LOOPBACK, DeafWire
from nodes import CLUSTER_KEY, NodeProcess, running, wait_for
from scraping import scrape
from topics_read import read_until

from delayd.bus.confluent import ConfluentBus
from delayd.cluster.topics import create_topics
from delayd.dev.cluster import LocalCluster
from delayd.dev.folder import ClusterFolder
from delayd.dev.kafka import create_topic
from delayd.dev.startup import ClusterOptions, Servers, plan_servers, start_planned

pytestmark = pytest.mark.real

NAME = "deaf"
WIRE = "WIRE"
READERS = 2
"""Of the buffer, and of the frontier."""


def give_listener(folder: Path, servers: Servers, at: int, advertised: int) -> None:
    """Let the broker listen there, and tell clients of that listener another port. A later property
    replaces an earlier one."""
    [broker] = servers.kafka.ports
    plain = f"PLAINTEXT://{LOOPBACK}:{broker.client}"
    controller = f"CONTROLLER://{LOOPBACK}:{broker.controller}"
    protocols = ",".join(f"{each}:PLAINTEXT" for each in ("PLAINTEXT", "CONTROLLER", WIRE))
    with (folder / "config" / "broker-1.properties").open("a") as file:
        file.write(
            f"listeners={plain},{controller},{WIRE}://{LOOPBACK}:{at}\n"
            f"advertised.listeners={plain},{WIRE}://{LOOPBACK}:{advertised}\n"
            f"listener.security.protocol.map={protocols}\n"
        )


def readiness(node: NodeProcess) -> tuple[int, str]:
    """`GET /readyz`: its code, and what it says."""
    try:
        with urllib.request.urlopen(f"{node.url}/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def send(producer: Producer, target: str, value: bytes) -> None:
    """Send a message that is due at once."""
    headers: list[tuple[str, str | bytes | None]] = [
        ("delayd-topic", target),
        ("delayd-delay", "0ms"),
    ]
    producer.produce(f"{NAME}-buffer", value, headers=headers)
    assert producer.flush(60) == 0


def test_a_node_that_hears_nothing_says_so_until_it_hears_again(tmp_path: Path) -> None:
    """docs/operations.md, Metrics and alerts: DelaydHearsNothing."""
    folder = ClusterFolder(tmp_path / "servers")
    folder.prepare()
    servers = plan_servers(folder.path, ClusterOptions(nodes=0), more_ports=2)
    wired, behind = next(servers.ports), next(servers.ports)
    give_listener(folder.path, servers, at=behind, advertised=wired)
    with ExitStack() as ends:
        wire = ends.enter_context(closing(DeafWire(wired, behind)))
        cluster = LocalCluster(folder.path)
        ends.callback(cluster.down)
        start_planned(folder.path, servers, [], save=folder.save)
        bus = ConfluentBus(cluster.bootstrap)
        create_topics(bus, cluster=NAME, prefix=f"{NAME}-", cluster_key=CLUSTER_KEY)
        target = create_topic(bus, "target")
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        node = NodeProcess(
            tmp_path,
            "node-1",
            cluster=NAME,
            bootstrap=f"{LOOPBACK}:{wired}",
            etcd=cluster.etcd_url,
        )
        ends.enter_context(running([node]))
        node.wait_ready()
        send(producer, target, b"heard")
        read_until(cluster.bootstrap, target, lambda seen: len(seen) == 1)
        assert readiness(node)[0] == 200

        wire.hang.set()
        wait_for(lambda: wire.lost_count >= READERS, "each reader waits")
        send(producer, target, b"not heard")
        wait_for(lambda: node.status().get("ingest_problem") is not None, "it says so")
        status, figures = node.status(), scrape(node.port)
        assert status["delivering"] and sum(status["ingest_lag"]) >= 1, "all else goes on"
        assert figures.sum("delayd_ingest_deaf") == figures.sum("delayd_kafka_up") == 1
        assert figures.sum("delayd_ready") == 0
        code, told = readiness(node)
        assert code == 503 and "is not read on" in told
        assert node.log.count("ingest_hears_nothing") == 1

        wire.hang.clear()
        seen = read_until(cluster.bootstrap, target, lambda seen: len(seen) == 2)
        assert [record.value for record in seen] == [b"heard", b"not heard"]
        node.wait_ready()
        assert node.status()["ingest_problem"] is None
        assert scrape(node.port).sum("delayd_ingest_deaf") == 0
        assert node.log.count("event=ingest_hears ") == 1
