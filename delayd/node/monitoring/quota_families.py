"""The metrics of targets that have a limit, by the newest frontier that the node has read."""

from typing import Final

from delayd.node.monitoring.metric_family import Family, Kind
from replication.quotas import RATE_WINDOW_S

QUOTA_FAMILIES: Final = (
    Family(
        "delayd_quota_pending",
        Kind.GAUGE,
        ("topic",),
        "Messages pending for a target with a limit, by the newest frontier.",
        lambda of: [((topic,), quota.pending) for topic, quota in of.quotas().items()],
    ),
    Family(
        "delayd_quota_max_pending",
        Kind.GAUGE,
        ("topic",),
        "The limit of a target: how many messages may be pending, by the newest frontier; 0: any"
        " number.",
        lambda of: [((topic,), quota.max_pending) for topic, quota in of.quotas().items()],
    ),
    Family(
        "delayd_quota_rate",
        Kind.GAUGE,
        ("topic",),
        "Requests a second that were taken for a target with a rate, as a mean of 10 s, by the"
        " newest frontier.",
        lambda of: [
            ((topic,), quota.taken / RATE_WINDOW_S)
            for topic, quota in of.quotas().items()
            if quota.rate
        ],
    ),
    Family(
        "delayd_quota_max_rate",
        Kind.GAUGE,
        ("topic",),
        "The limit of a target: how many requests a second are taken, by the newest frontier.",
        lambda of: [((topic,), q.rate) for topic, q in of.quotas().items() if q.rate],
    ),
    Family(
        "delayd_quota_full",
        Kind.GAUGE,
        ("topic",),
        "1 while requests for a target are refused as over-quota, by the newest frontier, else 0.",
        lambda of: [((topic,), int(quota.is_full)) for topic, quota in of.quotas().items()],
    ),
)
"""Part of `FAMILIES`."""
