"""MirrorMaker 2 as one process, from the jars of the Kafka that `delayd dev up` runs.

Copies topics of one cluster under their own names into another one, as docs/guides/second-site.md
says: only what is committed, and each record once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from java_processes import JavaProcess

from delayd.dev.jars import JarBundle
from delayd.dev.ports import LOOPBACK, pick_ports

MIRROR: Final = JarBundle(
    "mirror", ("connect-mirror", "connect-runtime"), ("connect-mirror", "connect-runtime")
)

TRANSACTION_MS: Final = 10_000
"""So long a transaction stays open that a killed MirrorMaker leaves."""


def settings_of(first: str, second: str, topics: str, port: int) -> dict[str, str]:
    """Return the properties; `topics` is a regular expression."""
    internal = (
        "replication.factor", "checkpoints.topic.replication.factor",
        "heartbeats.topic.replication.factor", "offset-syncs.topic.replication.factor",
        "config.storage.replication.factor", "offset.storage.replication.factor",
        "status.storage.replication.factor",
    )  # fmt: skip
    return {
        "clusters": "first, second",
        "first.bootstrap.servers": first,
        "second.bootstrap.servers": second,
        "first->second.enabled": "true",
        "second->first.enabled": "false",
        "topics": topics,
        "groups": "",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "first.consumer.isolation.level": "read_committed",
        "second.exactly.once.source.support": "enabled",
        "second.producer.transaction.timeout.ms": str(TRANSACTION_MS),
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://{LOOPBACK}:{port}",
        "refresh.topics.interval.seconds": "1",
        "sync.topic.acls.enabled": "false",
        "sync.topic.configs.enabled": "true",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        **dict.fromkeys(internal, "1"),
    }


class MirrorMaker(JavaProcess):
    """The process, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        first: str,
        second: str,
        topics: str,
        others: Mapping[str, str] | None = None,
    ) -> None:
        """`others`: settings that differ."""
        settings = {**settings_of(first, second, topics, pick_ports(1)[0]), **(others or {})}
        super().__init__(folder, MIRROR, "org.apache.kafka.connect.mirror.MirrorMaker", settings)
