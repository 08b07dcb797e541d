"""Orders to pause a target topic, or to resume it.

1. The cluster's rules know pauses, and the topic exists.
2. The order is written to the home of its topic, under the key by which the master signs.
3. A frontier record passes it: what its holds say is what came of it.

Source: docs/design/pauses.md.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from delayd.bus import Bus
from delayd.cluster.ordering import Cluster
from delayd.errors import PauseError
from delayd.request.holds import order_record, problem_of
from delayd.request.request import RequestLimits
from delayd.runtime.clock import Clock
from replication.holds import HOLDS_MAX, Hold, Order, home_of
from replication.record import FrontierRecord
from replication.rules import knows_pauses


def give_order(
    bus: Bus,
    clock: Clock,
    order: Order,
    *,
    cluster: str,
    prefix: str,
    cluster_key: str,
    timeout_ms: int,
) -> Hold | None:
    """Write an order, and return the hold of its topic once a step has passed it: None if there is
    none, because what was to be resumed was not paused.

    Raises PauseError if it cannot be obeyed, was not, or nobody passes it in time;
    WrongClusterKeyError, and what `load_settings` and the drivers raise.
    """
    there = Cluster(bus, clock, cluster, prefix, cluster_key, timeout_ms)
    seen = there.look()
    limits = there.limits(seen.record)
    _refuse(bus, order, limits, seen.record, timeout_ms)
    written = order_record(order, limits)
    offset, record = there.passed(seen.record, written, PauseError, order.topic)
    hold = record.holds.get(order.topic)
    if order.is_pause and (hold is None or hold.offset < offset):
        raise PauseError(
            f"the order to pause {order.topic} was passed and not obeyed",
            remedy=f"{HOLDS_MAX} topics may be paused at a time; else see delayd dead list: an "
            "order whose time is 5 minutes off is refused",
        )
    return hold


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


def _refuse(
    bus: Bus, order: Order, limits: RequestLimits, record: FrontierRecord, timeout_ms: int
) -> None:
    if (problem := problem_of(order, limits)) is not None:
        raise PauseError(f"the order is refused: {problem}")
    if not knows_pauses(record.rules.last(home_of(order.topic, limits.partitions))):
        raise PauseError(
            "the cluster's rules do not know pauses", remedy="run delayd upgrade rules first"
        )
    with closing(bus.cluster()) as kafka:
        if order.is_pause and order.topic not in kafka.survey([order.topic], timeout_ms).states:
            raise PauseError(f"there is no topic {order.topic}", remedy="check the name")
