"""The port to a cluster that can be broken. `processes/` and `docker/` are there.

Parts are known by name: `node-1`, `broker-1`, `etcd` or `etcd-1`. What cannot be done raises
BackendError: a fault that was not struck must not look like one that was survived.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from chaos.network import Weather

if TYPE_CHECKING:
    from chaos.topics import Topics


class BackendError(RuntimeError):
    """The cluster, or this machine, cannot do that."""


class Backend(Protocol):
    """A cluster that is up. Calls return when it is done; waits are bounded."""

    name: str
    """Of the backend, for reports."""

    bootstrap: str
    """The brokers as users reach them: past the wires of the harness."""

    prefix: str
    """Of delayd's own topics."""

    topics: "Topics"
    """Makes and removes targets, and knows the coordinator of the master's transactions."""

    nodes: tuple[str, ...]
    brokers: tuple[str, ...]
    etcd: tuple[str, ...]
    """All members of etcd. Dead parts are named too, twins are not."""

    def etcd_leader(self) -> str:
        """The member that leads."""

    def master(self) -> str | None:
        """The node that reports that it delivers."""

    def status(self, node: str) -> Mapping[str, Any]:
        """A node's own status; empty if it does not answer."""

    # --- Processes

    def is_running(self, part: str) -> bool:
        """Frozen ones run."""

    def kill(self, part: str) -> None:
        """SIGKILL; returns when it is gone."""

    def terminate(self, part: str) -> None:
        """SIGTERM; returns when it is gone."""

    def freeze(self, part: str) -> None:
        """SIGSTOP."""

    def thaw(self, part: str) -> None:
        """SIGCONT."""

    def start(self, part: str, *, wait: bool = True) -> None:
        """With its data and address; waits until it answers."""

    # --- Brokers

    def move(self, broker: str) -> None:
        """Of one that does not run: it starts under another address, to which its name leads once
        it answers. Until then nodes look for it where it was, and nobody refuses there."""

    # --- Nodes

    def lose_data(self, part: str) -> None:
        """Of a part that does not run: what it had stored is gone."""

    def corrupt_slot(self, node: str) -> None:
        """Flip a byte of a slot that is to be delivered soon."""

    def fill_disk(self, node: str) -> None:
        """Leave less than a node needs."""

    def free_disk(self, node: str) -> None:
        """Undo it."""

    def fail_fsyncs(self, node: str, timeout_s: float) -> bool:
        """Each fsync fails, until the node has ended; False if it has not."""

    def set_clock(self, node: str, offset_ms: int, drift_ppm: int) -> None:
        """From now on it is off by so much, and goes wrong by so much."""

    def start_twin(self, node: str) -> str:
        """Another node under the same name, with a disk of its own; what it is known by here."""

    def remove_twin(self, twin: str) -> None:
        """Kill it and forget it."""

    # --- Operators

    def command(self, *arguments: str) -> int:
        """Run a command of delayd's on the cluster, with its key; its exit code."""

    # --- Upgrades

    def start_rules_switch(self, barriers_max: int | None = None) -> Callable[[float], int]:
        """Start `delayd upgrade rules`; with `barriers_max` it is killed (SIGKILL) when it has
        written so many. The result waits so many seconds for its end, and returns its exit code:
        minus the signal that killed it."""

    # --- Network

    def start_resharding(self, shards: int) -> Callable[[float], int]:
        """Run `delayd shards set`. Return who waits for its end, for so many seconds, and returns
        its code; after that time it is killed."""

    def weather(self, weather: Weather, nodes: Collection[str], to: Collection[str]) -> None:
        """On the wires from nodes to `kafka`, `etcd`; FAIR mends them."""

    # --- The end

    def audit(self) -> Mapping[str, Any]:
        """The report of `delayd audit`, with all nodes' exports."""

    def down(self) -> list[str]:
        """End everything; what is left running all the same."""
