"""Orders of operators about target topics: write one, and wait until a step has obeyed it.

1. The cluster's rules know orders, and the topic exists.
2. The order is written to the home of its topic in each shard, under the key by which the masters
   sign, with the shard's part of the rate.
3. A frontier record of each shard passes it: what its holds say is what came of it.

Source: docs/design/pauses.md.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.ordering import Cluster
from delayd.errors import PauseError
from delayd.request.holds import order_record, problem_of
from delayd.request.request import RequestLimits
from replication.holds import HOLDS_MAX, RATE_DEFAULT, Hold, Order
from replication.record import FrontierRecord
from replication.rules import knows_pauses
from replication.shards import home_in, share_of


def give_order(there: Cluster, order: Order) -> Hold | None:
    """Write an order, and return the hold of its topic once a step has passed it: None if there is
    none, because what was to be resumed was not paused.

    Raises PauseError if it cannot be obeyed, was not, or nobody passes it in time;
    WrongClusterKeyError, and what `load_settings` and the drivers raise.
    """
    seen = there.look()
    settings, limits = seen.record.settings, there.limits(seen.record)
    _refuse(there, order, limits, seen.record)
    orders = _shared_out(order, seen)
    records = [order_record(each, limits, shard) for shard, each in enumerate(orders)]
    offsets, passed = there.passed(seen.record, records, PauseError, order.topic)
    holds = [part.record.holds.get(order.topic) for part in passed.parts or (passed,)]
    is_obeyed = all(
        hold is not None
        and hold.offset
        >= offsets[home_in(order.topic, shard, settings.shards, settings.partitions)]
        for shard, hold in enumerate(holds)
    )
    if order.is_pause and not is_obeyed:
        raise PauseError(
            f"the order to pause {order.topic} was passed and not obeyed",
            remedy=f"{HOLDS_MAX} topics may be paused at a time; else see delayd dead list: an "
            "order whose time is 5 minutes off is refused",
        )
    return passed.record.holds.get(order.topic)


def _shared_out(order: Order, seen: SeenFrontier) -> list[Order]:
    """Return the order of each shard, whose rates are together that of this one."""
    shards, rate = seen.record.settings.shards, order.rate
    if shards == 1:
        return [order]
    if order.is_pause and not rate:
        # Where there is a hold its rate stays.
        usual = [share_of(RATE_DEFAULT, shard, shards) for shard in range(shards)]
        held = [order.topic in part.record.holds for part in seen.parts]
        return [
            order._replace(rate=0 if has else own) for has, own in zip(held, usual, strict=True)
        ]
    if 0 < rate < shards:
        raise PauseError(
            f"a rate of {rate} cannot be shared out among {shards} shards",
            remedy=f"choose one of at least {shards} records a second",
        )
    return [order._replace(rate=share_of(rate, shard, shards)) for shard in range(shards)]


def paused_of(holds: Mapping[str, Hold], now_ms: int) -> list[dict[str, Any]]:
    """Return the topics that are paused, or that still wait for what has become due meanwhile."""
    return [
        {
            "topic": topic,
            "state": "paused" if hold.is_closed(now_ms) else "resuming",
            "since_ms": hold.since_ms,
            "until_ms": hold.until_ms,
            "rate": hold.rate,
        }
        for topic, hold in sorted(holds.items())
    ]


def _refuse(there: Cluster, order: Order, limits: RequestLimits, record: FrontierRecord) -> None:
    if (problem := problem_of(order, limits)) is not None:
        raise PauseError(f"the order is refused: {problem}")
    if not all(knows_pauses(record.rules.last(p)) for p in range(limits.partitions)):
        raise PauseError(
            "the cluster's rules do not know pauses", remedy="run delayd upgrade rules first"
        )
    with closing(there.bus.cluster()) as kafka:
        found = kafka.survey([order.topic], there.timeout_ms).states
        if order.is_pause and order.topic not in found:
            raise PauseError(f"there is no topic {order.topic}", remedy="check the name")
