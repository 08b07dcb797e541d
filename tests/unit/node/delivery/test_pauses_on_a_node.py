"""Pauses of target topics as a whole node does them, over Kafka in memory.

Source: docs/design/pauses.md.
"""

import pytest
from manual_clock import START_MS
from one_node import CLUSTER_KEY, Maker, OneNode

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.node.delivery.fates import Fate
from delayd.request import RequestLimits, order_record
from replication.holds import PARK_MS_MAX, PARK_MS_MIN, Hold, Order, home_of
from replication.rank import lane_of
from replication.record import FrontierRecord, decode
from replication.settings import LANES

NEIGHBOUR = "shared-139"
"""It has the lane of `orders`."""
DUE_MS = START_MS + 500
MINUTE_MS = 60_000


def header(record: Record, name: str) -> str | None:
    return {name: (value or b"").decode() for name, value in record.headers}.get(name)


def origin_of(record: Record) -> str:
    return header(record, "delayd-origin") or header(record, "delayd-source") or ""


def fired_ms(record: Record) -> int:
    return int(header(record, "delayd-fired") or 0)


def order(node: OneNode, topic: str, for_ms: int = 0, rate: int = 0) -> int:
    """Write an order, to resume unless it says how long the pause is; return its offset."""
    now_ms = node.clock.now_ms
    wanted = Order(topic, now_ms, now_ms + for_ms if for_ms else 0, rate)
    limits = RequestLimits.of(node.settings, CLUSTER_KEY.encode())
    partition, key, value, headers = order_record(wanted, limits)
    return node.kafka.append("delayd-buffer", partition, key, value, headers).offset


def go_on(node: OneNode, until_ms: int, every_ms: int = 20) -> None:
    while node.clock.now_ms < until_ms:
        node.clock.now_ms += every_ms
        node.ingest()
        node.step()


def last(node: OneNode) -> FrontierRecord:
    return decode(node.read("delayd-frontier")[-1].value or b"")


def sent(node: OneNode, count: int, due_ms: int = DUE_MS, step_ms: int = 0) -> list[str]:
    """Send messages for `orders`; return their sources in rank order."""
    acks = [
        (due_ms + step_ms * n, node.send("orders", due_ms + step_ms * n, partition=n % 3))
        for n in range(count)
    ]
    return [f"{p}/{o}" for _, p, o in sorted((due, a.partition, a.offset) for due, a in acks)]


def test_nothing_goes_to_a_paused_topic_and_all_comes_in_order_when_the_pause_ends(
    make: Maker,
) -> None:
    """Rules: pause-holds, pause-order, pause-rate"""
    node = make("orders", NEIGHBOUR, partitions=3)
    order(node, "orders", for_ms=20_000, rate=10)
    wanted = sent(node, 36, step_ms=500)
    for n in range(10):
        node.send(NEIGHBOUR, DUE_MS + 1_000 * n)
    go_on(node, START_MS + 19_980)
    assert node.read("orders") == []
    assert lane_of(NEIGHBOUR, LANES) == lane_of("orders", LANES)
    lateness = [fired_ms(record) - DUE_MS for record in node.read(NEIGHBOUR)]
    assert lateness == [1_000 * n for n in range(10)], "it waits for nobody"
    go_on(node, START_MS + 30_000)
    out = node.read("orders")
    assert [origin_of(record) for record in out] == wanted
    times_ms = [fired_ms(record) for record in out]
    assert times_ms[0] - START_MS in range(20_000, 20_100)
    for first, from_ms in enumerate(times_ms):
        for last_one in range(first, len(times_ms)):
            assert last_one - first <= 10 * (times_ms[last_one] - from_ms + 1_250) / 1_000
    assert node.counters.messages[Fate.HELD.value] >= 12 and not node.failures


