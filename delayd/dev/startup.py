"""The start of a whole cluster, step by step.

Not here: starting and awaiting one part (supervision.py), the folder (folder.py).

Invariant: the state is saved after each process that was started.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from delayd.bus.confluent import ConfluentBus
from delayd.cluster.topics import create_topics
from delayd.config.cluster_key import new_cluster_key
from delayd.dev.etcd import plan_etcd
from delayd.dev.folder import CONTENTS, cluster_key_file
from delayd.dev.jars import JARS_EXPECTED, KAFKA_VERSION, kafka_jars
from delayd.dev.kafka import BrokerPorts, Kafka, is_formatted, plan_kafka
from delayd.dev.nodes import (
    CLUSTER_NAME,
    master_of,
    plan_node,
    virtual_time_file,
    virtual_variables,
    write_api_token,
)
from delayd.dev.parts import Kind, LocalClusterError, Part, State, last_words
from delayd.dev.ports import pick_ports
from delayd.dev.processes import spawn, wait_until_gone
from delayd.dev.supervision import environment_for, start_part, wait_for, wait_until_answering
from delayd.runtime.java import find_java
from delayd.runtime.virtual_time import VirtualTime
from replication.settings import RETRY_DELAYS_MS, RULES_VERSION

FORMAT_TIMEOUT_S = 60.0  # 0.8 s on an idle machine
MASTER_TIMEOUT_S = 90.0
VIRTUAL_NODE_SETTINGS: Final[Mapping[str, object]] = {
    "idle_step_interval_ms": 100,
    "checkpoint_interval_ms": 100,
}
"""How soon after the clock was moved the master's `now` follows (`replication.now`), and how soon a
listing shows what is pending: each moment to which the clock is moved waits for both."""
PARTITIONS = 4
"""Of the buffer, or the next multiple of the number of shards."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of `up`. `broker_settings` go into each broker's properties,
    `broker_listeners` are further listeners of a single broker, `node_settings` go into each
    node's configuration file. Without nodes there are Kafka and etcd and no topics."""

    nodes: int = 3
    brokers: int = 1
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    broker_listeners: tuple[str, ...] = ()
    node_settings: Mapping[str, object] = field(default_factory=dict)
    shards: int = 1
    """Of the delayd cluster, when it is made."""
    virtual: bool = False
    """A test moves its clock (`delayd.dev.advancing`)."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Kafka and etcd as they will run, the key of their delayd cluster, and ports for the rest."""

    kafka: Kafka
    etcd: Part
    cluster_key: str
    ports: Iterator[int]


def start_everything(
    directory: Path,
    options: ClusterOptions,
    *,
    save: Callable[[State], None],
    progress: Callable[[str], None],
) -> None:
    """Start all parts in an empty folder, and return when a master delivers.

    If this raises, the caller ends what was started.
    """
    servers = plan_servers(directory, options, progress=progress)
    settings = options.node_settings
    if options.virtual:
        VirtualTime.create(virtual_time_file(directory))
        settings = {**VIRTUAL_NODE_SETTINGS, **settings}
    nodes = [
        plan_node(
            directory,
            number,
            port=next(servers.ports),
            bootstrap=State(servers.kafka.brokers).bootstrap,
            etcd_url=servers.etcd.address,
            cluster_key=servers.cluster_key,
            settings=settings,
            env=virtual_variables(directory),
        )
        for number in range(1, options.nodes + 1)
    ]
    start_planned(
        directory,
        servers,
        nodes,
        shards=options.shards,
        virtual=options.virtual,
        save=save,
        progress=progress,
    )


def plan_servers(
    directory: Path,
    options: ClusterOptions,
    *,
    more_ports: int = 0,
    progress: Callable[[str], None] = lambda _sentence: None,
) -> Servers:
    """Write the configuration of Kafka and etcd into an empty folder. Their `ports` are one for
    each node, and `more_ports`. DelaydErrors if this machine lacks something."""
    java = find_java(os.environ)
    jars = kafka_jars(
        java,
        env=environment_for({}, directory),
        progress=lambda arrived: progress(
            f"fetching Kafka {KAFKA_VERSION}, once: {arrived} of {JARS_EXPECTED} jars"
        ),
    )
    for folder in CONTENTS:
        (directory / folder).mkdir()
    ports = iter(pick_ports(2 * options.brokers + 2 + options.nodes + more_ports))
    kafka = plan_kafka(
        directory,
        java=java,
        jars=jars,
        ports=[BrokerPorts(next(ports), next(ports)) for _ in range(options.brokers)],
        settings=options.broker_settings,
        listeners=options.broker_listeners,
    )
    etcd = plan_etcd(directory, client_port=next(ports), peer_port=next(ports))
    cluster_key = new_cluster_key()
    cluster_key_file(directory).write_text(cluster_key)
    write_api_token(directory)
    return Servers(kafka, etcd, cluster_key, ports)


