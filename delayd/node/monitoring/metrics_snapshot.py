"""All figures of a node as one frozen value, of which `GET /metrics` is made.

`delayd.node.monitoring.node_view` fills it in when somebody asks. Each part is true when it is
read, and parts may be of different moments. Not here: names and units of metrics
(`delayd.node.monitoring.metrics`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from delayd.node.delivery.counters import StepFigures


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """One look at a node. Times are Unix ms, ages and margins ms."""

    node: str
    cluster: str
    driver: str
    master: str | None
    """The node that held the leader key when it was last read."""
    is_master: bool
    election: str
    term: int
    step: int
    """Of the newest frontier that this node has read."""
    is_ready: bool
    lets_in: bool
    """Do the brokers answer, and let this node in, as far as it has asked?"""
    etcd_failures: int
    leaderships_won: int
    leaderships_ended: Mapping[str, int]
    """By reason."""
    lease_margin_ms: int | None
    """None on a follower."""
    steps: StepFigures
    delivery_lag_ms: int
    failing_targets: int
    smoothing_ms: Mapping[str, int]
    """By target with a rate, how far its last deferral is ahead of this node's clock."""
    ingested: int
    rejects: Mapping[str, int]
    """By reason."""
    unread: tuple[int | None, ...]
    """Offsets between this node and the end of the buffer, by partition; None while unknown."""
    ingest_delay_ms: int | None
    """How old the first record of the last batch was; None before the first batch."""
    log_ahead_ms: int
    """How far log time is ahead of this node's clock; 0 if it is not."""
    pending: int
    slots: int
    frames: int
    wheel_bytes: int
    loop_ages_ms: Mapping[str, int]
    checkpoint_age_ms: int
    disk_free_bytes: int | None
    """As of the last checkpoint; None before the first one."""
    disk_free_min_bytes: int
