"""Orders to limit how many messages are pending for a target topic and how many requests a second
are taken for it, and what is used of that.

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
from replication.quotas import PENDING, QUOTAS_MAX, RATE, Quota, QuotaOrder
from replication.rules import knows_quotas

NEAR_SHARE: Final = 0.8
"""Of a limit, from which on a topic is called nearly full."""

_NAMES: Final = {PENDING: "pending", RATE: "rate"}
"""Of the limit by which requests are refused."""


def change_quota(
    there: Cluster, topic: str, max_pending: int | None, rate: int | None
) -> Quota | None:
    """Set one limit of a topic, or both; None leaves one as it is, 0 ends it. Else as `set_quota`.

    Raises QuotaError also if neither would be left.
    """
    known = there.look().record.quotas.get(topic)
    if max_pending is None:
        max_pending = known.max_pending if known else 0
    if rate is None:
        rate = known.rate if known else 0
    order = QuotaOrder(topic, there.clock.wall_ms(), max_pending, rate)
    if order.is_end:
        raise QuotaError(
            f"{topic} would have no limit", remedy=f"run delayd limits clear {topic} for that"
        )
    return set_quota(there, order)


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
    is_new = not order.is_end and order.topic not in record.quotas
    if is_new and len(record.quotas) >= QUOTAS_MAX:
        raise QuotaError(
            f"{QUOTAS_MAX} topics have a limit, and no more may have one",
            remedy="clear one that is not needed: delayd limits list",
        )
    orders = [quota_record(order, limits)]
    offsets, after = there.passed(record, orders, QuotaError, order.topic)
    [offset], quota = offsets.values(), after.record.quotas.get(order.topic)
    is_obeyed = quota is None if order.is_end else quota is not None
    if not is_obeyed or (quota is not None and quota.offset < offset):
        raise QuotaError(
            f"the order about the limit of {order.topic} was passed and not obeyed",
            remedy=f"{QUOTAS_MAX} topics may have a limit; else see delayd dead list: an order "
            "whose time is 5 minutes off is refused",
        )
    return quota


def limits_of(quotas: Mapping[str, Quota]) -> list[dict[str, Any]]:
    """Return the topics that have a limit, with what the last step has counted. A limit that a
    topic does not have is None; `taken` is of the last RATE_WINDOW_S."""
    return [
        {
            "topic": topic,
            "max_pending": quota.max_pending or None,
            "pending": quota.pending,
            "rate": quota.rate or None,
            "taken": quota.taken,
            "state": "full" if quota.is_full else "nearly-full" if _is_near(quota) else "open",
            "refused_by": None if quota.shut is None else _NAMES[quota.shut.limit],
            "full_since_ms": quota.full_ms or None,
        }
        for topic, quota in sorted(quotas.items())
    ]


def _is_near(quota: Quota) -> bool:
    used = ((quota.pending, quota.max_pending), (quota.taken, quota.taken_max))
    return any(most and count >= NEAR_SHARE * most for count, most in used)