def start_planned(
    directory: Path,
    servers: Servers,
    nodes: Iterable[Part],
    *,
    retry_delays_ms: tuple[int, ...] = RETRY_DELAYS_MS,
    rules_version: int | None = None,
    shards: int = 1,
    virtual: bool = False,
    save: Callable[[State], None],
    progress: Callable[[str], None] = lambda _sentence: None,
) -> None:
    """Start what was planned, and return when a master delivers. Without nodes no topic is
    created. `rules_version` is given in tests only, which begin with an older one."""
    state = State((*servers.kafka.brokers, servers.etcd, *nodes))

    def start(kind: Kind) -> None:
        nonlocal state
        for part in state.of(kind):
            state = state.with_part(start_part(part, directory=directory))
            save(state)

    save(state)
    progress("starting Kafka and etcd")
    start(Kind.ETCD)
    _format(servers.kafka, directory)
    start(Kind.BROKER)
    for part in (*state.of(Kind.ETCD), *state.of(Kind.BROKER)):
        wait_until_answering(part, state)
    if not state.of(Kind.NODE):
        return
    progress("creating the topics")
    created = create_topics(
        ConfluentBus(state.bootstrap, client_id="delayd-dev"),
        cluster=CLUSTER_NAME,
        cluster_key=servers.cluster_key,
        partitions=shards * -(-PARTITIONS // shards),
        shards=shards,
        virtual=virtual,
        retry_delays_ms=retry_delays_ms,
        rules_version=RULES_VERSION if rules_version is None else rules_version,
    )
    if virtual:
        VirtualTime(virtual_time_file(directory)).belong_to(created.frontier.topic_id)
    progress("starting the nodes")
    start(Kind.NODE)
    progress("waiting for a master that delivers")
    wait_until_delivering(state)


def start_again(
    kept: State,
    directory: Path,
    *,
    save: Callable[[State], None],
    progress: Callable[[str], None] = lambda _sentence: None,
) -> None:
    """Start a cluster that was down, with its data and ports; return when a master delivers."""
    state = kept
    save(state)
    for kinds, doing in (
        ((Kind.ETCD, Kind.BROKER), "starting Kafka and etcd with the data of before"),
        ((Kind.NODE,), "starting the nodes"),
    ):
        progress(doing)
        started = [part for kind in kinds for part in state.of(kind)]
        for part in started:
            state = state.with_part(start_part(part, directory=directory))
            save(state)
        if kinds != (Kind.NODE,):
            for part in started:
                wait_until_answering(state.part(part.name), state)
    if state.of(Kind.NODE):
        progress("waiting for a master that delivers")
        wait_until_delivering(state)


def wait_until_delivering(state: State) -> None:
    """Wait until a node is master and all nodes answer. Raises as `wait_for`."""
    wait_for(
        lambda: master_of(state) is not None,
        watched=state.of(Kind.NODE),
        timeout_s=MASTER_TIMEOUT_S,
        what="no master delivered",
    )
    for part in state.of(Kind.NODE):
        wait_until_answering(part, state)


def _format(kafka: Kafka, directory: Path) -> None:
    """Prepare the brokers' data folders, all at once."""
    log = directory / "logs" / "format.log"
    environment = environment_for({}, directory)
    formatting = [spawn(command, env=environment, log=log) for command in kafka.format_commands]
    wait_until_gone(formatting, int(FORMAT_TIMEOUT_S * 1000))
    for broker in kafka.brokers:
        if not is_formatted(broker):
            raise LocalClusterError(
                f"the data folder of {broker.name} could not be prepared: {last_words(log)}",
                remedy=f"see {log}",
            )
