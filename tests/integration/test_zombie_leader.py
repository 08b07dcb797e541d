"""A broker that leads the frontier partition no more, and does not know it, on real brokers.

Its threads towards the controllers are held, so that it serves what it had to whoever asks it,
while another broker leads. A master goes on there and dies; its successor has known the old leader
all the time.

    pytest --full -s tests/integration/test_zombie_leader.py     20 rounds instead of 2
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster, wait_for_brokers
from confluent_kafka.admin import AdminClient
from held_threads import held
from kafka import KafkaAdminClient
from nodes import CLUSTER_KEY, wait_for
from topics_read import all_of

from delayd.bus import Bus, Headers
from delayd.bus.confluent import ConfluentBus
from delayd.bus.kafka_python import KafkaPythonBus
from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import load_settings
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.errors import DelaydError
from delayd.node.delivery.delivery_context import DeliveryOptions
from delayd.node.delivery.delivery_loop import DeliveryLoop
from delayd.node.delivery.grant import Grant
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import SystemClock
from delayd.wheel.storage import Wheel
from replication.election_facts import Ended

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="holds threads by ptrace"),
]

FOREVER_MS = 10**15
TIMEOUT_MS = 30_000
PATIENCE_S = 120
"""Brokers notice a lost one after 6 s, and a master gets on after a few time-outs."""
BATCH = 5
POLLS = 100
"""Of one connection of the buffer's reader: 5 s."""
FOREVER_AGE_MS = 240_000
DRIVERS: tuple[tuple[Callable[..., Bus], str], ...] = (
    (ConfluentBus, "topic.metadata.refresh.interval.ms"),
    (KafkaPythonBus, "metadata.max.age.ms"),
)
"""And its name for the age of metadata."""


class FollowingNode:
    """A node without an election: ingest, and a delivery thread that leads when it is told to."""

    def __init__(self, cluster: TestCluster, folder: Path, bus: Bus, reader: Bus) -> None:
        """`reader`: of the buffer."""
        seen = load_settings(bus, cluster.name, f"{cluster.name}-", TIMEOUT_MS)
        settings = seen.record.settings
        self._name = folder.name
        self._replica = Replica(
            Wheel.open(folder, partitions=settings.partitions),
            settings,
            proof_key=CLUSTER_KEY.encode(),
            export_hold_ms=900_000,
            disk_free_min_bytes=0,
        )
        self._replica.observe(seen)
        log = FrontierLog(bus, settings.frontier.name, 0)
        log.open(TIMEOUT_MS)
        self._failure: BaseException | None = None
        self._delivery = DeliveryLoop(
            bus,
            self._replica,
            log,
            SystemClock(),
            DeliveryOptions(idle_interval_ms=300, clock_drift_max_ms=5_000),
            self._lead_again,
            self._fail,
        )
        self._leads = False
        self._ended = threading.Event()
        self._consumer = reader.consumer(settings.buffer.name)
        self._ingest = threading.Thread(target=self._read, daemon=True)
        self._ingest.start()
        self._delivery.start()

    @property
    def stale_reads(self) -> int:
        """How many takeovers began again because of one."""
        return self._delivery.counters.stale_reads

    def lead(self) -> None:
        """Be master from now on, whatever fails."""
        self._leads = True
        self._delivery.give(Grant(f"{self._name}/1", FOREVER_MS))

    def close(self) -> None:
        """End, as a process that is killed; the delivery thread must not have died before."""
        self._leads = False
        self._delivery.stop(PATIENCE_S)
        self._ended.set()
        self._ingest.join(PATIENCE_S)
        self._consumer.close()
        self._replica.close()
        assert self._failure is None, repr(self._failure)

    def _lead_again(self, _: Grant, ended: Ended) -> None:
        if self._leads:
            self.lead()

    def _fail(self, error: BaseException) -> None:
        print(f"{self._name} fails: {error!r}")
        self._failure = error

    def _read(self) -> None:
        try:
            while not self._ended.is_set():
                # The buffer's leader may be cut off too: a new connection asks others who leads.
                self._consumer.assign(self._replica.positions)
                for _ in range(POLLS):
                    self._replica.take(self._consumer.poll(500, 50))
        except DelaydError as error:
            self._fail(error)


class ChosenBus:
    """A bus whose clients, made until `others` are chosen, meet one broker first. Which one that is
    is chance elsewhere."""

    def __init__(self, first: Bus, others: Bus) -> None:
        self._bus = first
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def choose_others(self) -> None:
        """New clients ask any broker."""
        self._bus = self._others


