"""Events cancel messages through real nodes, of both drivers, whose masters are killed meanwhile.

Source: docs/guides/cancel-on-event.md.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from clusters import make_cluster
from confluent_kafka import Producer
from nodes import HANGS_S, NodeProcess, master_of, node_group, wait_for
from topics_read import Seen, read_until

from delayd.bus.confluent import ConfluentBus
from delayd.client import Request, Scheduled
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic

pytestmark = pytest.mark.real

ORDERS = 300
KILL_AT = (60, 160)
DUE_S = 15
"""Longer than it takes to send all; a cancel that comes later is told so, and is as true."""


def cause_of(record: Seen) -> str | None:
    """What event a cancel in the buffer names."""
    cause = dict(record.headers).get("cancelled-by")
    return None if cause is None else cause.decode()


def test_each_event_cancels_its_message_once_though_masters_are_killed(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(kafka_and_etcd, tmp_path)
    events, target = f"events-{cluster.name}", cluster.target("reminders")
    create_topic(ConfluentBus(cluster.bootstrap), events, partitions=2)
    rule = {"topic": events, "id": "/order/id", "where": {"/status": "paid"}}
    nodes = [
        cluster.node(number, driver=driver, cancel_on=[rule])
        for number, driver in enumerate(("confluent", "kafka-python", "confluent"))
    ]
    with node_group(nodes), cluster.client() as client:
        for node in nodes:
            node.start()
        wait_for(lambda: lag_of(nodes, events) == 0, "the bridge reads")
        asked = (Request(target, b"v", id=f"o-{n}", in_=f"{DUE_S}s") for n in range(ORDERS))
        assert all(isinstance(each, Scheduled) for each in client.schedule_many(asked))
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(ORDERS):
            status = "paid" if number % 2 else "open"
            event = {"order": {"id": f"o-{number}"}, "status": status}
            producer.produce(events, json.dumps(event).encode(), f"{number}".encode())
            if number in KILL_AT:
                producer.flush(HANGS_S)
                killed = master_of(nodes)
                killed.kill()
                killed.start()
        producer.flush(HANGS_S)
        del producer
        paid = {f"o-{number}" for number in range(1, ORDERS, 2)}
        receipts = read_until(
            cluster.bootstrap,
            cluster.receipts,
            lambda seen: {(each.key or b"").decode() for each in seen} >= paid,
        )
        verdicts = {
            (each.key or b"").decode(): json.loads(each.value or b"")["verdict"]
            for each in receipts
        }
        assert verdicts.keys() == paid and set(verdicts.values()) <= {"cancelled", "too-late"}
        assert "cancelled" in verdicts.values()
        left = {f"o-{n}" for n in range(ORDERS)} - {
            id for id, verdict in verdicts.items() if verdict == "cancelled"
        }
        delivered = read_until(cluster.bootstrap, target, lambda seen: len(seen) >= len(left))
        assert Counter((each.key or b"").decode() for each in delivered) == Counter(left)
        wait_for(lambda: lag_of(nodes, events) == 0, "nothing is left to be read")
        written = read_until(cluster.bootstrap, cluster.buffer, lambda seen: len(seen) >= ORDERS)
        causes = Counter(cause for cause in map(cause_of, written) if cause is not None)
        assert len(causes) == len(paid) and set(causes.values()) == {1}, "each event once"


def lag_of(nodes: list[NodeProcess], events: str) -> int | None:
    """What the master's bridge has still to read; None if nobody knows."""
    shown = master_of(nodes).status().get("cancel_on")
    lag = shown and shown["topics"][events]["lag"]
    return lag if isinstance(lag, int) else None
