"""MirrorMaker 2 as one process, from the jars of the Kafka that `delayd dev up` runs.

Copies topics of one cluster under their own names into another one, as docs/guides/second-site.md
says: only what is committed, and each record once.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodes import HANGS_S

from delayd.dev.jars import JarBundle, jars_of
from delayd.dev.kafka import LOG4J
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.runtime.java import find_java

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


class MirrorMaker:
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
        folder.mkdir(parents=True)
        java = find_java(os.environ)
        jars = jars_of(MIRROR, java, env=os.environ)
        (folder / "log4j2.xml").write_text(LOG4J)
        settings = {**settings_of(first, second, topics, pick_ports(1)[0]), **(others or {})}
        properties = folder / "mirror.properties"
        properties.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
        self._log = folder / "log"
        self._command = [
            str(java.path),
            *("-cp", f"{jars}/*"),
            *("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
            f"-Djava.io.tmpdir={folder}",
            f"-Dlog4j2.configurationFile={(folder / 'log4j2.xml').as_uri()}",
            "org.apache.kafka.connect.mirror.MirrorMaker",
            str(properties),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text() if self._log.exists() else ""

    def start(self) -> "MirrorMaker":
        """Start it; it copies after some seconds."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(HANGS_S)
