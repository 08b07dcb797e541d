"""Connecting to a cluster: the drivers of Kafka and etcd, made from settings.

Connecting is not being a node: commands, audits and benchmarks connect without loading one. A
driver's library is imported when the driver is made.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from delayd.bus import Bus
from delayd.coordination import Coordination
from delayd.runtime.virtual_time import virtual_time_of

if TYPE_CHECKING:
    from delayd.bus.raw import RawLog
    from delayd.config.security import Security
    from delayd.coordination.etcd import EtcdCoordination

ETCD_TIMEOUT_MS = 1_000

REACH_TIMEOUT_MS = 5_000
"""How long a command waits for etcd: longer than an election of its own leader."""


def open_bus(
    bootstrap: str,
    kafka: dict[str, str] | None = None,
    record_bytes_max: int | None = None,
    driver: str = "confluent",
) -> Bus:
    """Return the data plane's driver; `record_bytes_max` is the largest record it must produce. In
    a process of a virtual cluster its times are virtual."""
    bus = _open_driver(bootstrap, kafka, record_bytes_max, driver)
    virtual = virtual_time_of(os.environ)
    if virtual is None:
        return bus
    from delayd.bus.virtual import VirtualBus

    return VirtualBus(bus, virtual)


def _open_driver(
    bootstrap: str, kafka: dict[str, str] | None, record_bytes_max: int | None, driver: str
) -> Bus:
    if driver == "kafka-python":
        from delayd.bus.kafka_python import KafkaPythonBus

        return KafkaPythonBus(bootstrap, overrides=kafka, record_bytes_max=record_bytes_max)
    from delayd.bus.confluent import ConfluentBus

    return ConfluentBus(bootstrap, overrides=kafka or {}, record_bytes_max=record_bytes_max)


def open_raw_log(bootstrap: str, kafka: dict[str, str]) -> "RawLog":
    """Return the reader of what lies on the brokers, whatever the data plane's driver is."""
    from delayd.bus.kafka_python.log import take_lines
    from delayd.bus.kafka_python.raw_log import KafkaPythonRawLog
    from delayd.bus.kafka_python.settings import Settings, for_connections

    take_lines()
    return KafkaPythonRawLog(Settings(bootstrap, "delayd", for_connections(kafka), None).admin())


def open_coordination(
    endpoints: Sequence[str], cluster: str, security: "Security"
) -> "EtcdCoordination":
    """Return the driver of etcd. ConfigError if endpoints and security contradict each other."""
    from delayd.coordination.etcd import EtcdCoordination

    password = security.etcd_password
    return EtcdCoordination(
        endpoints,
        cluster,
        timeout_ms=ETCD_TIMEOUT_MS,
        ca_file=_text(security.etcd_ca_file),
        cert_file=_text(security.etcd_cert_file),
        key_file=_text(security.etcd_key_file),
        user=security.etcd_user,
        password=None if password is None else password.get_secret_value(),
    )


@contextmanager
def coordination_if_named(
    endpoints: Sequence[str], cluster: str, security: "Security", *, must_answer: bool = False
) -> Iterator[Coordination | None]:
    """Yield the driver of etcd, closed at the end; None without endpoints.

    With `must_answer`, EtcdUnreachableError if no endpoint answers in a few seconds.
    """
    coordination = open_coordination(endpoints, cluster, security) if endpoints else None
    try:
        if coordination is not None and must_answer:
            coordination.check_reachable(REACH_TIMEOUT_MS)
        yield coordination
    finally:
        if coordination is not None:
            coordination.close()


def _text(file: Path | None) -> str | None:
    return None if file is None else str(file)
