"""Three brokers, of which one dies or hangs: every bus goes on with the others."""

import signal
import threading
from contextlib import closing
from uuid import uuid4

import pytest
from clusters import wait_for_brokers
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from nodes import HANGS_S
from test_dev_cluster import first_value, produce, send

from chaos.topics import coordinator_of
from delayd.bus import Bus, Cluster
from delayd.bus.confluent import ConfluentBus, producer
from delayd.bus.kafka_python import KafkaPythonBus
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.errors import KafkaUnreachableError, ProducerError
from delayd.runtime.clock import SystemClock

pytestmark = pytest.mark.real

TIMEOUT_MS = 15_000
ELECTION_MS_MAX = 60_000
CLOCK = SystemClock()
SILENCE_MS = 1_000
"""Shorter than controllers take to replace a broker."""
PROBE_MS = 4_000
"""The whole of it is waited for, and nobody who answers may need as long."""
CLIENTS = 4
"""Each believes in another controller, by chance."""


def offsets_of(cluster: Cluster, topic: str) -> dict[int, int]:
    """The end of each partition; where the dead one led, others have to be elected first."""
    deadline_ms = CLOCK.monotonic_ms() + ELECTION_MS_MAX
    while True:
        try:
            return cluster.end_offsets(topic, TIMEOUT_MS, committed=True)
        except KafkaUnreachableError:
            if CLOCK.monotonic_ms() > deadline_ms:
                raise


def wait_until_known(cluster: Cluster, topic: str) -> None:
    """Each broker learns of a new topic in its own time, and each client asks another one."""
    deadline_ms = CLOCK.monotonic_ms() + ELECTION_MS_MAX
    while cluster.survey([topic], TIMEOUT_MS).states.keys() != {topic}:
        assert CLOCK.monotonic_ms() < deadline_ms, f"{topic} is never known"
        threading.Event().wait(0.05)


def answering(bus: Bus, places: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Whose leaders answer, by a new client each time: one may meet the broker that hangs first."""
    deadline_ms = CLOCK.monotonic_ms() + ELECTION_MS_MAX
    while True:
        with closing(bus.cluster()) as cluster:
            try:
                return cluster.answering(places, PROBE_MS)
            except KafkaUnreachableError:
                if CLOCK.monotonic_ms() > deadline_ms:
                    raise


def test_questions_are_answered_while_the_broker_that_was_asked_before_is_dead(
    three_brokers: LocalCluster,
) -> None:
    """docs/design/frontier.md, Targets: one broker away holds up nobody."""
    brokers, topic = three_brokers, f"t{uuid4().hex}"
    buses: list[Bus] = [ConfluentBus(brokers.bootstrap), KafkaPythonBus(brokers.bootstrap)]
    clusters = [bus.cluster() for bus in buses for _ in range(CLIENTS)]
    try:
        clusters[0].create_topic(
            topic, partitions=3, replication_factor=3, config={}, timeout_ms=30_000
        )
        for cluster in clusters:
            wait_until_known(cluster, topic)
        # A client of librdkafka sends such questions to the controller that it knows.
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        controller = admin.describe_cluster().result(TIMEOUT_MS / 1000).controller.id
        brokers.kill(f"broker-{controller}")
        for cluster in clusters:
            assert cluster.survey([topic], TIMEOUT_MS).states.keys() == {topic}
            assert offsets_of(cluster, topic).keys() == {0, 1, 2}
    finally:
        for cluster in clusters:
            cluster.close()
    brokers.restart(f"broker-{controller}")
    wait_for_brokers(brokers)


def test_a_time_out_names_the_partitions_whose_leaders_do_not_answer(
    three_brokers: LocalCluster,
) -> None:
    """docs/design/frontier.md, A leader that hangs."""
    brokers, topic = three_brokers, f"t{uuid4().hex}"
    buses: list[Bus] = [ConfluentBus(brokers.bootstrap), KafkaPythonBus(brokers.bootstrap)]
    with closing(buses[0].cluster()) as cluster:
        cluster.create_topic(
            topic, partitions=3, replication_factor=1, config={}, timeout_ms=30_000
        )
        for broker in brokers.status()["brokers"]:
            with closing(ConfluentBus(broker["address"]).cluster()) as one:
                wait_until_known(one, topic)
        state = cluster.describe([topic], TIMEOUT_MS)[topic]
    leaders = [partition.leader for partition in state.partitions]
    producers = [bus.idempotent_producer() for bus in buses]
    try:
        for producer in producers:
            for partition in range(3):
                producer.send(topic, key=None, value=b"v", headers=[], partition=partition)
            producer.flush(TIMEOUT_MS)
        brokers.kill(f"broker-{leaders[1]}", signal.SIGSTOP)
        for producer in producers:
            for partition in range(3):
                producer.send(topic, key=None, value=b"v", headers=[], partition=partition)
        for producer in producers:
            with pytest.raises(ProducerError) as raised:
                producer.flush(SILENCE_MS)
            assert raised.value.silent == {(topic, 1)} and not raised.value.refusals
        gone = {(topic, 3), (f"absent-{uuid4().hex}", 0)}
        for bus in buses:
            found = answering(bus, {(topic, n) for n in range(3)} | gone)
            assert found == {(topic, 0), (topic, 2)} | gone, "each is judged alone"
    finally:
        for producer in producers:
            producer.close()
        brokers.kill(f"broker-{leaders[1]}", signal.SIGCONT)
        wait_for_brokers(brokers)


def test_three_brokers_go_on_when_one_is_killed(three_brokers: LocalCluster) -> None:
    brokers, topic = three_brokers, f"replicated-{uuid4().hex}"
    create_topic(ConfluentBus(brokers.bootstrap), topic)
    produce(brokers, topic, b"with three")

    brokers.kill("broker-2")
    produce(brokers, topic, b"with two")
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "transactional.id": topic})
    producer.init_transactions(HANGS_S)
    producer.begin_transaction()
    send(producer, topic, b"in a transaction")
    producer.commit_transaction(HANGS_S)
    brokers.restart("broker-2")

    assert first_value(brokers, topic) == b"with three"
    assert all(broker["pid"] for broker in brokers.status()["brokers"])
    wait_for_brokers(brokers)


def quiet_admin(brokers: LocalCluster) -> AdminClient:
    """A client of the caller's. What outlives its test tries for ever to reach these brokers."""
    return AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})


