"""Orders to limit how many messages are pending for a target topic, and what is used of that.

1. The rules of all partitions know quotas: a topic is full in each of them, or in none.
2. The order is written to the home of its topic, under the key by which the master signs.
3. A frontier record passes it: what its quotas say is what came of it.

The topic need not exist: what is pending for it counts all the same.

Source: docs/design/quotas.md.
"""

from collections.abc import Mapping
from typing import Any, Final

from delayd.cluster.one_shard import refuse_shards
from delayd.cluster.ordering import Cluster
from delayd.errors import QuotaError
from delayd.request.quotas import problem_of, quota_record
from replication.quotas import QUOTAS_MAX, Quota, QuotaOrder
from replication.rules import knows_quotas

NEAR_SHARE: Final = 0.8
"""Of its quota, from which on a topic is called nearly full."""


def set_quota(there: Cluster, order: QuotaOrder) -> Quota | None:
    """Write an order, and return the quota of its topic once a step has passed it; None if it has
    none from then on.

    Raises QuotaError if it cannot be obeyed, was not, or nobody passes it in time;
    WrongClusterKeyError, and what `load_settings` and the drivers raise.
    """
    record = there.look().record
    refuse_shards(record.settings, "delayd limits")
    limits = there.limits(record)
    if (problem := problem_of(order, limits)) is not None:
        raise QuotaError(f"the order is refused: {problem}")
    if not knows_quotas(record.rules.lowest(limits.partitions)):
        raise QuotaError(
            "the cluster's rules do not know quotas", remedy="run delayd upgrade rules first"
        )
    is_new = order.max_pending > 0 and order.topic not in record.quotas
    if is_new and len(record.quotas) >= QUOTAS_MAX:
        raise QuotaError(
            f"{QUOTAS_MAX} topics have a limit, and no more may have one",
            remedy="clear one that is not needed: delayd limits list",
        )
    orders = [quota_record(order, limits)]
    offsets, after = there.passed(record, orders, QuotaError, order.topic)
    [offset], quota = offsets.values(), after.record.quotas.get(order.topic)
    is_obeyed = quota is None if order.max_pending == 0 else quota is not None
    if not is_obeyed or (quota is not None and quota.offset < offset):
        raise QuotaError(
            f"the order about the limit of {order.topic} was passed and not obeyed",
            remedy=f"{QUOTAS_MAX} topics may have a limit; else see delayd dead list: an order "
            "whose time is 5 minutes off is refused",
        )
    return quota


def limits_of(quotas: Mapping[str, Quota]) -> list[dict[str, Any]]:
    """Return the topics that have a limit, with what the last step has found pending."""
    return [
        {
            "topic": topic,
            "max_pending": quota.max_pending,
            "pending": quota.pending,
            "state": "full" if quota.is_full else "nearly-full" if _is_near(quota) else "open",
            "full_since_ms": quota.full_ms or None,
        }
        for topic, quota in sorted(quotas.items())
    ]


def _is_near(quota: Quota) -> bool:
    return quota.pending >= NEAR_SHARE * quota.max_pending
