"""How a cluster to be broken starts: as `delayd dev up` does it, and with a wire between each node
and each server if that is asked for.

A broker tells clients where all brokers are, by the listener through which they came. So each node
has a listener of its own at each broker, whose advertised address is that node's wire to it.

Invariant: the state is saved in the cluster's folder after each process that was started, so that
`LocalCluster` can go on with it, and `down` ends it, whatever happens here.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chaos.network import ETCD, KAFKA, Wire
from chaos.processes import harm
from chaos.processes.clocked_node import FILE_VARIABLE as CLOCK_VARIABLE
from chaos.processes.clocked_node import write_clock
from chaos.processes.sabotaged_node import FILE_VARIABLE as SABOTAGE_VARIABLE
from chaos.scenario import Needs
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.topics import create_topics
from delayd.config.cluster_key import new_cluster_key
from delayd.dev.etcd import plan_etcd
from delayd.dev.folder import CONTENTS, cluster_key_file
from delayd.dev.jars import kafka_jars
from delayd.dev.kafka import BrokerPorts, Kafka, plan_kafka, replication_factor_for
from delayd.dev.nodes import CLUSTER_NAME, plan_node
from delayd.dev.parts import Part, State
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.dev.supervision import environment_for
from delayd.runtime.java import find_java

NODES: Final = ("node-1", "node-2", "node-3")
PARTITIONS: Final = 4
LEASE_TTL_S: Final = 3
ROOT: Final = Path(__file__).parents[2]
"""Of the checkout: what runs `chaos` must find it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that will run, and the wires. What is broken on purpose in each node, the file
    says if there is one (sabotaged_node.py)."""

    directory: Path
    needs: Needs
    sabotage_file: Path | None
    kafka: Kafka
    etcd: Part
    wires: tuple[Wire, ...]
    cluster_key: str

    def node(self, number: int, port: int, called: str | None = None) -> Part:
        """Write the configuration of a node; `called` is what it calls itself, if not
        node-<number>."""
        name = f"node-{number}"
        data = self.directory / "data" / name
        etcd_end = self._ends(name, ETCD)
        settings: dict[str, object] = {
            "lease_ttl_s": LEASE_TTL_S,
            "idle_step_interval_ms": 1_000,
            "node": called or name,
        }
        if self.needs.has_small_disks:
            data = data / "wheel"
            harm.mount_disk(data.parent)
            settings |= {"data_dir": str(data), "disk_free_min_bytes": harm.FREE_MIN_BYTES}
        assert not (self.needs.is_clocked and self.sabotage_file), "one launcher at a time"
        launcher, env = "delayd.cli", {"PYTHONPATH": str(ROOT)}
        if self.needs.is_clocked:
            launcher = "chaos.processes.clocked_node"
            env[CLOCK_VARIABLE] = str(self.clock_file(name))
            write_clock(self.clock_file(name), 0, 0)
        elif self.sabotage_file is not None:
            launcher = "chaos.processes.sabotaged_node"
            env[SABOTAGE_VARIABLE] = str(self.sabotage_file)
        part = plan_node(
            self.directory,
            number,
            port=port,
            bootstrap=self._ends(name, KAFKA) or State(self.kafka.brokers).bootstrap,
            etcd_url=f"http://{etcd_end}" if etcd_end else self.etcd.address,
            cluster_key=self.cluster_key,
            settings=settings,
            env=env,
        )
        after = part.command.index("delayd.cli") + 1
        command = (sys.executable, "-m", launcher, *part.command[after:])
        return replace(part, command=command, data=data)

    def clock_file(self, node: str) -> Path:
        """What its clock is set with."""
        return self.directory / "config" / f"{node}.clock"

    def _ends(self, node: str, to: str) -> str:
        ends = (wire.port for wire in self.wires if (wire.node, wire.to) == (node, to))
        return ",".join(f"{LOOPBACK}:{port}" for port in ends)


def plan_all(directory: Path, needs: Needs, sabotage_file: Path | None) -> tuple[Plan, State]:
    """Write all configuration. DelaydErrors if this machine lacks something."""
    java = find_java(os.environ)
    environment = environment_for({}, directory)
    jars = kafka_jars(java, env=environment)
    for content in CONTENTS:
        (directory / content).mkdir()
    wires_count = len(NODES) * (2 * needs.brokers + 1) if needs.is_wired else 0
    ports = iter(pick_ports(2 * needs.brokers + 2 + len(NODES) + wires_count))
    broker_ports = [BrokerPorts(next(ports), next(ports)) for _ in range(needs.brokers)]
    kafka = plan_kafka(directory, java=java, jars=jars, ports=broker_ports, settings={})
    etcd = plan_etcd(directory, client_port=next(ports), peer_port=next(ports))
    wires: list[Wire] = []
    if needs.is_wired:
        wires += _wire_brokers(directory, broker_ports, lambda: next(ports))
        server = etcd.address.removeprefix("http://")
        wires += [Wire(name, ETCD, next(ports), server) for name in NODES]
    cluster_key = new_cluster_key()
    cluster_key_file(directory).write_text(cluster_key)
    plan = Plan(directory, needs, sabotage_file, kafka, etcd, tuple(wires), cluster_key)
    nodes = [plan.node(number, next(ports)) for number in range(1, len(NODES) + 1)]
    return plan, State((*kafka.brokers, etcd, *nodes))


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


def _wire_brokers(
    directory: Path, brokers: Iterable[BrokerPorts], next_port: Callable[[], int]
) -> Iterator[Wire]:
    """A listener for each node at each broker; a later property replaces an earlier one."""
    for number, broker in enumerate(brokers, 1):
        wires = {
            node.replace("-", "").upper(): Wire(
                node, KAFKA, next_port(), f"{LOOPBACK}:{next_port()}"
            )
            for node in NODES
        }
        plain = f"PLAINTEXT://{LOOPBACK}:{broker.client}"
        properties = {
            "listeners": [
                plain,
                f"CONTROLLER://{LOOPBACK}:{broker.controller}",
                *(f"{listener}://{wire.server}" for listener, wire in wires.items()),
            ],
            "advertised.listeners": [
                plain,
                *(f"{listener}://{LOOPBACK}:{wire.port}" for listener, wire in wires.items()),
            ],
            "listener.security.protocol.map": [
                f"{listener}:PLAINTEXT" for listener in ("PLAINTEXT", "CONTROLLER", *wires)
            ],
        }
        with (directory / "config" / f"broker-{number}.properties").open("a") as file:
            file.writelines(f"{key}={','.join(said)}\n" for key, said in properties.items())
        yield from wires.values()
