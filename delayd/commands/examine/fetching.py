"""Fetching by hand: another node's wheel in place of a stopped node's."""

from contextlib import closing, nullcontext
from pathlib import Path

from delayd.cluster.connect import open_bus, open_coordination
from delayd.cluster.fetching import Fetched
from delayd.cluster.topics import load_settings
from delayd.config.cluster_key import check_key
from delayd.config.node import NodeConfig
from delayd.node.snapshots.fetching import new_fetch
from delayd.runtime.clock import SystemClock
from delayd.wheel.draft import Tell, finish
from delayd.wheel.layout import Layout
from delayd.wheel.stopped import locked


def plan(directory: Path, donor: str | None) -> str:
    """Return what `fetch` would do."""
    whose = "another node of the cluster" if donor is None else f"the node {donor}"
    if not _holds_wheel(directory):
        return f"would copy the wheel of {whose} into {directory}; add --yes"
    return (
        f"would copy the wheel of {whose} into {directory}, and move the wheel that is there to "
        f"{Layout(str(directory)).replaced}, or remove it if there is no room for both; add --yes"
    )


def fetch(node: NodeConfig, donor: str | None, tell: Tell) -> Fetched:
    """Copy, verify and install. Raises DiskError if the node runs, SnapshotError, and what keeps a
    node from its cluster."""
    timeout_ms = int(node.connect_timeout_s * 1000)
    bus = open_bus(node.bootstrap, node.security.properties(), driver=node.driver)
    settings = load_settings(bus, node.cluster, node.prefix, timeout_ms).record.settings
    check_key(node.cluster_key.get_secret_value(), settings)
    finish(node.data_dir)
    is_stopped = locked(node.data_dir) if _holds_wheel(node.data_dir) else nullcontext()
    with closing(open_coordination(node.etcd, node.cluster, node.security)) as coordination:
        coordination.enter(settings.realm)
        coordination.check_reachable(timeout_ms)
        with is_stopped:
            found = new_fetch(node, bus, coordination, settings, SystemClock(), donor, tell)
            return found.run(node.connect_timeout_s)


def _holds_wheel(directory: Path) -> bool:
    return Path(Layout(str(directory)).format).exists()
