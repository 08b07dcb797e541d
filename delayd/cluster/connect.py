"""Connecting to a cluster: the drivers of Kafka and etcd, made from settings.

Connecting is not being a node: commands, the client and the bench connect without loading one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from delayd.bus import Bus
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.lookup import admin_ports, known_of_id, pending_of
from delayd.cluster.status import status_report
from delayd.cluster.topics import topic_names
from delayd.config.security import Security
from delayd.coordination.etcd import EtcdCoordination
from delayd.runtime.clock import SystemClock

ETCD_TIMEOUT_MS = 1_000


def open_bus(
    bootstrap: str,
    kafka: dict[str, str] | None = None,
    record_bytes_max: int | None = None,
    driver: str = "confluent",
) -> Bus:
    """The data plane's driver; `record_bytes_max` is the largest record that it must produce."""
    if driver == "kafka-python":
        from delayd.bus.kafka_python import KafkaPythonBus  # 0.3 s that few commands need

        return KafkaPythonBus(bootstrap, overrides=kafka, record_bytes_max=record_bytes_max)
    return ConfluentBus(bootstrap, overrides=kafka or {}, record_bytes_max=record_bytes_max)


def open_coordination(
    endpoints: Sequence[str], cluster: str, security: Security
) -> EtcdCoordination:
    """The door to etcd. ConfigError if endpoints and security contradict each other."""
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


def _text(file: Path | None) -> str | None:
    return None if file is None else str(file)


def cluster_status(
    bootstrap: str,
    etcd: Sequence[str],
    security: Security,
    *,
    cluster: str,
    prefix: str,
    timeout_ms: int,
) -> dict[str, Any]:
    """What `delayd status` shows; without etcd endpoints only what Kafka knows."""
    coordination = open_coordination(etcd, cluster, security) if etcd else None
    try:
        return status_report(
            open_bus(bootstrap, security.properties()),
            coordination,
            SystemClock(),
            cluster=cluster,
            prefix=prefix,
            timeout_ms=timeout_ms,
        )
    finally:
        if coordination is not None:
            coordination.close()


def cluster_members(
    etcd: Sequence[str], cluster: str, security: Security, timeout_ms: int
) -> dict[str, str]:
    """The nodes that etcd knows now: name to JSON with `admin`. Raises EtcdUnreachableError."""
    coordination = open_coordination(etcd, cluster, security)
    try:
        coordination.check_reachable(timeout_ms)
        return coordination.members()
    finally:
        coordination.close()


def look_up_id(
    id: str,
    bootstrap: str,
    security: Security,
    *,
    etcd: Sequence[str],
    admin: str | None,
    cluster: str,
    prefix: str,
    timeout_ms: int,
) -> dict[str, Any] | None:
    """What `delayd show` shows; nodes are found through etcd unless one is named."""
    return known_of_id(
        id,
        open_bus(bootstrap, security.properties()),
        _nodes_to_ask(security, etcd, admin, cluster),
        SystemClock(),
        buffer=topic_names(prefix).buffer,
        timeout_ms=timeout_ms,
    )


def look_up_pending(
    security: Security, *, etcd: Sequence[str], admin: str | None, cluster: str
) -> dict[str, Any]:
    """What `delayd pending` shows; nodes are found through etcd unless one is named."""
    return pending_of(_nodes_to_ask(security, etcd, admin, cluster))


def _nodes_to_ask(
    security: Security, etcd: Sequence[str], admin: str | None, cluster: str
) -> tuple[str, ...]:
    coordination = open_coordination(etcd, cluster, security) if etcd else None
    try:
        return admin_ports(coordination, admin)
    finally:
        if coordination is not None:
            coordination.close()
