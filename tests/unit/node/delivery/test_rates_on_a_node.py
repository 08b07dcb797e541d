"""Rates of target topics as a whole node does them, over Kafka in memory.

Source: docs/design/quotas.md, "What was taken".
"""

from one_node import CLUSTER_KEY, Maker, OneNode
from test_quotas_on_a_node import (
    HOUR_MS,
    gates,
    go_on,
    header,
    last,
    limit,
    quota,
    refused,
    turn,
    verdicts,
)

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of
from delayd.node.replica.request_rates import SECONDS_KEPT
from delayd.request import RequestLimits, quota_record
from replication.quotas import RATE_WINDOW_S, QuotaOrder
from replication.settings import AT_LEAST_ONCE

WINDOW_MS = RATE_WINDOW_S * 1_000


def pace(node: OneNode, rate: int, max_pending: int = 0) -> None:
    """Order a rate, and let a step obey."""
    order = QuotaOrder("orders", node.clock.now_ms, max_pending, rate)
    written = quota_record(order, RequestLimits.of(node.settings, CLUSTER_KEY.encode()))
    node.kafka.append("delayd-buffer", written.partition, None, None, written.headers)
    turn(node)


def send(node: OneNode, count: int) -> None:
    for number in range(count):
        partition = number % node.settings.partitions
        node.send("orders", node.clock.now_ms + HOUR_MS, partition=partition)


def said(node: OneNode) -> list[str]:
    """What the master has said of topics, by kind, in partition 0."""
    log = node.kafka.log("delayd-buffer", 0)
    texts = [header(record, "delayd-quota") or "" for record in log.read(0, 10**9)[0]]
    return [each.split("/")[0] for each in texts if each and not each.startswith("limit")]


def test_what_comes_faster_than_the_rate_is_refused_until_a_tenth_is_free(make: Maker) -> None:
    """Rules: quota-rate, quota-refused"""
    node = make("orders", partitions=3)
    pace(node, 2)
    for number in range(23):
        node.send("orders", node.clock.now_ms + HOUR_MS, id=f"order-{number}")
        turn(node, 1)
        turn(node, 1)
    assert refused(node) == 3 and verdicts(node) == {"over-quota": 3}
    assert said(node) == ["fast"] and gates(node) == []
    found = quota(node)
    assert (found.rate, found.taken, found.is_full) == (2, 20, True)
    begun_ms = node.clock.now_ms
    while quota(node).is_full:
        node.clock.now_ms += 250
        turn(node, 1)
    assert WINDOW_MS - 1_000 <= node.clock.now_ms - begun_ms <= WINDOW_MS + 1_000
    assert said(node) == ["fast", "open"] and quota(node).taken <= 18
    send(node, 1)
    turn(node)
    assert refused(node) == 3 and not node.failures


def test_a_rate_is_a_mean_of_ten_seconds(make: Maker) -> None:
    """Rules: quota-rate"""
    node = make("orders", partitions=2)
    pace(node, 2)
    for _ in range(40):
        send(node, 1)
        go_on(node, node.clock.now_ms + 550)
    assert refused(node) == 0 and said(node) == []


def test_a_successor_counts_what_came_before_it(make: Maker) -> None:
    """Rules: quota-rate, quota-in-frontier"""
    node = make("orders", partitions=2)
    pace(node, 1)
    send(node, 6)
    turn(node)
    node.stop_leading()
    send(node, 4)
    turn(node)
    assert quota(node).is_full
    node.stop_leading()
    send(node, 5)
    turn(node)
    assert refused(node) == 5 and quota(node).taken == 10 and said(node) == ["fast"]


def test_a_master_where_steps_may_not_count_says_it_anew(make: Maker) -> None:
    """Rules: quota-again"""
    node = make("orders", partitions=2, guarantee=AT_LEAST_ONCE)
    pace(node, 1)
    send(node, 10)
    turn(node)
    node.stop_leading()
    turn(node)
    assert said(node)[-1] == "fast" and len(said(node)) > 1


def test_what_adds_no_message_does_not_count(make: Maker) -> None:
    """Nor does what the master writes itself, or what is for another topic. A repeated request
    does. Rules: quota-rate"""
    node = make("orders", "bills", partitions=2)
    pace(node, 1)
    node.send("orders", node.clock.now_ms + HOUR_MS, id="a", value=b"same")
    key = b"a"
    move: Headers = [("delayd-op", b"reschedule"), ("delayd-id", key), ("delayd-by", b"+10m")]
    for _ in range(12):
        node.kafka.append("delayd-buffer", partition_of(key, 2), key, None, move)
        node.send("", id="b", op="cancel")
        node.send("bills", node.clock.now_ms + HOUR_MS)
    turn(node)
    assert quota(node).taken == 1 and said(node) == []
    for _ in range(9):
        node.send("orders", node.clock.now_ms + HOUR_MS, id="a", value=b"same")
    turn(node)
    assert quota(node).taken == 10 and said(node) == ["fast"]


def test_both_limits_hold_and_the_refused_learn_which(make: Maker) -> None:
    """Rules: quota-rate, quota-full"""
    node = make("orders", partitions=2)
    pace(node, 1, max_pending=15)
    send(node, 10)
    turn(node)
    send(node, 1)
    turn(node)
    go_on(node, node.clock.now_ms + WINDOW_MS + 1_000)
    send(node, 5)
    turn(node)
    send(node, 1)
    turn(node)
    details = [header(each, "delayd-detail") or "" for each in node.read("delayd-dead")]
    assert "1 requests a second are taken for orders" in details[0]
    assert "15 messages may be pending for orders" in details[1]
    assert said(node) == ["fast", "open", "full"] and len(details) == 2


def test_the_frontier_names_a_rate_until_there_is_none(make: Maker) -> None:
    """Rules: quota-in-frontier, quota-cleared"""
    node = make("orders", partitions=2)
    pace(node, 1)
    assert last(node).needs == {"quotas": "0.2.0"}
    send(node, 10)
    turn(node)
    limit(node, 0)
    turn(node)
    assert last(node).quotas == {} and said(node) == ["fast", "open"]
    send(node, 20)
    turn(node)
    assert refused(node) == 0


def test_a_clock_far_ahead_does_not_shut_a_topic(make: Maker) -> None:
    """Rules: quota-rate"""
    node = make("orders", partitions=2)
    pace(node, 1)
    rates = node.replica.arrivals.rates
    rates._add("orders", node.clock.now_ms + HOUR_MS, 100)
    now_ms = node.clock.now_ms // 1000 * 1000
    rates._add("orders", now_ms + 1_999, 3)
    for ahead_s in range(2, 2 * RATE_WINDOW_S):
        rates._add("orders", now_ms + 1_000 * ahead_s, 3)
    turn(node)
    assert quota(node).taken == 3 and said(node) == []


def test_what_is_far_ahead_does_not_displace_what_counts(make: Maker) -> None:
    """Rules: quota-rate"""
    node = make("orders", partitions=2)
    pace(node, 1)
    rates = node.replica.arrivals.rates
    for second in range(2 * SECONDS_KEPT):
        rates._add("orders", node.clock.now_ms + HOUR_MS + 1_000 * second, 1)
    send(node, 7)
    turn(node)
    for second in range(2 * SECONDS_KEPT):
        rates._add("orders", node.clock.now_ms + 3 * HOUR_MS + 1_000 * second, 1)
    turn(node)
    assert quota(node).taken == 7 and len(rates._taken["orders"]) <= SECONDS_KEPT
