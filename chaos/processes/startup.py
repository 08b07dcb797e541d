"""How a cluster to be broken starts: as `delayd dev up` does it, and with a wire between each node
and each server if that is asked for.

A broker tells clients where all brokers are, by the listener through which they came. So each node
has a listener of its own at each broker, whose advertised address is that node's wire to it.

Invariant: the state is saved in the cluster's folder after each process that was started, so that
`LocalCluster` can go on with it, and `down` ends it, whatever happens here.
"""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chaos.network.wires import ETCD, KAFKA, Wire
from chaos.processes import disks
from chaos.processes.clocked_node import FILE_VARIABLE as CLOCK_VARIABLE
from chaos.processes.clocked_node import write_clock
from chaos.processes.sabotaged_node import FILE_VARIABLE as SABOTAGE_VARIABLE
from chaos.scenario import Needs, Scenario
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.topics import create_topics
from delayd.config.cluster_key import new_cluster_key
from delayd.dev.etcd import plan_etcd
from delayd.dev.folder import CONTENTS, cluster_key_file
from delayd.dev.jars import cache_directory, kafka_jars
from delayd.dev.kafka import BrokerPorts, Kafka, plan_kafka, replication_factor_for
from delayd.dev.nodes import CLUSTER_NAME, plan_node
from delayd.dev.parts import Part, State
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.dev.report import bootstrap_of
from delayd.dev.supervision import environment_for
from delayd.runtime.java import find_java

NODES: Final = 3
PARTITIONS: Final = 4
LEASE_TTL_S: Final = 3
ROOT: Final = Path(__file__).parents[2]
"""Of the checkout: what runs `chaos` must find it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that will run, and the wires."""

    kafka: Kafka
    state: State
    wires: tuple[Wire, ...]
    cluster_key: str


def lacking(scenario: Scenario) -> str | None:
    """Return why processes cannot run it; None if they can."""
    return "processes have one etcd" if scenario.needs.etcd_members > 1 else None


def plan_all(directory: Path, needs: Needs, sabotage_file: Path | None) -> Plan:
    """Write all configuration. DelaydErrors if this machine lacks something. What is broken on
    purpose in each node, the file says if there is one (sabotaged_node.py)."""
    java = find_java(os.environ)
    environment = environment_for({}, directory)
    jars = kafka_jars(
        java, cache_directory(os.environ), env=environment, progress=lambda _arrived: None
    )
    for content in CONTENTS:
        (directory / content).mkdir()
    wires_count = NODES * (2 * needs.brokers + 1) if needs.is_wired else 0
    ports = iter(pick_ports(2 * needs.brokers + 2 + NODES + wires_count))
    broker_ports = [BrokerPorts(next(ports), next(ports)) for _ in range(needs.brokers)]
    kafka = plan_kafka(directory, java=java, jars=jars, ports=broker_ports, settings={})
    etcd = plan_etcd(directory, client_port=next(ports), peer_port=next(ports))
    names = [f"node-{number}" for number in range(1, NODES + 1)]
    wires: tuple[Wire, ...] = ()
    if needs.is_wired:
        wires = (
            *_wire_brokers(directory, broker_ports, names, lambda: next(ports)),
            *(
                Wire(name, ETCD, next(ports), etcd.address.removeprefix("http://"))
                for name in names
            ),
        )
    cluster_key = new_cluster_key()
    cluster_key_file(directory).write_text(cluster_key)
    nodes = []
    for number, name in enumerate(names, 1):
        bootstrap = _ends(wires, name, KAFKA) or bootstrap_of(State(kafka.brokers))
        etcd_end = _ends(wires, name, ETCD)
        nodes.append(
            plan_one_node(
                directory,
                needs,
                number,
                port=next(ports),
                bootstrap=bootstrap,
                etcd_url=f"http://{etcd_end}" if etcd_end else etcd.address,
                cluster_key=cluster_key,
                sabotage_file=sabotage_file,
            )
        )
    return Plan(kafka, State((*kafka.brokers, etcd, *nodes)), wires, cluster_key)


