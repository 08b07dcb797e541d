"""The brokers of a benchmark: those that were named, or a local Kafka for as long as it takes.

Invariant: whatever was started here is ended here.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from delayd.bus import Bus
from delayd.bus.overrides import of_role
from delayd.cluster.connect import open_bus
from delayd.config.security import Security
from delayd.dev.cluster import LocalCluster
from delayd.dev.etcd import plan_etcd
from delayd.dev.interrupts import interrupts_ignored, interrupts_raised
from delayd.dev.parts import State
from delayd.dev.ports import pick_ports
from delayd.dev.processes import processes_of
from delayd.dev.startup import ClusterOptions
from delayd.dev.supervision import end_processes, start_part, wait_until_answering

PARTITIONS: Final = 4
"""Of the buffer and of each target."""

TOPIC_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Brokers:
    """Kafka, an etcd beside it, and how to get in."""

    bootstrap: str
    etcd_url: str
    security: Security

    @property
    def client(self) -> dict[str, str]:
        """Return the settings of a bare consumer or producer."""
        return {
            "bootstrap.servers": self.bootstrap,
            **of_role(self.security.properties(), "consumer"),
            **of_role(self.security.properties(), "producer"),
        }

    @property
    def bus(self) -> Bus:
        """Return a bus for questions and for creating topics."""
        return open_bus(self.bootstrap, dict(self.security.properties()))

    @property
    def node_settings(self) -> dict[str, object]:
        """Return the security settings of a node's configuration file."""
        return {
            key: _plain(value)
            for key in sorted(self.security.model_fields_set)
            if key.startswith("kafka")
            and not key.endswith("password_file")
            and (value := getattr(self.security, key)) is not None
        }


@contextlib.contextmanager
def brokers_at(bootstrap: str | None, security: Security) -> Iterator[Brokers]:
    """Yield the brokers that were named, with an etcd of the benchmark's own; or both of its
    own."""
    with (
        interrupts_raised(),
        tempfile.TemporaryDirectory(prefix="delayd-bench-") as folder,
        contextlib.ExitStack() as opened,
    ):
        if bootstrap is None:
            cluster = opened.enter_context(LocalCluster(Path(folder), ClusterOptions(nodes=0)))
            yield Brokers(cluster.bootstrap, cluster.etcd_url, Security.none())
        else:
            etcd_url = opened.enter_context(_etcd(Path(folder)))
            yield Brokers(bootstrap, etcd_url, security)


@contextlib.contextmanager
def _etcd(directory: Path) -> Iterator[str]:
    (directory / "data").mkdir()
    (directory / "logs").mkdir()
    client_port, peer_port = pick_ports(2)
    part = plan_etcd(directory, client_port=client_port, peer_port=peer_port)
    try:
        part = start_part(part, directory=directory)
        wait_until_answering(part, State((part,)))
        yield part.address
    finally:
        with interrupts_ignored():
            end_processes(lambda: processes_of(directory))


def _plain(value: Any) -> object:
    reveal = getattr(value, "get_secret_value", None)
    return value if reveal is None else reveal()
