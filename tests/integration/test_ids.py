"""What nodes count of messages, ids and cancels is what has happened.

Not here: that each answer is true (test_request_cases.py).
"""

import json
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from kafka import KafkaProducer
from nodes import HANGS_S, NodeProcess, running, wait_for
from scraping import scrape
from topics_read import read_until

from chaos.evidence import read_all
from delayd.bus.murmur2 import partition_of
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

PARTITIONS = 3


class Counter:
    """A cluster with running nodes, and a plain kafka-python producer."""

    def __init__(self, cluster: TestCluster, nodes: list[NodeProcess], producer: Any) -> None:
        self.cluster = cluster
        self.nodes = nodes
        self._producer = producer

    def ask(self, id: str, value: bytes = b"v", **headers: str) -> Any:
        """Write one request about an id; the future of its place."""
        pairs = [("delayd-id", id.encode())]
        pairs += [(f"delayd-{name}", text.encode()) for name, text in headers.items()]
        return self._producer.send(
            self.cluster.buffer,
            key=id.encode(),
            value=value,
            headers=pairs,
            partition=partition_of(id.encode(), PARTITIONS),
        )

    def put(self, id: str, value: bytes = b"v", **headers: str) -> str:
        """Write one request about an id; its source."""
        return source_of(self.ask(id, value, **headers))

    def receipts(self, sources: set[str]) -> dict[str, list[dict[str, Any]]]:
        """The receipts of these requests, once all have one."""
        found = read_until(
            self.cluster.bootstrap,
            self.cluster.receipts,
            lambda seen: sources <= {record.header("delayd-source") for record in seen},
        )
        told: dict[str, list[dict[str, Any]]] = {source: [] for source in sources}
        for record in found:
            if (source := record.header("delayd-source")) in told:
                told[source].append(json.loads(record.value or b""))
        return told

    def verdict(self, source: str) -> dict[str, Any]:
        """The one receipt of a request."""
        [receipt] = self.receipts({source})[source]
        return receipt


def source_of(future: Any) -> str:
    sent = future.get(HANGS_S)
    return f"{sent.partition}/{sent.offset}"


def seen_all(sources: set[str]) -> Any:
    return lambda seen: sources <= {record.header("delayd-source") for record in seen}


@pytest.mark.parametrize("driver", ["confluent", "kafka-python"])
def test_the_metrics_of_all_nodes_tell_what_has_happened(
    kafka_and_etcd: LocalCluster, tmp_path: Path, driver: str
) -> None:
    """docs/reference/metrics.md: what the master does is added up, what all ingest is the same."""
    cluster = make_cluster(kafka_and_etcd, tmp_path, PARTITIONS)
    nodes = [cluster.node(number, driver=driver) for number in range(3)]
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=1)
    with running(nodes), closing(producer):
        check_metrics(Counter(cluster, nodes, producer), cluster.target("metrics"), driver)


def check_metrics(counter: Counter, target: str, driver: str) -> None:
    """Ask for some of everything, and compare what all nodes count with it."""
    id = "order"
    sources = {counter.put(f"{id}-{number}", topic=target, delay="1s") for number in range(40)}
    doomed = [counter.put(f"{id}-doomed-{number}", topic=target, delay="1h") for number in range(7)]
    cancels = [counter.put(f"{id}-doomed-{number}", op="cancel") for number in range(7)]
    never = counter.put(f"{id}-never", op="cancel")
    refused = counter.put(f"{id}-refused", topic=target, delay="a while")
    assert len(doomed) == len(cancels) == 7
    counter.receipts({*cancels, never, refused})
    read_until(counter.cluster.bootstrap, target, seen_all(sources))

    def counted() -> dict[str, float | list[float]]:
        """Of each node what all do, of all of them what the master does."""
        now = [scrape(node.port) for node in counter.nodes]

        def each(name: str, **labels: str) -> list[float]:
            return [n.sum(name, **labels) for n in now]

        return {
            "ingested": each("delayd_ingested_records_total"),
            "refused": each("delayd_rejects_total", reason="bad-delay"),
            "delivered": sum(each("delayd_step_messages_total", fate="delivered")),
            "late": sum(each("delayd_lateness_seconds_count", topic=target)),
            "late at all": sum(each("delayd_lateness_seconds_bucket", topic=target, le="+Inf")),
            "cancelled": sum(each("delayd_verdicts_total", verdict="cancelled")),
            "not found": sum(each("delayd_verdicts_total", verdict="not-found")),
            "rejected": sum(each("delayd_verdicts_total", verdict="rejected")),
            "verdicts": sum(each("delayd_verdicts_total")),
            "letters": sum(each("delayd_dead_letters_total", reason="bad-delay")),
        }

    stored = len(read_all(counter.cluster.bootstrap, [counter.cluster.buffer]))
    assert 56 < stored <= 56 + len(cancels)  # and what the cancels came to, in a few records
    expected = {
        "ingested": [stored] * 3,
        "refused": [1] * 3,
        "delivered": 40,
        "late": 40,
        "late at all": 40,
        "cancelled": 7,
        "not found": 1,
        "rejected": 1,
        "verdicts": 9,
        "letters": 1,
    }
    with suppress(AssertionError):  # What is wrong then is told below.
        wait_for(lambda: counted() == expected, "all that came is counted")
    assert counted() == expected

    def all_read() -> bool:
        lags = [scrape(node.port).all("delayd_ingest_lag_offsets") for node in counter.nodes]
        return lags == [[0] * PARTITIONS] * 3

    wait_for(all_read, "every node has read the buffer to its end")
    now = {node.name: scrape(node.port) for node in counter.nodes}
    [master] = [name for name, n in now.items() if n.sum("delayd_role", role="master") == 1]
    assert counter.nodes[[n.name for n in counter.nodes].index(master)].is_master()
    for name, figures in now.items():
        assert figures.label("delayd_leader_info", "master") == master
        assert figures.sum("delayd_role") == 1
        assert figures.all("delayd_ready") == figures.all("delayd_kafka_up") == [1]
        assert figures.all("delayd_term") == now[master].all("delayd_term") != [0]
        assert len(figures.all("delayd_lease_margin_seconds")) == (name == master)
        [lag] = figures.all("delayd_delivery_lag_seconds")
        assert 0 <= lag < 30
        assert figures.sum("delayd_disk_free_bytes") > 0
        assert figures.label("delayd_build_info", "node") == name
        assert figures.label("delayd_build_info", "driver") == driver
    assert now[master].sum("delayd_leaderships_won_total") >= 1
    assert now[master].sum("delayd_lateness_seconds_sum", topic=target) < 40 * HANGS_S
