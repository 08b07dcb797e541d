"""What a broker that is away costs the targets of others: `python tests/broker_away_figures.py`.

Three brokers, three nodes. A load is scheduled first. Then a broker that leads a partition of its
target is frozen, which leaves its connections open, or killed: one that coordinates delayd's
transactions, or one that does not. It stays away until the load is delivered, and its messages are
those of all partitions. Prints how late they were, and in which spells of more than a second.

`--session-ms` is the brokers' `broker.session.timeout.ms`: until it is over Kafka itself keeps the
silent broker as leader.
"""

import argparse
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from chaos.topics import Topics
from delayd.bench.brokers import Brokers
from delayd.bench.lateness import paced
from delayd.bench.nodes import BenchNodes, running
from delayd.bench.reading import reading, received
from delayd.bench.receipts import Receipts
from delayd.bench.sending import fill, lead_ms
from delayd.config.security import Security
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from delayd.dev.startup import ClusterOptions

NODES = 3
BROKERS = 3
LATE_MS = 1_000
"""What is later belongs to a spell."""
APART_MS = 5_000
"""Between two spells."""
READY_MS = 10_000
"""From the last request to the first due time."""
PROVEN_S = 5
"""How long is delivered before the broker is struck."""
SETTLE_MS = 120_000
METADATA_TIMEOUT_S = 10
READER_TIMEOUT_MS = 3_000
"""The reader's, which asks the frozen broker, too: librdkafka's own is a minute."""


class Spell(NamedTuple):
    """Due times, ms after the strike, and the largest lateness between them."""

    first_ms: int
    last_ms: int
    late_ms: int

    def __str__(self) -> str:
        return f"{self.first_ms / 1e3:.1f}..{self.last_ms / 1e3:.1f} s: {self.late_ms} ms"


def main() -> None:
    """Play the load with each broker away."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--session-ms", type=int, default=SESSION_TIMEOUT_MS)
    parser.add_argument("--signal", choices=["SIGSTOP", "SIGKILL"], default="SIGSTOP")
    parser.add_argument("--coordinator", action="store_true", help="strike that one")
    sizes = parser.parse_args()
    session = {
        "broker.session.timeout.ms": str(sizes.session_ms),
        "broker.heartbeat.interval.ms": str(min(HEARTBEAT_INTERVAL_MS, sizes.session_ms // 4)),
    }
    with (
        tempfile.TemporaryDirectory(prefix="delayd-figures-") as folder,
        LocalCluster(Path(folder), ClusterOptions(0, BROKERS, session)) as servers,
        running(Brokers(servers.bootstrap, servers.etcd_url, Security.none()), NODES) as nodes,
    ):
        play(servers, nodes, sizes)


def play(servers: LocalCluster, nodes: BenchNodes, sizes: argparse.Namespace) -> None:
    """Deliver a load while a broker is away, and tell how."""
    count = sizes.rate * sizes.seconds
    first_due_ms = nodes.clock.wall_ms() + lead_ms(count) + READY_MS
    load = paced(nodes.create_target(), sizes.rate, sizes.seconds, first_due_ms)
    kafka = nodes.brokers.client
    with reading({**kafka, "socket.timeout.ms": str(READER_TIMEOUT_MS)}, load) as reader:
        fill(kafka, nodes.buffer, load)
        nodes.wait_until_ingested(count)
        time.sleep(max(0, first_due_ms - nodes.clock.wall_ms()) / 1000 + PROVEN_S)
        term, victim = nodes.term(), victim_of(kafka, nodes, load.target, sizes.coordinator)
        struck_ms = nodes.clock.wall_ms()
        servers.kill(victim, signal.Signals[sizes.signal])
        try:
            found = received(reader, load.end_ms + SETTLE_MS)
        finally:
            if sizes.signal == "SIGSTOP":
                servers.kill(victim, signal.SIGCONT)
    p50, p99, most = found.quantiles_ms(500, 990, 1000)
    what = "coordinates" if sizes.coordinator else "does not coordinate"
    print(f"{victim}, which {what} the transactions, {sizes.signal}: p50 {p50} ms, p99 {p99} ms,")
    print(f"max {most} ms, faults {found.faults()}, {nodes.term() - term} takeovers")
    for spell in spells(found, struck_ms):
        print(f"  late {spell}")


def victim_of(kafka: Mapping[str, str], nodes: BenchNodes, target: str, coordinator: bool) -> str:
    """Return the broker to strike, by its part's name. It leads a partition of the target."""
    cluster = nodes.buffer.removesuffix("-buffer")
    frontier = f"{cluster}-frontier"
    topics = Topics(nodes.brokers.bootstrap, copies=BROKERS, cluster=cluster, frontier=frontier)
    coordinates = topics.coordinator()
    if coordinator:
        return coordinates
    partitions = (
        AdminClient({**kafka}).list_topics(target, METADATA_TIMEOUT_S).topics[target].partitions
    )
    leaders = {f"broker-{partition.leader}" for partition in partitions.values()}
    return min(leaders - {coordinates})


def spells(found: Receipts, struck_ms: int) -> Iterator[Spell]:
    """Yield when messages were late."""
    late = sorted(
        (due_ms - struck_ms, received_ms - due_ms)
        for number, received_ms in enumerate(found.received_ms)
        if received_ms and received_ms - (due_ms := found.load.due_ms(number)) > LATE_MS
    )
    spell: Spell | None = None
    for due_ms, late_ms in late:
        if spell is not None and due_ms - spell.last_ms <= APART_MS:
            spell = Spell(spell.first_ms, due_ms, max(spell.late_ms, late_ms))
        else:
            if spell is not None:
                yield spell
            spell = Spell(due_ms, due_ms, late_ms)
    if spell is not None:
        yield spell


if __name__ == "__main__":
    main()
