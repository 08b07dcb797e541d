"""How a whole cluster starts, step by step, and how processes are ended.

Not here: the folder, its lock and its state file's place (cluster.py).

Invariants: every wait has a deadline and ends at once, with the log's last line, when the awaited
process dies; the state is saved after each process that was started.
"""

import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from delayd.bus.confluent import ConfluentBus
from delayd.clock import SystemClock
from delayd.dev.errors import LocalClusterError
from delayd.dev.etcd import etcd_is_healthy, plan_etcd
from delayd.dev.jars import JARS_EXPECTED, KAFKA_VERSION, cache_directory, kafka_jars
from delayd.dev.java import find_java
from delayd.dev.kafka import (
    BrokerPorts,
    Kafka,
    brokers_seen_by,
    is_formatted,
    plan_kafka,
    replication_factor_for,
)
from delayd.dev.nodes import CLUSTER_NAME, NODE_VARIABLES, ask_node, plan_node
from delayd.dev.parts import Kind, Part, State, last_words
from delayd.dev.ports import pick_ports
from delayd.dev.processes import (
    CLUSTER_VARIABLE,
    ProcessIdentity,
    is_stopped,
    send,
    spawn,
    wait_for_an_exit,
    wait_until_gone,
)
from delayd.dev.report import bootstrap_of, master_of
from delayd.topics import create_topics

POLL_MS = 50
FORMAT_TIMEOUT_S = 60.0  # 0.8 s on an idle machine
ANSWER_TIMEOUT_S = 90.0  # Kafka needs 2 s on an idle machine; a loaded laptop is slow
MASTER_TIMEOUT_S = 90.0
GENTLE_TIMEOUT_MS = 5_000  # a node's step is at most 200 ms; then it resigns
KILL_TIMEOUT_MS = 10_000
KILL_ROUNDS_MAX = 3  # a process may start another one while the list is made


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What `up` builds. `node_settings` go into each node's configuration file, `node_env` (by
    node name) into its environment. Without nodes there are Kafka and etcd and no topics."""

    nodes: int = 3
    brokers: int = 1
    partitions: int = 4
    node_settings: Mapping[str, object] = field(default_factory=dict)
    node_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def start_everything(
    directory: Path,
    options: ClusterOptions,
    *,
    save: Callable[[State], None],
    progress: Callable[[str], None],
) -> None:
    """Starts all parts in an empty folder and returns when a master delivers.

    If it raises, the caller ends what was started.
    """
    java = find_java(os.environ)
    jars = kafka_jars(
        java,
        cache_directory(os.environ),
        env=_environment({}, directory),
        progress=lambda arrived: progress(
            f"fetching Kafka {KAFKA_VERSION}, once: {arrived} of {JARS_EXPECTED} jars"
        ),
    )
    for folder in ("config", "data", "logs"):
        (directory / folder).mkdir()
    ports = iter(pick_ports(2 * options.brokers + 2 + options.nodes))
    kafka = plan_kafka(
        directory,
        java=java,
        jars=jars,
        ports=[BrokerPorts(next(ports), next(ports)) for _ in range(options.brokers)],
    )
    etcd = plan_etcd(directory, client_port=next(ports), peer_port=next(ports))
    bootstrap = bootstrap_of(State(kafka.brokers))
    nodes = tuple(
        plan_node(
            directory,
            number,
            port=next(ports),
            bootstrap=bootstrap,
            etcd_url=etcd.address,
            settings=options.node_settings,
            env=options.node_env.get(f"node-{number}", {}),
        )
        for number in range(1, options.nodes + 1)
    )
    state = State((*kafka.brokers, etcd, *nodes))

    def start(parts: Iterable[Part]) -> None:
        nonlocal state
        for part in parts:
            state = state.with_part(start_part(part, directory=directory))
            save(state)

    save(state)
    progress("starting Kafka and etcd")
    start([etcd])
    _format(kafka, directory)
    start(kafka.brokers)
    for part in (*state.of(Kind.ETCD), *state.of(Kind.BROKER)):
        wait_until_answering(part, state)
    if options.nodes == 0:
        return
    progress("creating the topics")
    _create_topics(bootstrap, options)
    progress("starting the nodes")
    start(nodes)
    progress("waiting for a master that delivers")
    _wait(
        lambda: master_of(state) is not None,
        watched=state.of(Kind.NODE),
        timeout_s=MASTER_TIMEOUT_S,
        what="no master delivered",
    )
    for part in state.of(Kind.NODE):
        wait_until_answering(part, state)


def start_part(part: Part, *, directory: Path) -> Part:
    """Starts the part's process and returns at once. Raises LocalClusterError if it cannot."""
    try:
        process = spawn(part.command, env=_environment(part.env, directory), log=part.log)
    except OSError as problem:
        raise LocalClusterError(f"cannot start {part.name}: {problem}") from problem
    return replace(part, process=process)