def plan_one_node(
    directory: Path,
    needs: Needs,
    number: int,
    *,
    port: int,
    bootstrap: str,
    etcd_url: str,
    cluster_key: str,
    sabotage_file: Path | None,
    name: str | None = None,
) -> Part:
    """A node; `name` is what it calls itself, if not node-<number>."""
    known_as = f"node-{number}"
    data = directory / "data" / known_as
    settings: dict[str, object] = {
        "lease_ttl_s": LEASE_TTL_S,
        "idle_step_interval_ms": 1_000,
    }
    if needs.has_small_disks:
        data = data / "wheel"
        disks.mount(data.parent)
        settings |= {"data_dir": str(data), "disk_free_min_bytes": disks.FREE_MIN_BYTES}
    if name is not None:
        settings["node"] = name
    assert not (needs.is_clocked and sabotage_file), "one launcher at a time"
    launcher, env = None, {"PYTHONPATH": str(ROOT)}
    if needs.is_clocked:
        launcher = "clocked_node"
        env[CLOCK_VARIABLE] = str(clock_file(directory, known_as))
        write_clock(clock_file(directory, known_as), 0, 0)
    elif sabotage_file is not None:
        launcher = "sabotaged_node"
        env[SABOTAGE_VARIABLE] = str(sabotage_file)
    part = plan_node(
        directory,
        number,
        port=port,
        bootstrap=bootstrap,
        etcd_url=etcd_url,
        cluster_key=cluster_key,
        settings=settings,
        env=env,
    )
    if launcher is not None:
        start = part.command.index("delayd.cli")
        command = (sys.executable, "-m", f"chaos.processes.{launcher}")
        part = replace(part, command=(*command, *part.command[start + 1 :]))
    return replace(part, data=data)


def create_own(
    bootstrap: str, *, brokers: int, cluster_key: str, retry_delays_ms: tuple[int, ...]
) -> None:
    """Create delayd's own topics, whatever the brokers run in."""
    create_topics(
        ConfluentBus(bootstrap, client_id="delayd-chaos"),
        replication_factor=replication_factor_for(brokers),
        partitions=PARTITIONS,
        cluster=CLUSTER_NAME,
        cluster_key=cluster_key,
        retry_delays_ms=retry_delays_ms,
    )


def clock_file(directory: Path, node: str) -> Path:
    """What its clock is set with."""
    return directory / "config" / f"{node}.clock"


def _wire_brokers(
    directory: Path, brokers: list[BrokerPorts], nodes: list[str], next_port: Callable[[], int]
) -> Iterable[Wire]:
    """A listener for each node at each broker; a later property replaces an earlier one."""
    for number, broker in enumerate(brokers, 1):
        wires = []
        listeners = [f"PLAINTEXT://{LOOPBACK}:{broker.client}"]
        advertised = list(listeners)
        listeners.append(f"CONTROLLER://{LOOPBACK}:{broker.controller}")
        protocols = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
        for node in nodes:
            listener = node.replace("-", "").upper()
            server, end = f"{LOOPBACK}:{next_port()}", next_port()
            listeners.append(f"{listener}://{server}")
            advertised.append(f"{listener}://{LOOPBACK}:{end}")
            protocols.append(f"{listener}:PLAINTEXT")
            wires.append(Wire(node, KAFKA, end, server))
        with (directory / "config" / f"broker-{number}.properties").open("a") as properties:
            properties.write(f"listeners={','.join(listeners)}\n")
            properties.write(f"advertised.listeners={','.join(advertised)}\n")
            properties.write(f"listener.security.protocol.map={','.join(protocols)}\n")
        yield from wires


def _ends(wires: Iterable[Wire], node: str, to: str) -> str:
    return ",".join(f"{LOOPBACK}:{w.port}" for w in wires if (w.node, w.to) == (node, to))
