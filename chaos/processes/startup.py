"""The start of a cluster to be broken: as `delayd dev up` does it, and if a scenario needs it with
a wire between each node and each server.

A broker tells clients where all brokers are, by the listener through which they came. So each node
has a listener of its own at each broker, whose advertised address is that node's wire to it.

Invariant: it saves the state in the cluster's folder after each process that it starts. So
`LocalCluster` can go on with it, and `down` ends it, whatever happens here.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chaos.bridges import EVENTS, RULE
from chaos.network import ETCD, KAFKA, Wire
from chaos.processes import harm
from chaos.processes.addresses import BrokerAddresses
from chaos.processes.clocked_node import FILE_VARIABLE as CLOCK_VARIABLE
from chaos.processes.clocked_node import write_clock
from chaos.processes.sabotaged_node import FILE_VARIABLE as SABOTAGE_VARIABLE
from chaos.scenario import Needs
from delayd.dev.nodes import plan_node
from delayd.dev.parts import Part, State
from delayd.dev.ports import LOOPBACK
from delayd.dev.startup import ClusterOptions, Servers, plan_servers
from delayd.runtime import native

NODES: Final = ("node-1", "node-2", "node-3")
IN_PYTHON: Final = 3
"""The node that runs without the native library, unless the environment says what all run: so that
nodes of both paths succeed each other, and hold the same."""
LEASE_TTL_S: Final = 3
FEW_FETCHES: Final = {"consumer.fetch.wait.max.ms": "100"}
"""Nodes that wait for records ask ten times a second. With the default of 10 ms, three nodes and
their idle broker keep 0.3 of a processor busy, and other parts of a test need it."""
ROOT: Final = Path(__file__).parents[2]
"""The root of the checkout: a process that imports `chaos` must find it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that will run, and the wires. The sabotage file, if there is one, says what is
    broken on purpose in each node (sabotaged_node.py)."""

    directory: Path
    needs: Needs
    sabotage_file: Path | None
    servers: Servers
    wires: tuple[Wire, ...]
    addresses: BrokerAddresses | None = None

    def node(self, number: int, port: int, called: str | None = None) -> Part:
        """Write the configuration of a node; `called` is its own name for itself, if not
        node-<number>."""
        name = f"node-{number}"
        data = self.directory / "data" / name
        etcd_end = self._ends(name, ETCD)
        settings: dict[str, object] = {
            "lease_ttl_s": LEASE_TTL_S,
            "idle_step_interval_ms": 1_000,
            "kafka": FEW_FETCHES,
            "node": called or name,
        }
        if self.needs.has_bridge:
            settings["cancel_on"] = [{"topic": EVENTS, **RULE}]
        if self.needs.has_small_disks:
            data = data / "wheel"
            harm.mount_disk(data.parent)
            settings |= {"data_dir": str(data), "disk_free_min_bytes": harm.FREE_MIN_BYTES}
        assert not (self.needs.is_clocked and self.sabotage_file), "one launcher at a time"
        launcher, env = "delayd.commands.cli", {"PYTHONPATH": str(ROOT)}
        if number == IN_PYTHON and native.SWITCH not in os.environ:
            env[native.SWITCH] = "0"
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
            bootstrap=self._bootstrap_of(name),
            etcd_url=f"http://{etcd_end}" if etcd_end else self.servers.etcd.address,
            cluster_key=self.servers.cluster_key,
            settings=settings,
            env=env,
        )
        after = part.command.index("delayd.commands.cli") + 1
        command = (sys.executable, "-m", launcher, *part.command[after:])
        if self.addresses is not None:
            command = self.addresses.command(command)
        return replace(part, command=command, data=data)

    def clock_file(self, node: str) -> Path:
        """Return the file that sets a node's clock."""
        return self.directory / "config" / f"{node}.clock"

    def _bootstrap_of(self, node: str) -> str:
        if self.addresses is not None:
            return self.addresses.bootstrap
        return self._ends(node, KAFKA) or State(self.servers.kafka.brokers).bootstrap

    def _ends(self, node: str, to: str) -> str:
        ends = (wire.port for wire in self.wires if (wire.node, wire.to) == (node, to))
        return ",".join(f"{LOOPBACK}:{port}" for port in ends)


def plan_all(
    directory: Path, needs: Needs, sabotage_file: Path | None
) -> tuple[Plan, tuple[Part, ...]]:
    """Write all configuration. Return the plan and the nodes. Raises as `plan_servers`."""
    wires_count = len(NODES) * (2 * needs.brokers + 1) if needs.is_wired else 0
    options = ClusterOptions(nodes=len(NODES), brokers=needs.brokers)
    assert not (needs.is_wired and needs.has_moving_brokers), "one way to a broker at a time"
    named_count = needs.brokers if needs.has_moving_brokers else 0
    servers = plan_servers(directory, options, more_ports=wires_count + named_count)
    addresses = None
    if named_count:
        ports = [next(servers.ports) for _ in range(named_count)]
        addresses = BrokerAddresses(directory, servers, ports)
    wires: list[Wire] = []
    if needs.is_wired:
        wires += _wire_brokers(directory, servers)
        etcd = servers.etcd.address.removeprefix("http://")
        wires += [Wire(name, ETCD, next(servers.ports), etcd) for name in NODES]
    plan = Plan(directory, needs, sabotage_file, servers, tuple(wires), addresses)
    return plan, tuple(plan.node(n, next(servers.ports)) for n, _ in enumerate(NODES, 1))


def _wire_brokers(directory: Path, servers: Servers) -> Iterator[Wire]:
    """Give each broker a listener for each node; a later property replaces an earlier one."""
    ports = servers.ports
    for number, broker in enumerate(servers.kafka.ports, 1):
        wires = {
            node.replace("-", "").upper(): Wire(
                node, KAFKA, next(ports), f"{LOOPBACK}:{next(ports)}"
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
