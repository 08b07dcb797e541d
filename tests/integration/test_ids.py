"""Ids, cancels and replaces through a real node: every answer is true.

Source: docs/reference/requests.md, docs/design/frontier.md, "Verdicts".
"""

import itertools
import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from nodes import NodeProcess, master_of, node_group
from topics_read import read_until

from delayd.bus.murmur2 import partition_of
from delayd.dev.cluster import LocalCluster

pytestmark = pytest.mark.real

PARTITIONS = 3
_numbers = itertools.count()


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

    def receipts(self, sources: set[str], timeout_s: float = 60) -> dict[str, list[dict[str, Any]]]:
        """The receipts of these requests, once all have one."""
        found = read_until(
            self.cluster.bootstrap,
            self.cluster.receipts,
            lambda seen: sources <= {record.header("delayd-source") for record in seen},
            timeout_s,
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
    sent = future.get(20)
    return f"{sent.partition}/{sent.offset}"


def seen_all(sources: set[str]) -> Any:
    return lambda seen: sources <= {record.header("delayd-source") for record in seen}


@pytest.fixture(scope="module", params=["confluent", "kafka-python"])
def counter(
    kafka_and_etcd: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Counter]:
    """One cluster of three nodes for all of these tests, with each driver."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaProducer
    cluster = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("ids"), PARTITIONS)
    nodes = [cluster.node(number, driver=request.param) for number in range(3)]
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=1)
    try:
        with node_group(nodes):
            for node in nodes:
                node.start()
            master_of(nodes)
            yield Counter(cluster, nodes, producer)
    finally:
        producer.close()


@pytest.fixture
def target(counter: Counter) -> str:
    """A target of the test's own."""
    return counter.cluster.target(f"ids{next(_numbers)}")


@pytest.fixture
def id() -> str:
    """An id of the test's own."""
    return f"order-{next(_numbers)}"


def test_what_is_cancelled_in_time_never_arrives(counter: Counter, target: str, id: str) -> None:
    doomed = counter.put(id, topic=target, delay="2s")
    fine = counter.put(f"{id}-other", topic=target, delay="3s")
    cancel = counter.put(id, op="cancel")
    receipt = counter.verdict(cancel)
    assert receipt["verdict"] == "cancelled" and receipt["killed"] == [doomed]
    assert (receipt["id"], receipt["op"], receipt["source"]) == (id, "cancel", cancel)
    again = counter.verdict(counter.put(id, op="cancel"))
    assert again["verdict"] == "cancelled"
    found = read_until(counter.cluster.bootstrap, target, seen_all({fine}))
    assert [record.header("delayd-source") for record in found] == [fine]


def test_a_cancel_after_delivery_is_too_late_and_the_id_can_be_used_again(
    counter: Counter, target: str, id: str
) -> None:
    first = counter.put(id, topic=target, delay="1ms")
    read_until(counter.cluster.bootstrap, target, seen_all({first}))
    assert counter.verdict(counter.put(id, op="cancel"))["verdict"] == "too-late"
    second = counter.put(id, topic=target, delay="1ms")
    found = read_until(counter.cluster.bootstrap, target, seen_all({first, second}))
    assert len(found) == 2 and {record.header("delayd-id") for record in found} == {id}


def test_nothing_under_an_id_is_not_found(counter: Counter, id: str) -> None:
    receipt = counter.verdict(counter.put(id, op="cancel"))
    assert (receipt["verdict"], receipt["killed"]) == ("not-found", [])


def test_the_same_request_again_is_a_duplicate_another_one_a_conflict(
    counter: Counter, target: str, id: str
) -> None:
    first = counter.put(id, topic=target, delay="3s")
    again = counter.put(id, topic=target, delay="3s")
    other = counter.put(id, b"another", topic=target, delay="3s")
    told = counter.receipts({again, other})
    assert [r["verdict"] for r in told[again]] == ["duplicate"]
    assert [r["verdict"] for r in told[other]] == ["conflict"]
    letters = read_until(counter.cluster.bootstrap, counter.cluster.dead, seen_all({other}))
    [letter] = [record for record in letters if record.header("delayd-source") == other]
    assert (letter.value, letter.header("delayd-reason")) == (b"another", "conflict")
    fine = counter.put(f"{id}-after", topic=target, delay="4s")
    found = read_until(counter.cluster.bootstrap, target, seen_all({fine}))
    assert [record.header("delayd-source") for record in found] == [first, fine]


def test_a_replace_delivers_the_new_one_instead(counter: Counter, target: str, id: str) -> None:
    new = counter.put(f"{id}-new", b"new", topic=target, delay="1s", op="replace")
    assert counter.verdict(new)["verdict"] == "scheduled"
    old = counter.put(id, b"old", topic=target, delay="1500ms")
    replaced = counter.put(id, b"better", topic=target, delay="2s", op="replace")
    receipt = counter.verdict(replaced)
    assert (receipt["verdict"], receipt["killed"]) == ("replaced", [old])
    found = read_until(counter.cluster.bootstrap, target, seen_all({new, replaced}))
    assert sorted(record.value or b"" for record in found) == [b"better", b"new"]


def test_a_message_that_is_being_retried_can_be_cancelled(
    counter: Counter, target: str, id: str
) -> None:
    missing = f"{target}.missing"
    asked = counter.put(id, topic=missing, due="0")
    buffered = read_until(
        counter.cluster.bootstrap,
        counter.cluster.buffer,
        lambda seen: any(dict(r.headers).get("delayd-origin") == asked.encode() for r in seen),
    )
    assert any(dict(r.headers).get("delayd-origin") == asked.encode() for r in buffered)
    receipt = counter.verdict(counter.put(id, op="cancel"))
    assert receipt["verdict"] == "cancelled" and receipt["killed"] == [asked]
    counter.cluster.create_topic(missing)
    fine = counter.put(f"{id}-after", topic=missing, delay="9s")
    found = read_until(counter.cluster.bootstrap, missing, seen_all({fine}))
    assert [record.header("delayd-source") for record in found] == [fine]