def test_the_frontier_names_a_hold_until_what_has_waited_is_out(make: Maker) -> None:
    """Rules: pause-in-frontier"""
    node = make("orders", partitions=3)
    offset = order(node, "orders", for_ms=10_000, rate=10)
    at_ms = node.clock.now_ms
    go_on(node, START_MS + 100)
    record = last(node)
    hold = record.holds["orders"]
    assert hold == Hold(hold.since_ms, at_ms + 10_000, 10, offset)
    assert record.needs == {"holds": "0.2.0"}
    sent(node, 20)
    go_on(node, START_MS + 11_000)
    assert "orders" in last(node).holds and node.read("orders")
    go_on(node, START_MS + 40_000)
    assert last(node).holds == {} and len(node.read("orders")) == 20
    assert last(node).needs == {} and last(node).smoothing == {}


def test_a_successor_knows_the_pause_and_the_order(make: Maker) -> None:
    """Rules: pause-in-frontier, pause-order"""
    node = make("orders", partitions=3)
    order(node, "orders", for_ms=30_000, rate=100)
    wanted = sent(node, 30, step_ms=100)
    for until_ms in range(START_MS + 1_000, START_MS + 40_000, 3_333):
        go_on(node, until_ms)
        node.stop_leading()
    out = node.read("orders")
    assert [origin_of(record) for record in out] == wanted
    assert min(map(fired_ms, out)) >= START_MS + 30_000


