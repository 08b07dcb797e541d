"""Getting: another node's wheel, for a node that cannot start on its own, or only slowly.

A node fetches when its wheel is damaged, or when the buffer was trimmed beyond what it has ingested
(an empty directory has ingested nothing). `on_damage = "stop"` has it end instead, for a person to
look at. And it fetches when that is clearly faster than a replay (`choosing.py`).

Source: docs/design/storage.md, "Snapshots".
"""

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from delayd.bus import Bus
from delayd.cluster.fetching import Fetch, FetchView, Want
from delayd.config.cluster_key import proof_key
from delayd.config.node import NodeConfig
from delayd.coordination import Coordination
from delayd.errors import CorruptionError, DiskError
from delayd.node.snapshots.donor import rate_and_rest
from delayd.runtime.clock import Clock
from delayd.wheel.draft import Tell, finish, is_under_way, noted_damage
from replication.settings import Settings


def ready_directory(directory: Path) -> None:
    """Make the wheel in a data directory the one that is meant, before it is opened.

    Raises DiskError if another process copies one there, CorruptionError if a node has met damage
    in it.
    """
    if is_under_way(directory):
        raise DiskError(
            f"another process copies a wheel into {directory}",
            remedy="wait until `delayd wheel fetch` has ended",
        )
    finish(directory)
    if (why := noted_damage(directory)) is not None:
        raise CorruptionError(
            f"the wheel in {directory} cannot be used: when it ran last, the node found: {why}",
            remedy="try `delayd wheel repair`, or `delayd wheel fetch` for another node's wheel",
        )


def new_fetch(
    config: NodeConfig,
    bus: Bus,
    coordination: Coordination,
    settings: Settings,
    clock: Clock,
    donor: str | None = None,
    tell: Tell = lambda stage, done, total: None,
    *,
    among: Collection[str] | None = None,
) -> Fetch:
    """Return the fetch of a wheel for this node, from one donor or from any. With `among` from one
    of these only, and the node could go on with the wheel that it has."""

    def starts() -> Mapping[int, int]:
        with closing(bus.cluster()) as kafka:
            timeout_ms = int(config.connect_timeout_s * 1000)
            return kafka.start_offsets(settings.buffer.name, timeout_ms)

    want = Want(
        node=config.node,
        directory=config.data_dir,
        settings=settings,
        proof_key=proof_key(config.cluster_key.get_secret_value()),
        spare_bytes=config.disk_free_min_bytes,
        starts=starts,
        donor=donor,
        is_spare=among is not None,
    )

    def members() -> Mapping[str, str]:
        found = coordination.members()
        return found if among is None else {n: found[n] for n in found.keys() & among}

    return Fetch(want, members, clock, tell)


def shown(view: FetchView, why: str, took_ms: int) -> dict[str, Any]:
    """Return what /status says of a fetch."""
    left_bytes = max(0, view.bytes - view.done_bytes)
    return {
        "why": why,
        "donor": view.donor,
        "stage": view.stage,
        "done_bytes": view.done_bytes,
        "bytes": view.bytes,
        "age_ms": took_ms,
        **rate_and_rest(view.done_bytes, left_bytes, took_ms),
        "problems": view.problems,
    }