class Play:
    """Three brokers, a delayd cluster on them, and what was sent to its one target."""

    def __init__(self, brokers: LocalCluster, folder: Path) -> None:
        self._brokers = brokers
        self._folder = folder
        self._cluster = make_cluster(brokers, folder, partitions=1)
        self._frontier = f"{self._cluster.name}-frontier"
        self._target = create_topic(ConfluentBus(brokers.bootstrap), f"of-{self._cluster.name}")
        self.sent = 0
        self.stale_reads: list[int] = []
        """Of each successor."""
        # Each broker learns of new topics in its own time.
        wait_for(lambda: self._agreed_leader() is not None, "they agree on a leader")

    def play(self, driver: Callable[..., Bus], age: str) -> None:
        """Let the leader of the frontier be cut off, a master die, and another one follow it."""
        broker = self._leader_without_controller()
        pid, address, others = self._seen_beside(broker)
        # What was once asked about leaders is believed for long. Readers of the buffer also know
        # brokers that lead.
        bus, first, reader = (
            driver(bootstrap, overrides={age: str(age_ms)})
            for bootstrap, age_ms in (
                (self._brokers.bootstrap, FOREVER_AGE_MS),
                (address, FOREVER_AGE_MS),
                (others, 1_000),
            )
        )
        chosen: Any = ChosenBus(first, bus)
        number = len(self.stale_reads)
        master = FollowingNode(self._cluster, self._folder / f"master-{number}", bus, reader)
        successor = FollowingNode(
            self._cluster, self._folder / f"successor-{number}", chosen, reader
        )
        chosen.choose_others()
        master.lead()
        self._deliver(self._brokers.bootstrap)
        towards = (f"kafka-{broker}-raft-outbound", f"broker-{broker}-to-controller")
        with held(pid, *towards) as count:
            assert count > 1, "no such threads"
            wait_for(lambda: self._leader(others) not in (-1, broker), "another one leads")
            self._deliver(others)
            master.close()
            successor.lead()
            self._deliver(others)
        successor.close()
        self.stale_reads.append(successor.stale_reads)

    def delivered(self, bootstrap: str) -> Counter[bytes | None]:
        """What is in the target, by source."""
        records = all_of(bootstrap, self._target, 1)
        return Counter(dict(record.headers)["delayd-source"] for record in records)

    def _deliver(self, bootstrap: str) -> None:
        headers: Headers = [("delayd-topic", self._target.encode()), ("delayd-delay", b"100ms")]
        with closing(ConfluentBus(bootstrap).idempotent_producer()) as producer:
            for _ in range(BATCH):
                producer.send(f"{self._cluster.name}-buffer", key=None, value=b"v", headers=headers)
            producer.flush(TIMEOUT_MS)
        self.sent += BATCH
        wait_for(
            lambda: self.delivered(bootstrap).total() >= self.sent,
            f"{self.sent} are delivered",
            PATIENCE_S,
        )

    def _leader(self, bootstrap: str) -> int:
        """The leader of the frontier partition, as those brokers know it; -1 for none."""
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        found = admin.list_topics(self._frontier, timeout=10).topics[self._frontier].partitions
        return int(found[0].leader) if found else -1

    def _agreed_leader(self) -> int | None:
        """The same, if all of them know the same one."""
        brokers = self._brokers.status()["brokers"]
        leaders = {self._leader(each["address"]) for each in brokers}
        return leaders.pop() if len(leaders) == 1 and -1 not in leaders else None

    def _leader_without_controller(self) -> int:
        """The same. It is restarted if it is the active controller, which always knows who
        leads."""
        while True:
            broker = self._agreed_leader()
            with closing(KafkaAdminClient(bootstrap_servers=self._brokers.bootstrap)) as admin:
                quorum = admin.describe_metadata_quorum()
            if broker is None:
                continue
            if broker != quorum["topics"][0]["partitions"][0]["leader_id"]:
                return broker
            self._brokers.restart(f"broker-{broker}")

    def _seen_beside(self, broker: int) -> tuple[int, str, str]:
        """The pid and the address of one broker, and the addresses of the others."""
        parts = self._brokers.status()["brokers"]
        [one] = [each for each in parts if each["name"] == f"broker-{broker}"]
        others = [each["address"] for each in parts if each["name"] != f"broker-{broker}"]
        return one["pid"], one["address"], ",".join(others)


@pytest.mark.rehearsal
@pytest.mark.timeout(3_600)
def test_a_successor_that_reads_from_a_zombie_leader_doubles_nothing(
    three_brokers: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """docs/design/frontier.md, Stale reads.

    Rules: stale-read
    """
    rounds = 20 if request.config.getoption("--full") else 2
    play = Play(three_brokers, tmp_path)
    for number in range(rounds):
        try:
            play.play(*DRIVERS[number % len(DRIVERS)])
        except PermissionError as error:
            pytest.skip(f"this user may hold no threads: {error}")
    wait_for_brokers(three_brokers)
    found = play.delivered(three_brokers.bootstrap)
    doubled = found.total() - len(found)
    print(
        f"\n{rounds} zombie leaders: {play.sent} sent, {play.sent - len(found)} lost, "
        f"{doubled} doubled; stale reads by round: {play.stale_reads}"
    )
    # Which broker a client asks who leads is chance.
    assert any(play.stale_reads) or rounds < 20, "no successor has met a zombie"
    assert (len(found), doubled) == (play.sent, 0)
