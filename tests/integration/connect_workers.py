"""A worker of Kafka Connect with Debezium's connector for PostgreSQL, at the version of the Kafka
that `delayd dev up` runs."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from java_processes import JavaProcess
from nodes import HANGS_S, wait_for

from delayd.dev.jars import JarBundle, jars_of
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.runtime.java import find_java

DEBEZIUM_VERSION: Final = "3.6.1.Final"
CONNECT: Final = JarBundle(
    f"connect-debezium-{DEBEZIUM_VERSION}",
    ("connect-runtime",),
    ("connect-runtime", "connect-transforms"),
    (("io.debezium", "debezium-connector-postgres", DEBEZIUM_VERSION),),
)


def connect_jars() -> Path:
    """The folder of its jars, fetched if need be."""
    return jars_of(CONNECT, find_java(os.environ), env=os.environ)


class ConnectWorker(JavaProcess):
    """The process. It is the only one of its group."""

    def __init__(self, folder: Path, bootstrap: str, settings: Mapping[str, str]) -> None:
        self._url = f"http://{LOOPBACK}:{pick_ports(1)[0]}"
        ours = {
            "bootstrap.servers": bootstrap,
            "listeners": self._url,
            "plugin.discovery": "service_load",
            # A worker that was killed is out of its group after that.
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "2000",
            "scheduled.rebalance.max.delay.ms": "0",
        }
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        super().__init__(folder, CONNECT, main, {**settings, **ours})

    def create(self, name: str, config: Mapping[str, str]) -> None:
        """Make or change a connector, as soon as the worker takes it."""
        asked = urllib.request.Request(
            f"{self._url}/connectors/{name}/config",
            json.dumps(config).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        said: list[str] = []

        def is_taken() -> bool:
            assert self.runs, self.log[-3000:]
            try:
                with urllib.request.urlopen(asked, timeout=HANGS_S):
                    return True
            except urllib.error.HTTPError as error:
                with error:
                    said.append(error.read().decode())
                assert error.code in (404, 409, 500, 503), said[-1]  # it starts, or rebalances
                return False
            except OSError:
                return False

        wait_for(is_taken, f"Connect takes {name}")
