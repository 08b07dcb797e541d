"""What a broker that is away costs the targets of others: `python tests/broker_away_figures.py`.

Three brokers, three nodes. A load is scheduled first. Then a broker that leads a partition of its
target is frozen, which leaves its connections open, or killed: one that coordinates delayd's
transactions, or one that does not. It stays away until the load is delivered, and its messages are
those of all partitions. Prints how late they were, and in which spells of more than a second; and
the longest time between two records of the frontier, which is the master's part of it: the reader
looks for new leaders by itself.

`--session-ms` is the brokers' `broker.session.timeout.ms`: until it is over Kafka itself keeps the
silent broker as leader. If the broker is the active controller, too, the others elect another one
first, after `controller.quorum.fetch.timeout.ms` (`--quorum-ms`), and the session begins anew:
`--controller` says which case is to be played.
"""

import argparse
import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
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
QUORUM_TIMEOUT_MS = 2_000
"""Kafka's own."""
SETTLE_MS = 120_000
CLUSTERS_MAX = 20
"""Each has another coordinator, by chance."""
METADATA_TIMEOUT_S = 10
READ_BACK_S = 10
BECAME_CONTROLLER = "Becoming the active controller"
"""In a broker's log."""
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
    parser.add_argument("--quorum-ms", type=int, default=QUORUM_TIMEOUT_MS)
    parser.add_argument("--signal", choices=["SIGSTOP", "SIGKILL"], default="SIGSTOP")
    parser.add_argument("--coordinator", action="store_true", help="strike that one")
    parser.add_argument("--controller", choices=["yes", "no", "either"], default="either")
    sizes = parser.parse_args()
    session = {
        "broker.session.timeout.ms": str(sizes.session_ms),
        "broker.heartbeat.interval.ms": str(min(HEARTBEAT_INTERVAL_MS, sizes.session_ms // 4)),
        "controller.quorum.fetch.timeout.ms": str(sizes.quorum_ms),
        "controller.quorum.election.timeout.ms": str(sizes.quorum_ms // 2),
    }
    with (
        tempfile.TemporaryDirectory(prefix="delayd-figures-") as folder,
        LocalCluster(Path(folder), ClusterOptions(0, BROKERS, session)) as servers,
    ):
        brokers = Brokers(servers.bootstrap, servers.etcd_url, Security.none())
        for _ in range(CLUSTERS_MAX):
            with running(brokers, NODES) as nodes:
                if play(servers, nodes, sizes):
                    return
    raise SystemExit("no broker was of that kind")


def play(servers: LocalCluster, nodes: BenchNodes, sizes: argparse.Namespace) -> bool:
    """Deliver a load while a broker is away, and tell how; False if no broker is of that kind."""
    kafka, target = nodes.brokers.client, nodes.create_target()
    victim = victim_of(servers, nodes, target, sizes)
    if victim is None:
        return False
    count = sizes.rate * sizes.seconds
    first_due_ms = nodes.clock.wall_ms() + lead_ms(count) + READY_MS
    load = paced(target, sizes.rate, sizes.seconds, first_due_ms)
    with reading({**kafka, "socket.timeout.ms": str(READER_TIMEOUT_MS)}, load) as reader:
        fill(kafka, nodes.buffer, load)
        nodes.wait_until_ingested(count)
        time.sleep(max(0, first_due_ms - nodes.clock.wall_ms()) / 1000 + PROVEN_S)
        term, was_controller = nodes.term(), controller(servers) == victim
        struck_ms = nodes.clock.wall_ms()
        servers.kill(victim, signal.Signals[sizes.signal])
        try:
            found = received(reader, load.end_ms + SETTLE_MS)
        finally:
            if sizes.signal == "SIGSTOP":
                servers.kill(victim, signal.SIGCONT)
    p50, p99, most = found.quantiles_ms(500, 990, 1000)
    what = "coordinates" if sizes.coordinator else "does not coordinate"
    also = ", controller, too" if was_controller else ""
    print(f"{victim}, which {what} the transactions{also}, {sizes.signal}: p50 {p50} ms,")
    print(f"p99 {p99} ms, max {most} ms, {found.faults()}, {nodes.term() - term} takeovers,")
    print(f"{silence_ms(kafka, nodes, struck_ms)} ms without a step")
    for spell in spells(found, struck_ms):
        print(f"  late {spell}")
    return True


def victim_of(
    servers: LocalCluster, nodes: BenchNodes, target: str, sizes: argparse.Namespace
) -> str | None:
    """Return the broker to strike, by its part's name: one that leads a partition of the target,
    or the one that coordinates."""
    kafka, cluster = nodes.brokers.client, nodes.buffer.removesuffix("-buffer")
    frontier = f"{cluster}-frontier"
    topics = Topics(nodes.brokers.bootstrap, copies=BROKERS, cluster=cluster, frontier=frontier)
    found = {topics.coordinator()}
    if not sizes.coordinator:
        known = AdminClient({**kafka}).list_topics(target, METADATA_TIMEOUT_S).topics[target]
        found = {f"broker-{each.leader}" for each in known.partitions.values()} - found
    if sizes.controller != "either":
        is_wanted = sizes.controller == "yes"
        found = {each for each in found if (each == controller(servers)) is is_wanted}
    return min(found, default=None)


def controller(servers: LocalCluster) -> str:
    """Return the broker that became the active controller last, by the brokers' logs: Kafka tells
    clients some broker."""
    said = [
        (line, path.stem)
        for path in (servers.directory / "logs").glob("broker-*.log")
        for line in path.read_text().splitlines()
        if BECAME_CONTROLLER in line
    ]
    return max(said)[1]


def silence_ms(kafka: Mapping[str, str], nodes: BenchNodes, struck_ms: int) -> int:
    """Return the longest time between two steps after the strike, as brokers stamped their
    frontiers; each is committed some ms later."""
    place = TopicPartition(nodes.buffer.removesuffix("buffer") + "frontier", 0, 0)
    reader = {"group.id": "figures", "isolation.level": "read_committed"}
    with contextlib.closing(Consumer({**kafka, **reader, "enable.partition.eof": True})) as log:
        log.assign([place])
        times_ms = []
        while (record := log.poll(READ_BACK_S)) is not None and record.error() is None:
            times_ms.append(record.timestamp()[1])
    return max(later - earlier for earlier, later in pairwise(times_ms) if later > struck_ms)


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
