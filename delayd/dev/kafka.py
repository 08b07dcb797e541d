"""The local Kafka: one KRaft process per broker, each broker and controller in one.

Not here: the jars (jars.py), delayd's own topics (delayd.cluster.topics).

Invariants: with three brokers every topic of the cluster, Kafka's own and its controllers' quorum
go on when any one broker is killed; with one broker nothing is replicated.
"""

import base64
import contextlib
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from delayd.bus import Bus
from delayd.bus.confluent import ConfluentBus
from delayd.dev.jars import kafka_archive
from delayd.dev.parts import Kind, Part
from delayd.dev.ports import LOOPBACK
from delayd.errors import DelaydError
from delayd.runtime.class_archive import options_with
from delayd.runtime.java import Java

INTERNAL_PARTITIONS = 5  # Kafka's default of 50 makes the first transaction slow
METADATA_TIMEOUT_MS = 2_000  # one try; the caller tries again
CONNECT_TIMEOUT_S = 0.5
TOPIC_TIMEOUT_MS = 30_000
HEAP_MB = {1: 512, 3: 320}

# The controllers notice a dead broker after this long (Kafka's default is 9 s). It spans several
# heartbeats, because a busy laptop starves a process for a second or two.
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 1_000

LOG4J = """<Configuration status="WARN" shutdownHook="disable">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d %p [%t] %c{1}: %m%n"/></Console>
  </Appenders>
  <Loggers>
    <Logger name="org.apache.kafka.common.config" level="warn"/>
    <Root level="info"><AppenderRef ref="out"/></Root>
  </Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """Where clients and where the other controllers reach one broker."""

    client: int
    controller: int


@dataclass(frozen=True, slots=True)
class Kafka:
    """The brokers with their ports, and per broker the command that prepares its empty data
    folder."""

    brokers: tuple[Part, ...]
    ports: Sequence[BrokerPorts]
    format_commands: tuple[tuple[str, ...], ...]


def plan_kafka(
    directory: Path,
    *,
    java: Java,
    jars: Path,
    ports: Sequence[BrokerPorts],
    settings: Mapping[str, str],
    listeners: Sequence[str] = (),
) -> Kafka:
    """Write the brokers' configuration into `directory`, and return how to start them.

    `settings` are further properties of every broker, such as an authorizer. `listeners` are
    further listeners of a single broker, `NAME://127.0.0.1:port`; their protocols are in the
    settings.
    """
    assert not listeners or len(ports) == 1, "brokers cannot share a listener"
    assert len(ports) in HEAP_MB, "one broker, or three that survive the loss of one"
    log4j = directory / "config" / "log4j2.xml"
    log4j.write_text(LOG4J)
    cluster_id = new_cluster_id()
    voters = ",".join(
        f"{number}@{LOOPBACK}:{port.controller}" for number, port in enumerate(ports, 1)
    )
    brokers, format_commands = [], []
    for number, port in enumerate(ports, 1):
        name = f"broker-{number}"
        data = directory / "data" / name
        data.mkdir(parents=True)
        properties = directory / "config" / f"{name}.properties"
        client = f"{LOOPBACK}:{port.client}"
        document = {
            **broker_settings(
                number,
                client=client,
                controller=f"{LOOPBACK}:{port.controller}",
                voters=voters,
                data=data,
                brokers=len(ports),
                listeners=listeners,
            ),
            **settings,
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in document.items()))
        jvm = _jvm(directory, name, java, jars, HEAP_MB[len(ports)], log4j)
        brokers.append(
            Part(
                kind=Kind.BROKER,
                name=name,
                command=(*jvm, "kafka.Kafka", str(properties)),
                env={},
                address=client,
                data=data,
                log=directory / "logs" / f"{name}.log",
            )
        )
        storage = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties))
        format_commands.append((*jvm, *storage))
    return Kafka(tuple(brokers), ports, tuple(format_commands))


def _jvm(
    directory: Path, broker: str, java: Java, jars: Path, heap_mb: int, log4j: Path
) -> tuple[str, ...]:
    """Return the command of a small Java, up to the class that it runs."""
    scratch = directory / "data" / f"{broker}-tmp"
    scratch.mkdir()
    return (
        str(java.path),
        *("-cp", f"{jars}/*"),
        *options_with(kafka_archive(java, jars)),
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        f"-XX:ErrorFile={directory}/logs/{broker}-crash.log",
        f"-Djava.io.tmpdir={scratch}",  # native libraries are unpacked there
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
    )


def create_topic(
    bus: Bus, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> str:
    """Create a topic, replicated as far as the brokers allow. Return its name."""
    with contextlib.closing(bus.cluster()) as kafka:
        kafka.create_topic(
            topic,
            partitions=partitions,
            replication_factor=replication_factor_for(kafka.broker_count(TOPIC_TIMEOUT_MS)),
            config=config or {},
            timeout_ms=TOPIC_TIMEOUT_MS,
        )
    return topic


def is_formatted(broker: Part) -> bool:
    """Return whether the broker's data folder was prepared to the end."""
    files = ("meta.properties", "bootstrap.checkpoint")
    return all((broker.data / file).is_file() for file in files)


def brokers_seen_by(address: str) -> int:
    """Return how many brokers one broker knows in the cluster, itself included; 0 if it is
    silent."""
    if not _accepts(address):
        return 0  # librdkafka would wait out its back-off
    bus = ConfluentBus(address, client_id="delayd-dev")
    with contextlib.suppress(DelaydError), contextlib.closing(bus.cluster()) as cluster:
        return cluster.broker_count(METADATA_TIMEOUT_MS)
    return 0


def replication_factor_for(brokers: int) -> int:
    """Return three copies where there are three brokers."""
    return min(3, brokers)


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S),
    ):
        return True
    return False


def new_cluster_id() -> str:
    """Return an id as Kafka wants it: 22 characters of 16 random bytes."""
    # Kafka would take an id that begins with a hyphen for an option.
    return "d" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def broker_settings(
    number: int,
    *,
    client: str,
    controller: str,
    voters: str,
    data: Path,
    brokers: int,
    listeners: Sequence[str] = (),
) -> dict[str, object]:
    """Return the properties of one broker. `client` and `controller` are its addresses,
    `host:port`; `voters` are those of all controllers, `number@host:port,...`; `listeners` are
    as for `plan_kafka`."""
    copies = replication_factor_for(brokers)
    copies_min = max(1, copies - 1)
    clients = ",".join((f"PLAINTEXT://{client}", *listeners))
    return {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"{clients},CONTROLLER://{controller}",
        "advertised.listeners": clients,
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": copies_min,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": copies_min,
        "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": copies_min,
        "share.coordinator.state.topic.num.partitions": INTERNAL_PARTITIONS,
        "group.initial.rebalance.delay.ms": 0,
        "broker.session.timeout.ms": SESSION_TIMEOUT_MS,
        "broker.heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
        "log.cleaner.dedupe.buffer.size": 16 << 20,  # the default takes a quarter of the heap
    }
