"""Quotas of target topics as a whole node does them, over Kafka in memory.

Source: docs/design/quotas.md.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from manual_clock import START_MS
from one_node import CLUSTER_KEY, Maker, OneNode, nodes_in, open_replica

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import Reason, RequestLimits, order_record, quota_record
from delayd.request.quotas import gate_record
from replication.holds import Order, home_of
from replication.quotas import AGAIN_MS, PENDING, QUOTAS_MAX, Gate, Quota, QuotaOrder, Shut
from replication.rank import lane_of
from replication.record import FrontierRecord, decode
from replication.settings import AT_LEAST_ONCE, LANES

NEIGHBOUR = "shared-139"
"""It has the lane of `orders`."""
HOUR_MS = 3_600_000
LATER_MS = START_MS + 60_000


def header(record: Record, name: str) -> str | None:
    return {name: (value or b"").decode() for name, value in record.headers}.get(name)


def limit(node: OneNode, max_pending: int, topic: str = "orders") -> int:
    """Write an order, to be obeyed by the next step; return its offset."""
    order = QuotaOrder(topic, node.clock.now_ms, max_pending)
    written = quota_record(order, RequestLimits.of(node.settings, CLUSTER_KEY.encode()))
    return node.kafka.append("delayd-buffer", written.partition, None, None, written.headers).offset


def turn(node: OneNode, count: int = 3) -> None:
    """Let the node take in what there is, and take steps."""
    for _ in range(count):
        node.clock.now_ms += 1
        node.ingest()
        node.step()


def go_on(node: OneNode, until_ms: int, every_ms: int = 250) -> None:
    while node.clock.now_ms < until_ms:
        node.clock.now_ms += every_ms
        node.ingest()
        node.step()


def last(node: OneNode) -> FrontierRecord:
    return decode(node.read("delayd-frontier")[-1].value or b"")


def quota(node: OneNode, topic: str = "orders") -> Quota:
    return last(node).quotas[topic]


def gates(node: OneNode) -> list[str]:
    """What the master has said of topics, by kind and topic, in partition 0."""
    log = node.kafka.log("delayd-buffer", 0)
    said = [header(record, "delayd-quota") or "" for record in log.read(0, 10**9)[0]]
    return [each.split("/")[0] for each in said if each.startswith(("full", "open"))]


def refused(node: OneNode) -> int:
    letters = node.read("delayd-dead")
    assert all(header(each, "delayd-reason") == "over-quota" for each in letters)
    return len(letters)


def verdicts(node: OneNode) -> Counter[str]:
    receipts = node.read("delayd-receipts")
    return Counter(json.loads(each.value or b"")["verdict"] for each in receipts)


def filled(node: OneNode, max_pending: int, topic: str = "orders") -> None:
    """Set a quota, and send as many messages."""
    limit(node, max_pending, topic)
    turn(node)
    for number in range(max_pending):
        node.send(topic, LATER_MS + number, partition=number % node.settings.partitions)
    turn(node)
    assert quota(node, topic).is_full and not node.failures


def test_the_message_after_the_one_that_fills_the_quota_is_refused(make: Maker) -> None:
    """Rules: quota-full, quota-refused, quota-by-step"""
    node = make("orders", partitions=3)
    limit(node, 3)
    for number in range(5):
        turn(node)
        node.send("orders", LATER_MS, id=f"order-{number}", more=[("delayd-receipt", b"yes")])
    turn(node)
    assert verdicts(node) == {"scheduled": 3, "over-quota": 2}
    assert refused(node) == 2 and gates(node) == ["full"]
    found = quota(node)
    assert (found.max_pending, found.pending, found.is_full) == (3, 3, True)
    go_on(node, LATER_MS + 1_500)
    assert len(node.read("orders")) == 3
    assert quota(node).pending == 0 and not quota(node).is_full
    assert gates(node) == ["full", "open"]


def test_a_refused_message_is_delivered_by_no_successor(make: Maker) -> None:
    """Rules: quota-refused, quota-in-frontier"""
    node = make("orders", partitions=2)
    filled(node, 4)
    for number in range(6):
        node.stop_leading()
        node.send("orders", node.clock.now_ms, partition=number % 2)
        turn(node)
        assert quota(node).is_full
    assert refused(node) == 6 and node.read("orders") == []
    go_on(node, LATER_MS + 2_000, every_ms=2_000)
    assert len(node.read("orders")) == 4 and not node.failures


def test_the_frontier_names_a_quota_until_there_is_none(make: Maker) -> None:
    """Rules: quota-in-frontier"""
    node = make("orders", partitions=3)
    offset = limit(node, 2)
    turn(node)
    assert quota(node) == Quota(2, 0, offset, 0, 0)
    assert last(node).needs == {"quotas": "0.2.0"}
    limit(node, 0)
    turn(node)
    assert last(node).quotas == {} and last(node).needs == {}
    for _ in range(4):
        node.send("orders", LATER_MS)
    turn(node)
    assert refused(node) == 0 and gates(node) == ["open"]


def test_a_quota_that_is_cleared_or_raised_opens_a_full_topic(make: Maker) -> None:
    """Rules: quota-opened, quota-cleared"""
    node = make("orders", partitions=2)
    filled(node, 3)
    limit(node, 4)
    turn(node)
    assert not quota(node).is_full and gates(node) == ["full", "open"]
    node.send("orders", LATER_MS)
    turn(node)
    assert quota(node).is_full and quota(node).pending == 4
    limit(node, 0)
    turn(node)
    assert gates(node) == ["full", "open", "full", "open"] and last(node).quotas == {}
    node.send("orders", LATER_MS, partition=1)
    turn(node)
    assert refused(node) == 0


def test_a_quota_below_what_is_pending_closes_the_topic_at_once(make: Maker) -> None:
    """What was there before the quota counts. Rules: quota-pending"""
    node = make("orders", partitions=2)
    for number in range(5):
        node.send("orders", LATER_MS + number, partition=number % 2)
    turn(node)
    limit(node, 2)
    turn(node)
    assert quota(node).pending == 5 and quota(node).is_full
    node.send("orders", LATER_MS)
    turn(node)
    assert refused(node) == 1


@pytest.mark.parametrize("op", ["cancel", "replace", "debounce"])
def test_what_is_killed_is_not_pending(make: Maker, op: str) -> None:
    """Rules: quota-pending"""
    node = make("orders", "bills", partitions=2)
    limit(node, 10)
    turn(node)
    for number in range(8):
        node.send("orders", LATER_MS, id=f"order-{number}")
    turn(node)
    assert quota(node).pending == 8
    for number in range(8):
        if op == "cancel":
            node.send("", id=f"order-{number}", op=op)
        elif op == "replace":
            node.send("bills", LATER_MS, id=f"order-{number}", op=op)
        else:
            key = f"order-{number}".encode()
            more: Headers = [("delayd-delay", b"1h"), ("delayd-max-wait", b"2h")]
            asked: Headers = [
                ("delayd-op", b"debounce"),
                ("delayd-topic", b"bills"),
                ("delayd-id", key),
            ]
            asked += more
            node.kafka.append("delayd-buffer", partition_of(key, 2), key, b"v", asked)
    turn(node)
    assert quota(node).pending == 0


@pytest.mark.parametrize(
    "more",
    [
        (("delayd-op", b"replace"), ("delayd-due", b"%d" % LATER_MS)),
        (("delayd-op", b"debounce"), ("delayd-delay", b"1h"), ("delayd-max-wait", b"2h")),
        (("delayd-cron", b"0 9 * * *"),),
        (("delayd-due", b"2030-01-01T09:00"), ("delayd-zone", b"Europe/Berlin")),
        (("delayd-delay", b"1h"),),
    ],
)
def test_whatever_adds_a_message_is_refused_and_changes_nothing(
    make: Maker, more: tuple[tuple[str, bytes], ...]
) -> None:
    """Rules: quota-refused"""
    node = make("orders", partitions=2, max_delay_ms=10 * 366 * 24 * HOUR_MS)
    limit(node, 1)
    turn(node)
    node.send("orders", LATER_MS, id="a", value=b"first")
    turn(node)
    asked: Headers = [("delayd-topic", b"orders"), ("delayd-id", b"a"), *more]
    node.kafka.append("delayd-buffer", partition_of(b"a", 2), b"a", b"second", asked)
    turn(node)
    assert refused(node) == 1 and verdicts(node) == {"over-quota": 1}
    go_on(node, LATER_MS + 1_000, every_ms=1_000)
    assert [record.value for record in node.read("orders")] == [b"first"]


def test_cancels_reschedules_and_other_topics_pass(make: Maker) -> None:
    """Rules: quota-refused"""
    node = make("orders", NEIGHBOUR, partitions=2)
    assert lane_of(NEIGHBOUR, LANES) == lane_of("orders", LANES)
    limit(node, 2)
    turn(node)
    node.send("orders", LATER_MS, id="a")
    node.send("orders", LATER_MS, id="b")
    turn(node)
    node.send("", id="a", op="cancel")
    key = b"b"
    move: Headers = [("delayd-op", b"reschedule"), ("delayd-id", key), ("delayd-by", b"+10m")]
    node.kafka.append("delayd-buffer", partition_of(key, 2), key, None, move)
    for _ in range(5):
        node.send(NEIGHBOUR, LATER_MS)
    turn(node)
    assert verdicts(node) == {"cancelled": 1, "rescheduled": 1} and refused(node) == 0
    turn(node)
    assert quota(node).pending == 1 and not quota(node).is_full


def test_a_lane_that_lags_does_not_make_another_topic_look_full(make: Maker) -> None:
    """Messages that went out are not pending, however far behind another lane is.

    Rules: quota-pending
    """
    node = make("orders", "bills", partitions=2)
    hold = Order("bills", node.clock.now_ms, node.clock.now_ms + HOUR_MS, 1)
    assert lane_of("bills", LANES) != lane_of("orders", LANES)
    limits = RequestLimits.of(node.settings, CLUSTER_KEY.encode())
    written = order_record(hold, limits)
    node.kafka.append("delayd-buffer", written.partition, None, None, written.headers)
    limit(node, 5)
    turn(node)
    for second in range(20):
        node.send("orders", START_MS + 2_000 + 1_000 * second)
        node.send("orders", START_MS + 2_300 + 1_000 * second, id=f"killed-{second}")
        node.send("", id=f"killed-{second}", op="cancel")
        go_on(node, START_MS + 2_000 + 1_000 * second)
        assert quota(node).pending <= 3
    assert refused(node) == 0


def test_a_full_topic_is_said_again_now_and_then(make: Maker) -> None:
    """Rules: quota-again"""
    node = make("orders", partitions=2)
    limit(node, 1)
    turn(node)
    node.send("orders", START_MS + HOUR_MS)
    turn(node)
    assert gates(node) == ["full"]
    go_on(node, START_MS + 2 * AGAIN_MS + 60_000, every_ms=5_000)
    assert gates(node) == ["full"] * 3


def test_a_master_where_steps_may_not_count_says_it_anew(make: Maker) -> None:
    """Rules: quota-again"""
    node = make("orders", partitions=2, guarantee=AT_LEAST_ONCE)
    filled(node, 2)
    node.stop_leading()
    turn(node)
    assert gates(node)[-1] == "full" and len(gates(node)) > 1


def test_no_more_than_so_many_topics_have_a_quota(make: Maker) -> None:
    node = make("orders", partitions=2)
    for number in range(QUOTAS_MAX + 1):
        limit(node, 5, f"topic-{number}")
        turn(node, 1)
    turn(node)
    assert len(last(node).quotas) == QUOTAS_MAX and not node.failures


def test_a_node_that_starts_again_knows_what_is_full(tmp_path: Path) -> None:
    """Rules: quota-refused"""
    with nodes_in(tmp_path) as make:
        node = make("orders", partitions=2)
        filled(node, 2)
        node.replica.checkpoint()
        settings = node.settings
    again = open_replica(tmp_path / "0", settings)
    assert again.limits.full == {key: {"orders": Shut(PENDING, 2)} for key in (0, 1)}
    message: Headers = [("delayd-topic", b"orders"), ("delayd-delay", b"1h")]
    [rejected] = again.take([Record(0, 1_000, 0, START_MS, None, b"v", message)])
    assert rejected.reject.reason is Reason.OVER_QUOTA
    said = Gate("orders", START_MS, False, 0, 0)
    for partition in range(2):
        opened = gate_record(partition, said, again.limits).headers
        again.take([Record(partition, 2_000, 0, START_MS, None, None, opened)])
    again.checkpoint()
    assert again.wheel.progress is not None and again.wheel.progress.full == ()
    again.close()


def test_who_forges_a_gate_is_refused(make: Maker) -> None:
    """Rules: quota-proof"""
    node = make("orders", partitions=2)
    forger = RequestLimits.of(node.settings, b"another key")
    gate = Gate("orders", node.clock.now_ms, True, 5, 5)
    node.kafka.append("delayd-buffer", 0, None, None, gate_record(0, gate, forger).headers)
    true = gate_record(0, gate, RequestLimits.of(node.settings, CLUSTER_KEY.encode()))
    node.kafka.append("delayd-buffer", 1, None, None, true.headers)
    turn(node)
    node.send("orders", LATER_MS, partition=0)
    node.send("orders", LATER_MS, partition=1)
    turn(node)
    assert len(node.read("delayd-dead")) == 2
    assert last(node).frontier.offsets == (2, 2)


def test_home_is_where_pauses_have_it(make: Maker) -> None:
    node = make("orders", partitions=3)
    limit(node, 1)
    home = home_of("orders", 3)
    assert len(node.kafka.log("delayd-buffer", home).read(0, 10)[0]) == 1
