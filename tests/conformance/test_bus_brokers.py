"""Three brokers, of which one dies: every bus goes on with the others."""

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from delayd.bus import Bus
from delayd.bus.confluent import ConfluentBus
from delayd.bus.kafka_python import KafkaPythonBus
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions

pytestmark = pytest.mark.real

TIMEOUT_MS = 15_000
CLIENTS = 4
"""Each believes in another controller, by chance."""


def test_questions_are_answered_while_the_broker_that_was_asked_before_is_dead(
    tmp_path: Path,
) -> None:
    """docs/design/frontier.md, Targets: one broker away holds up nobody."""
    topic = f"t{uuid4().hex}"
    with LocalCluster(tmp_path, ClusterOptions(nodes=0, brokers=3)) as brokers:
        buses: list[Bus] = [ConfluentBus(brokers.bootstrap), KafkaPythonBus(brokers.bootstrap)]
        clusters = [bus.cluster() for bus in buses for _ in range(CLIENTS)]
        try:
            clusters[0].create_topic(
                topic, partitions=3, replication_factor=3, config={}, timeout_ms=30_000
            )
            for cluster in clusters:
                assert cluster.survey([topic], TIMEOUT_MS).states.keys() == {topic}
            # A client of librdkafka sends such questions to the controller that it knows.
            admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
            controller = admin.describe_cluster().result(TIMEOUT_MS / 1000).controller.id
            brokers.kill(f"broker-{controller}")
            for cluster in clusters:
                assert cluster.survey([topic], TIMEOUT_MS).states.keys() == {topic}
                assert cluster.end_offsets(topic, TIMEOUT_MS, committed=True).keys() == {0, 1, 2}
        finally:
            for cluster in clusters:
                cluster.close()
