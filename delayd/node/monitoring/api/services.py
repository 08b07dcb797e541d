"""What the routes work with: this node's view, Kafka, etcd, and a client that is made when the
first change comes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock
from typing import Any, Final

from delayd.bus import Bus
from delayd.client import Client
from delayd.client.connection import Connection, connect
from delayd.client.redriving import Redriver
from delayd.cluster.ordering import Cluster
from delayd.cluster.status import status_report
from delayd.cluster.topic_checks import RECORD_MARGIN_BYTES
from delayd.cluster.topics import topic_names
from delayd.config.api_tokens import ApiTokens
from delayd.config.node import NodeConfig
from delayd.coordination import Coordination
from delayd.node.monitoring.api.access import Access, Rates
from delayd.node.monitoring.api.desk import Desk
from delayd.node.monitoring.api.kept_audits import KeptAudits
from delayd.node.monitoring.api.looking import ClusterLook
from delayd.node.monitoring.api.tickets import Tickets
from delayd.node.monitoring.node_view import NodeView

READ_THREADS: Final = 2
"""For what reads disk, Kafka or other nodes."""
WRITE_THREADS: Final = 8
"""For what waits for Kafka, and perhaps for a verdict."""
TIMEOUT_MS: Final = 15_000
"""Of one look at Kafka."""
ACK_TIMEOUT_MS: Final = 15_000
"""How long a request waits for Kafka: a node that ends waits for those under way."""


class Requests:
    """The node's own client. Thread safe."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._connection: Connection | None = None

    @property
    def client(self) -> Client:
        """Return the client. ConfigError for what the library refuses."""
        return Client.over(self._connected())

    @property
    def redriver(self) -> Redriver:
        """Return a redriver over the same connection."""
        return Redriver.over(self._connected())

    def _connected(self) -> Connection:
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection

    def close(self) -> None:
        """Wait for what is in flight, and release it. Idempotent."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@dataclass(frozen=True)
class Services:
    """See the top of this file."""

    node: NodeView
    bus: Bus
    coordination: Coordination
    access: Access
    requests: Requests
    reads: Desk = field(default_factory=lambda: Desk("reads", READ_THREADS))
    writes: Desk = field(default_factory=lambda: Desk("writes", WRITE_THREADS))
    shelf: Desk = field(default_factory=lambda: Desk("audits", 1))
    """The one thread that reads and writes reports of audits: it keeps nobody else waiting."""

    @property
    def ordered(self) -> Cluster:
        """The cluster, for orders under this node's key."""
        config = self.node.config
        key = config.cluster_key.get_secret_value()
        return Cluster(self.bus, self.node.clock, config.cluster, config.prefix, key, TIMEOUT_MS)

    @cached_property
    def audits(self) -> KeptAudits:
        """The reports of audits, for the thread of `shelf`."""
        config, wheel = self.node.config, self.node.replica.wheel
        return KeptAudits(
            config.data_dir / "audits",
            config.cluster,
            self.node.clock,
            lambda: wheel.free_bytes() - config.disk_free_min_bytes,
        )

    @cached_property
    def tickets(self) -> Tickets:
        """Leave to see a report, for browsers."""
        return Tickets(self.node.clock)

    @cached_property
    def look(self) -> ClusterLook:
        """The cluster, for all who ask."""
        return ClusterLook(self.reads, self.node.clock, lambda: report_of(self))

    def stop(self) -> None:
        """Begin nothing more, and release the client."""
        self.reads.stop()
        self.writes.stop()
        self.shelf.stop()
        self.requests.close()


def report_of(services: Services) -> dict[str, Any]:
    """Return the report of `delayd status`, as this node sees the cluster. Takes a thread."""
    config = services.node.config
    return status_report(
        services.bus,
        services.coordination,
        services.node.clock,
        cluster=config.cluster,
        prefix=config.prefix,
        timeout_ms=TIMEOUT_MS,
    )


def services_of(
    config: NodeConfig, node: NodeView, bus: Bus, coordination: Coordination
) -> Services:
    """Return the services of a node by its settings. ConfigError for a file of tokens that is
    wrong."""
    file = config.api_tokens_file
    names = topic_names(config.prefix)
    access = Access(
        ApiTokens() if file is None else ApiTokens.read(file),
        Rates(node.clock, config.api_requests_per_s),
        anonymous_reads=config.api_anonymous_reads,
    )
    record_bytes_max = node.replica.settings.record_bytes_max + RECORD_MARGIN_BYTES
    connecting = partial(
        connect,
        config.bootstrap,
        buffer=names.buffer,
        receipts=names.receipts,
        security=config.security,
        ack_timeout_ms=ACK_TIMEOUT_MS,
        # librdkafka's own bound may be below what the cluster takes.
        overrides={"producer.message.max.bytes": record_bytes_max},
    )
    return Services(node, bus, coordination, access, Requests(connecting))
