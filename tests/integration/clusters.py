"""A delayd cluster of a test's own on the session's Kafka and etcd: topics, targets, nodes."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub exports none
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from nodes import CLUSTER_KEY, HANGS_S, NodeProcess, wait_for

from chaos.processes.startup import FEW_FETCHES
from delayd.bus.confluent import ConfluentBus
from delayd.client import Client
from delayd.cluster.topics import ID_MEMORY_MS, MAX_DELAY_MS_DEFAULT, create_topics
from delayd.dev.batch import Batch
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import brokers_seen_by, create_topic
from replication.settings import EXACTLY_ONCE, NAMED_BY_TOPIC

_numbers = itertools.count()

FAST: Mapping[str, object] = {"lease_ttl_s": 2, "idle_step_interval_ms": 1000, "export_hold_s": 5}
"""Settings for tests: etcd's shortest lease, and slots that are dropped within the test."""


BY_APPEND_TIME: Mapping[str, str] = {"message.timestamp.type": "LogAppendTime"}
"""The config of targets that tell when their records came."""

RETRY_DELAYS_MS = (3_000, 4_000)
"""Long enough to create a topic meanwhile, short enough to wait for the dead letter."""


@dataclass(frozen=True, slots=True)
class TestCluster:
    """Names and addresses; nothing runs yet."""

    __test__ = False
    name: str
    bootstrap: str
    etcd: str
    folder: Path

    @property
    def buffer(self) -> str:
        """The buffer topic."""
        return f"{self.name}-buffer"

    @property
    def dead(self) -> str:
        """The dead-letter topic."""
        return f"{self.name}-dead"

    @property
    def receipts(self) -> str:
        """The topic of receipts."""
        return f"{self.name}-receipts"

    def target(
        self, name: str, partitions: int = 4, config: Mapping[str, str] | None = None
    ) -> str:
        """A target topic of this test, made now."""
        return self.create_topic(f"target.{self.name}.{name}", partitions, config)

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create any topic. Return its name."""
        return create_topic(ConfluentBus(self.bootstrap), topic, partitions, config)

    def alter_topic(self, topic: str, name: str, value: str) -> None:
        """Change one setting of a topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(HANGS_S)

    def node(self, number: int, **settings: object) -> NodeProcess:
        """A node of the cluster, not started yet. With kafka-python it fetches as often as it does
        by default; so do the nodes of `delayd dev`."""
        is_quiet = settings.get("driver", "confluent") == "confluent"
        quiet = {"kafka": FEW_FETCHES} if is_quiet else {}
        return NodeProcess(
            self.folder,
            f"n{number}",
            cluster=self.name,
            bootstrap=self.bootstrap,
            etcd=self.etcd,
            settings={**FAST, **quiet, **settings},
        )

    def client(self) -> Client:
        """A client of this cluster."""
        return Client(self.bootstrap, buffer=self.buffer)


def make_cluster(
    kafka_and_etcd: LocalCluster,
    folder: Path,
    partitions: int = 3,
    *,
    retry_delays_ms: tuple[int, ...] = RETRY_DELAYS_MS,
    max_delay_ms: int = MAX_DELAY_MS_DEFAULT,
    id_memory_ms: int = ID_MEMORY_MS,
    guarantee: str = EXACTLY_ONCE,
    naming: int = NAMED_BY_TOPIC,
    shards: int = 1,
) -> TestCluster:
    """Initialise a cluster under a name of its own."""
    name = f"t{os.getpid()}x{next(_numbers)}"
    create_topics(
        ConfluentBus(kafka_and_etcd.bootstrap),
        cluster=name,
        cluster_key=CLUSTER_KEY,
        prefix=f"{name}-",
        partitions=partitions,
        max_delay_ms=max_delay_ms,
        retry_delays_ms=retry_delays_ms,
        id_memory_ms=id_memory_ms,
        guarantee=guarantee,
        naming=naming,
        shards=shards,
    )
    return TestCluster(name, kafka_and_etcd.bootstrap, kafka_and_etcd.etcd_url, folder)


def wait_for_brokers(cluster: LocalCluster) -> None:
    """Wait until each broker knows all of them again."""
    addresses = [broker["address"] for broker in cluster.status()["brokers"]]
    wait_for(
        lambda: all(brokers_seen_by(address) == len(addresses) for address in addresses),
        "all brokers know each other",
    )


def schedule(client: Client, batch: Batch) -> None:
    """Schedule a whole batch and wait until the broker has acknowledged it."""
    futures = [
        client.schedule_async(
            batch.topic(number),
            batch.value(number),
            key=batch.key(number),
            at=batch.due_ms(number),
            headers=batch.headers(number),
        )
        for number in range(batch.count)
    ]
    for future in futures:
        future.result(HANGS_S)
