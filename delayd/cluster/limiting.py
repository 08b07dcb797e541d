"""Orders to limit how many messages are pending for a target topic and how many requests a second
are taken for it, and what is used of that.

1. The rules of all partitions know quotas: a topic is full in each of them, or in none.
2. The order is written to the home of its topic in each shard, under the key by which the masters
   sign.
3. A frontier record of each shard passes it: what its quotas say is what came of it.

The topic need not exist: what is pending for it counts all the same.

Source: docs/design/quotas.md.
"""

from collections.abc import Mapping
from typing import Any, Final

from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.ordering import Cluster
from delayd.errors import QuotaError
from delayd.request.quotas import problem_of, quota_record
from replication.quotas import PENDING, QUOTAS_MAX, RATE, Quota, QuotaOrder
from replication.rank import lane_of
from replication.rules import knows_quotas

NEAR_SHARE: Final = 0.8
"""Of a limit, from which on a topic is called nearly full."""

LAG_MS: Final = 10_000
"""How far behind the others a shard is called lagging: masters that have nothing to do make a step
each second."""

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
    orders = [quota_record(order, limits, shard) for shard in range(limits.shards)]
    offsets, after = there.passed(record, orders, QuotaError, order.topic)
    parts = after.parts or (after,)
    told = [offsets[each.partition] for each in orders]
    if len(parts) != len(told) or not all(
        _is_obeyed(order, part.record.quotas.get(order.topic), offset)
        for part, offset in zip(parts, told, strict=True)
    ):
        raise QuotaError(
            f"the order about the limit of {order.topic} was passed and not obeyed",
            remedy=f"{QUOTAS_MAX} topics may have a limit; an order whose time is 5 minutes off is "
            "refused, see delayd dead list; if the number of shards has changed, run this again",
        )
    return after.record.quotas.get(order.topic)


def torn_limits(seen: SeenFrontier) -> list[str]:
    """Return the topics whose limits are not the same in all shards: an order has reached some."""
    of_shards = [
        {topic: (quota.max_pending, quota.rate) for topic, quota in part.record.quotas.items()}
        for part in seen.parts
    ]
    topics = sorted({topic for limits in of_shards for topic in limits})
    return [topic for topic in topics if len({limits.get(topic) for limits in of_shards}) > 1]


def lagging_shards(seen: SeenFrontier, topic: str) -> list[int]:
    """Return the shards whose lane of a topic is behind the newest step of all: what others have
    delivered meanwhile counts as pending for it."""
    now_ms, lane = seen.record.now_ms, lane_of(topic, seen.record.settings.lanes)
    return [
        shard
        for shard, part in enumerate(seen.parts)
        if part.record.frontier.cursors[lane].due_ms < now_ms - LAG_MS
    ]


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


def _is_obeyed(order: QuotaOrder, quota: Quota | None, offset: int) -> bool:
    """Return whether a shard has obeyed an order that stands there at this offset."""
    return quota is None if order.is_end else quota is not None and quota.offset >= offset


def _is_near(quota: Quota) -> bool:
    used = ((quota.pending, quota.max_pending), (quota.taken, quota.taken_max))
    return any(most and count >= NEAR_SHARE * most for count, most in used)