def leader_of(topic: str, brokers: LocalCluster) -> int:
    """The broker. The client that was asked is gone, whatever keeps the frame of the test."""
    leader: int = quiet_admin(brokers).list_topics(topic).topics[topic].partitions[0].leader
    return leader


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers look for brokers that are gone all the time: sooner than librdkafka does."""
    monkeypatch.setattr(producer, "LOOK_AFTER_MS", 10)
    monkeypatch.setattr(producer, "LOOK_MS", 10)


@pytest.mark.usefixtures("looks")
def test_a_transaction_is_given_up_once_the_broker_that_it_waits_for_is_replaced(
    three_brokers: LocalCluster,
) -> None:
    """docs/design/frontier.md, A broker that dies."""
    brokers, id = three_brokers, f"id-{uuid4().hex}"
    bus = ConfluentBus(brokers.bootstrap)
    topic = create_topic(bus, f"t{uuid4().hex}")
    with closing(bus.transactional_producer(id)) as first:
        first.init_transactions(ELECTION_MS_MAX)
        first.begin()
        first.send(topic, key=None, value=b"lost", headers=[], partition=0)
        first.flush(ELECTION_MS_MAX)
        leader = leader_of(topic, brokers)
        brokers.kill(f"broker-{leader}")
        first.send(topic, key=None, value=b"lost, too", headers=[], partition=0)
        with pytest.raises(ProducerError, match=f"broker {leader} is gone") as given_up:
            first.flush(ELECTION_MS_MAX)
        assert given_up.value.is_broker_gone
        assert given_up.value.silent == {(topic, 0)}
    with closing(bus.transactional_producer(id)) as second:
        second.init_transactions(ELECTION_MS_MAX)
        second.begin()
        second.send(topic, key=None, value=b"once", headers=[], partition=0)
        second.flush(ELECTION_MS_MAX)
        second.commit(ELECTION_MS_MAX)
    assert first_value(brokers, topic) == b"once"
    brokers.start(f"broker-{leader}")
    wait_for_brokers(brokers)


@pytest.mark.usefixtures("looks")
def test_a_new_producer_asks_anew_once_the_coordinator_is_replaced(
    three_brokers: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, A broker that dies."""
    brokers, id = three_brokers, f"id-{uuid4().hex}"
    made: list[Producer] = []

    def noted(properties: dict[str, str]) -> Producer:
        made.append(client := Producer(properties))
        return client

    monkeypatch.setattr(producer, "Client", noted)
    bus = ConfluentBus(brokers.bootstrap)
    with closing(bus.transactional_producer(id)) as first:
        first.init_transactions(ELECTION_MS_MAX)
    coordinator = coordinator_of(id, quiet_admin(brokers))
    brokers.kill(f"broker-{coordinator}")
    made.clear()
    with closing(bus.transactional_producer(id)) as second:
        second.init_transactions(ELECTION_MS_MAX)
    assert len(made) > 1, "the first client would have asked again half a second later"
    brokers.start(f"broker-{coordinator}")
    wait_for_brokers(brokers)
