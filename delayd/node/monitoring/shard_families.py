"""The metrics of each shard, of which a cluster has one unless it was given more."""

from typing import Final

from delayd.node.monitoring.metric_family import Family, Kind
from delayd.node.monitoring.node_view import NodeView


def _led(of: NodeView) -> list[tuple[tuple[str, ...], float]]:
    led = frozenset(of.delivery.led)
    return [((str(shard),), float(shard in led)) for shard in range(of.shards)]


SHARD_FAMILIES: Final = (
    Family(
        "delayd_shard_led",
        Kind.GAUGE,
        ("shard",),
        "1 if this node delivers the shard, else 0. All nodes together: 1, and for a moment 0 or 2"
        " when another node takes over.",
        _led,
    ),
    Family(
        "delayd_shard_lag_seconds",
        Kind.GAUGE,
        ("shard",),
        "How far the cursor of a shard is behind this node's clock, by its newest frontier that the"
        " node has read. delayd_delivery_lag_seconds is that of the shard that is furthest behind.",
        lambda of: [((str(shard),), ms / 1000) for shard, ms in enumerate(of.shard_lags_ms())],
    ),
)
"""Part of `FAMILIES`."""
