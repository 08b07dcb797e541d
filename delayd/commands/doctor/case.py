"""What the doctor looks at: a cluster, what it stands on, and what both said of themselves."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from delayd.bus import Bus
from delayd.bus.raw import RawLog
from delayd.cluster.admin_client import get, url_of
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.status import Problem
from delayd.config.security import Security
from delayd.coordination import Coordination
from delayd.runtime.clock import Clock
from replication.settings import Settings


@dataclass(frozen=True, slots=True)
class Means:
    """How to reach everything."""

    bus: Bus
    raw: RawLog
    coordination: Coordination | None
    bootstrap: str
    etcd: tuple[str, ...]
    security: Security
    file: Mapping[str, Any]
    """The settings file, where one is named: it may be a node's own."""
    clock: Clock
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster that has a frontier."""

    means: Means
    seen: SeenFrontier
    brokers: int
    nodes: Sequence[Mapping[str, Any]] = ()
    """As `delayd status` lists them."""
    problems: Sequence[Problem] = ()
    pending: Mapping[str, Any] = field(default_factory=dict)
    """As a node that is ready answers `GET /pending`; empty if there is none."""

    @property
    def settings(self) -> Settings:
        """Return what was fixed when the cluster was made."""
        return self.seen.record.settings

    @property
    def targets(self) -> list[str]:
        """Return targets for which something is pending, as far as a node names them."""
        return [name for name in self.pending.get("topics", ()) if name != "other"]


def pending_of(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is pending, as the first node says that is ready; empty if none does."""
    for node in nodes:
        answer = get(f"{url_of(node['admin'])}/pending") if node.get("ready") else None
        if answer is not None and (fields := answer.fields()) is not None:
            return fields
    return {}


def broker_count(means: Means) -> int:
    """Return how many brokers there are. KafkaUnreachableError."""
    with closing(means.bus.cluster()) as kafka:
        return kafka.broker_count(means.timeout_ms)