def test_an_order_to_resume_takes_an_eighth_of_the_pause_at_most(make: Maker) -> None:
    """Rules: pause-resumed"""
    node = make("orders", partitions=3)
    order(node, "orders", for_ms=3_600_000)
    wanted = sent(node, 50, step_ms=1_000)
    go_on(node, START_MS + 10 * MINUTE_MS, every_ms=250)
    assert node.read("orders") == []
    order(node, "orders")
    resumed_ms = node.clock.now_ms
    go_on(node, resumed_ms + 10 * MINUTE_MS // 8 + 2_000, every_ms=100)
    assert [origin_of(record) for record in node.read("orders")] == wanted
    go_on(node, node.clock.now_ms + 10_000, every_ms=100)
    assert last(node).holds == {}
    hold = Hold(0, 10**9, 1, 0)
    assert hold.look_ms(0) == PARK_MS_MIN and hold.look_ms(800_000) == 900_000
    assert hold.look_ms(10**8) == 10**8 + PARK_MS_MAX


def test_a_pause_is_renewed_by_another_one(make: Maker) -> None:
    """Rules: pause-holds"""
    node = make("orders", partitions=3)
    order(node, "orders", for_ms=5_000, rate=50)
    wanted = sent(node, 10)
    go_on(node, START_MS + 4_000)
    order(node, "orders", for_ms=10_000)
    go_on(node, START_MS + 13_900)
    assert node.read("orders") == [] and last(node).holds["orders"].rate == 50
    go_on(node, START_MS + 16_000)
    assert [origin_of(record) for record in node.read("orders")] == wanted


@pytest.mark.parametrize("gap_ms", [20, 100, 700])
def test_steady_traffic_goes_behind_what_has_waited_and_ends_the_hold(
    make: Maker, gap_ms: int
) -> None:
    """Rules: pause-order, pause-ends"""
    node = make("orders", partitions=3)
    order(node, "orders", for_ms=4_000, rate=200)
    wanted = sent(node, 20_000 // gap_ms, step_ms=gap_ms)
    go_on(node, START_MS + 12_000)
    assert last(node).holds == {}, "messages that come all the time keep no hold"
    go_on(node, START_MS + 24_000)
    out = node.read("orders")
    assert [origin_of(record) for record in out] == wanted
    late = [fired_ms(r) - int(header(r, "delayd-due") or 0) for r in out]
    assert max(late[-3:]) <= 20, "it is as prompt as before"


def test_a_hold_ends_though_other_lanes_fill_every_step(make: Maker) -> None:
    """Rules: pause-order, pause-ends"""
    busy = [f"busy-{n}" for n in range(6)]
    node = make("orders", *busy, partitions=3, records_max=60)
    order(node, "orders", for_ms=4_000, rate=200)
    wanted = sent(node, 110, step_ms=100)
    for topic in busy:
        for n in range(3_000):
            node.send(topic, DUE_MS, partition=n % 3)
    go_on(node, START_MS + 12_000, every_ms=50)
    left = [3_000 - len(node.read(topic)) for topic in busy]
    assert min(left) > 100, "they are behind all the time"
    assert last(node).holds == {}
    assert [origin_of(record) for record in node.read("orders")] == wanted


def test_late_is_counted_on_and_told_in_time(make: Maker) -> None:
    """Rules: pause-late"""
    node = make("orders", partitions=3)
    order(node, "orders", for_ms=60_000)
    node.send("orders", DUE_MS, more=[("delayd-late", b"7s")])
    node.send("orders", DUE_MS, more=[("delayd-late", b"2m")])
    go_on(node, START_MS + 9_000)
    [letter] = node.read("delayd-dead")
    assert header(letter, "delayd-reason") == "expired"
    go_on(node, START_MS + 70_000, every_ms=100)
    assert len(node.read("orders")) == 1


def test_what_waits_is_cancelled_like_any_other(make: Maker) -> None:
    node = make("orders", partitions=3)
    order(node, "orders", for_ms=20_000)
    node.send("orders", DUE_MS, id="a")
    node.send("orders", DUE_MS, id="b")
    go_on(node, START_MS + 9_000)
    node.send("", id="a", op="cancel")
    go_on(node, START_MS + 25_000)
    assert [header(record, "delayd-id") for record in node.read("orders")] == ["b"]
    [told] = node.read("delayd-receipts")
    assert b'"cancelled"' in (told.value or b"")


def test_a_fired_message_waits_like_any_other(make: Maker) -> None:
    node = make("orders", partitions=3)
    order(node, "orders", for_ms=10_000)
    node.send("orders", START_MS + 3_600_000, id="a")
    go_on(node, START_MS + 1_000)
    headers: Headers = [("delayd-op", b"fire"), ("delayd-id", b"a")]
    node.kafka.append("delayd-buffer", partition_of(b"a", 3), b"a", None, headers)
    go_on(node, START_MS + 9_000)
    assert node.read("orders") == []
    assert b'"rescheduled"' in (node.read("delayd-receipts")[0].value or b"")
    go_on(node, START_MS + 12_000)
    assert len(node.read("orders")) == 1


def test_a_target_that_fails_is_not_tried_while_it_is_paused(make: Maker) -> None:
    """Rules: pause-holds"""
    node = make("orders", partitions=3)
    order(node, "missing", for_ms=60_000)
    node.send("missing", DUE_MS)
    go_on(node, START_MS + 50_000, every_ms=100)
    assert node.counters.messages[Fate.RETRIED.value] == 0
    go_on(node, START_MS + 62_000, every_ms=100)
    assert node.counters.messages[Fate.RETRIED.value] == 1


def test_a_topic_with_a_rate_of_its_own_keeps_the_lower_one(make: Maker) -> None:
    """Rules: pause-rate"""
    node = make("orders", partitions=3, rates={"orders": 20})
    order(node, "orders", for_ms=5_000, rate=1_000)
    wanted = sent(node, 40)
    go_on(node, START_MS + 15_000)
    out = node.read("orders")
    assert [origin_of(record) for record in out] == wanted
    assert fired_ms(out[-1]) - fired_ms(out[0]) >= 1_000
    assert last(node).holds == {}


def test_an_order_is_obeyed_by_the_step_that_passes_it(make: Maker) -> None:
    """Rules: pause-holds"""
    node = make("orders", partitions=3)
    node.step()
    node.send("orders", DUE_MS)
    node.clock.now_ms = DUE_MS + 5
    order(node, "orders", for_ms=5_000)
    node.ingest()
    node.step()
    assert "orders" in last(node).holds and node.read("orders") == []


def test_orders_for_a_topic_stand_in_its_home(make: Maker) -> None:
    node = make("orders", partitions=3)
    order(node, "orders", for_ms=5_000)
    [log] = [log for log in node.kafka.topics["delayd-buffer"].partitions if log.read(0, 10)[0]]
    assert log.number == home_of("orders", 3)
