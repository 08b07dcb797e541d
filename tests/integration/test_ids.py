"""Ids, cancels and replaces through a real node: every answer is true.

Source: docs/reference/requests.md, docs/design/frontier.md, "Verdicts".
"""

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from kafka import KafkaProducer
from nodes import HANGS_S, NodeProcess, running, wait_for
from scraping import scrape
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

    def wait_until_counted(self, id: str, target: str) -> None:
        """Until every node has ingested, and its master counted, all that was asked so far.

        An answer comes from the master: a follower may still have to read what an earlier test
        asked, and the master itself counts a step after its receipts can be read.
        """
        names = (f"{id}-{number}" for number in itertools.count())
        asked: dict[int, int] = {}
        while len(asked) < PARTITIONS:
            name = next(names)
            if partition_of(name.encode(), PARTITIONS) not in asked:
                sent = self.ask(name, topic=target, delay="1ms").get(20)
                asked[sent.partition] = sent.offset

        def are_counted() -> bool:
            ingested = [node.status().get("ingested", [0] * PARTITIONS) for node in self.nodes]
            if any(ends[number] <= asked[number] for ends in ingested for number in asked):
                return False
            scraped = [scrape(node.port) for node in self.nodes]
            counted = sum(s.sum("delayd_lateness_seconds_count", topic=target) for s in scraped)
            return counted == PARTITIONS

        wait_for(are_counted, HANGS_S, "all nodes have counted what was asked so far")

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
    cluster = make_cluster(kafka_and_etcd, tmp_path_factory.mktemp("ids"), PARTITIONS)
    nodes = [cluster.node(number, driver=request.param) for number in range(3)]
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=1)
    try:
        with running(nodes):
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
    assert sorted(record.header("delayd-source") or "" for record in found) == sorted([first, fine])


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


def test_the_metrics_of_all_nodes_tell_what_has_happened(
    counter: Counter, target: str, id: str, request: pytest.FixtureRequest
) -> None:
    """docs/reference/metrics.md: what the master does is added up, what all ingest is the same."""
    for number in range(40):  # As an earlier test leaves it: read by nobody yet.
        counter.ask(f"{id}-before-{number}", op="cancel")
    counter.wait_until_counted(id, target)
    before = [scrape(node.port) for node in counter.nodes]
    sources = {counter.put(f"{id}-{number}", topic=target, delay="1s") for number in range(40)}
    doomed = [counter.put(f"{id}-doomed-{number}", topic=target, delay="1h") for number in range(7)]
    cancels = [counter.put(f"{id}-doomed-{number}", op="cancel") for number in range(7)]
    never = counter.put(f"{id}-never", op="cancel")
    refused = counter.put(f"{id}-refused", topic=target, delay="a while")
    assert len(doomed) == len(cancels) == 7
    counter.receipts({*cancels, never, refused})
    read_until(counter.cluster.bootstrap, target, seen_all(sources), 60)

    def growth() -> dict[str, float | list[float]]:
        """Since the test began: of each node what all do, of all of them what the master does."""
        now = [scrape(node.port) for node in counter.nodes]

        def each(name: str, **labels: str) -> list[float]:
            return [
                n.sum(name, **labels) - b.sum(name, **labels)
                for n, b in zip(now, before, strict=True)
            ]

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

    expected = {
        "ingested": [56] * 3,
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
        wait_for(lambda: growth() == expected, HANGS_S, "all that came is counted")
    assert growth() == expected

    def all_read() -> bool:
        lags = [scrape(node.port).all("delayd_ingest_lag_offsets") for node in counter.nodes]
        return lags == [[0] * PARTITIONS] * 3

    wait_for(all_read, HANGS_S, "every node has read the buffer to its end")
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
        assert figures.label("delayd_build_info", "driver") in request.node.name
    assert now[master].sum("delayd_leaderships_won_total") >= 1
    assert now[master].sum("delayd_lateness_seconds_sum", topic=target) < 40 * HANGS_S