def wait_until_answering(part: Part, state: State) -> None:
    """Waits until a started part does its work: a broker when it knows itself and all other
    running brokers to be in the cluster. Raises LocalClusterError if it ends or stays silent."""
    brokers = sum(broker.alive() for broker in state.of(Kind.BROKER))

    def answers() -> bool:
        if part.kind is Kind.BROKER:
            return brokers_seen_by(part.address) >= brokers
        if part.kind is Kind.ETCD:
            return etcd_is_healthy(part.address)
        answer = ask_node(part.address)
        return answer is not None and answer.ready

    _wait(answers, watched=[part], timeout_s=ANSWER_TIMEOUT_S, what=f"{part.name} did not answer")


def end_processes(
    find: Callable[[], Collection[ProcessIdentity]], *, gently: Iterable[Part] = ()
) -> None:
    """Ends whatever `find` finds, until it finds nothing. Parts in `gently` may first end in
    good order. Raises LocalClusterError if something survives SIGKILL."""
    asked = [part.process for part in gently if part.process and not is_stopped(part.process)]
    wait_until_gone(
        [process for process in asked if send(process, signal.SIGTERM)], GENTLE_TIMEOUT_MS
    )
    for _ in range(KILL_ROUNDS_MAX):
        found = find()
        if not found:
            return
        for process in found:
            send(process, signal.SIGKILL)
        wait_until_gone(found, KILL_TIMEOUT_MS)
    if found := find():
        pids = ", ".join(str(process.pid) for process in found)
        raise LocalClusterError(f"these processes survived SIGKILL: {pids}", remedy="see dmesg")


def _format(kafka: Kafka, directory: Path) -> None:
    """Prepares the brokers' data folders, all at once."""
    log = directory / "logs" / "format.log"
    environment = _environment({}, directory)
    formatting = [spawn(command, env=environment, log=log) for command in kafka.format_commands]
    wait_until_gone(formatting, int(FORMAT_TIMEOUT_S * 1000))
    for broker in kafka.brokers:
        if not is_formatted(broker):
            raise LocalClusterError(
                f"the data folder of {broker.name} could not be prepared: {last_words(log)}",
                remedy=f"see {log}",
            )


def _create_topics(bootstrap: str, options: ClusterOptions) -> None:
    create_topics(
        ConfluentBus(bootstrap, client_id="delayd-dev"),
        replication_factor=replication_factor_for(options.brokers),
        partitions=options.partitions,
        cluster=CLUSTER_NAME,
    )


def _wait(
    condition: Callable[[], bool], *, watched: Collection[Part], timeout_s: float, what: str
) -> None:
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + int(timeout_s * 1000)
    while not condition():
        for part in watched:
            if not part.alive():
                raise LocalClusterError(
                    f"{part.name} ended while starting: {last_words(part.log)}",
                    remedy=f"see {part.log}",
                )
        if clock.monotonic_ms() > deadline_ms:
            logs = " and ".join(str(part.log) for part in watched)
            raise LocalClusterError(f"{what} within {timeout_s:.0f} s", remedy=f"see {logs}")
        wait_for_an_exit([part.process for part in watched if part.process], POLL_MS)


def _environment(variables: Mapping[str, str], directory: Path) -> dict[str, str]:
    """What a process of this cluster gets: what the starter has, and the cluster's mark.

    Without what would outvote this cluster's own settings: etcd takes ETCD_* for settings, a node
    DELAYD_BOOTSTRAP and the like, which a person may have exported for the command line.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("ETCD_") and key not in NODE_VARIABLES
    }
    return {**inherited, **variables, CLUSTER_VARIABLE: str(directory)}
