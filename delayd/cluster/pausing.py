"""Orders of operators about target topics: write one, and wait until a step has obeyed it.

1. The cluster's rules know orders, and the topic exists.
2. The order is written to the home of its topic, under the key by which the master signs.
3. A frontier record passes it: what its holds say is what came of it.

Source: docs/design/pauses.md.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from delayd.bus import Ack, Bus
from delayd.cluster.frontier_log import POLL_MS, FrontierLog
from delayd.cluster.topics import load_settings
from delayd.config.cluster_key import signing_key
from delayd.errors import PauseError
from delayd.request.holds import order_record, problem_of
from delayd.request.internal import BufferRecord
from delayd.request.request import RequestLimits
from delayd.runtime.clock import Clock
from replication.holds import HOLDS_MAX, Hold, Order, home_of
from replication.record import FrontierRecord
from replication.rules import knows_pauses
from replication.settings import Settings


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
    seen = load_settings(bus, cluster, prefix, timeout_ms)
    settings = seen.record.settings
    limits = RequestLimits.of(settings, signing_key(cluster_key, settings), seen.record.rules)
    _refuse(bus, order, limits, seen.record, timeout_ms)
    with closing(FrontierLog(bus, settings.frontier.name, 0)) as log:
        log.open(timeout_ms)
        offset = _write(bus, settings, order_record(order, limits), timeout_ms)
        record = _passed(log, clock, order, offset, timeout_ms)
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


def _write(bus: Bus, settings: Settings, record: BufferRecord, timeout_ms: int) -> int:
    acks: list[Ack] = []
    with closing(bus.idempotent_producer()) as producer:
        producer.send(
            settings.buffer.name,
            key=record.key,
            value=record.value,
            headers=record.headers,
            partition=record.partition,
            on_ack=acks.append,
        )
        producer.flush(timeout_ms)
    [ack] = acks
    return ack.offset


def _passed(
    log: FrontierLog, clock: Clock, order: Order, offset: int, timeout_ms: int
) -> FrontierRecord:
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while True:
        if log.newest is not None:
            record = log.newest.record
            home = home_of(order.topic, record.settings.partitions)
            if record.frontier.offsets[home] > offset:
                return record
        if clock.monotonic_ms() > deadline_ms:
            raise PauseError(
                f"the order about {order.topic} is written, and no master has passed it yet",
                remedy="it is obeyed once there is a master: see delayd status",
            )
        log.poll(POLL_MS)
