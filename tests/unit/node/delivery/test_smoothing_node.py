"""Smoothing as a whole node does it, over Kafka in memory. Source: docs/design/frontier.md."""

from dataclasses import replace
from itertools import pairwise

import pytest
from manual_clock import START_MS
from one_node import Maker, OneNode

from delayd.bus import Record
from delayd.config.node import NodeConfig
from delayd.errors import ConfigError
from delayd.node.delivery.fates import Fate
from delayd.node.startup_checks import check_rates
from replication.rank import lane_of
from replication.record import FrontierRecord, decode
from replication.settings import LANES

NEIGHBOUR = "shared-139"
"""It has the lane of `orders`."""
RATE = 20
COUNT = 60
DUE_MS = START_MS + 500


def header(record: Record, name: str) -> str | None:
    return {name: (value or b"").decode() for name, value in record.headers}.get(name)


def origin_of(record: Record) -> str:
    return header(record, "delayd-origin") or header(record, "delayd-source") or ""


def go_on(node: OneNode, until_ms: int) -> None:
    """Steps every 20 ms."""
    while node.clock.now_ms < until_ms:
        node.clock.now_ms += 20
        node.ingest()
        node.step()


def burst_of(node: OneNode) -> list[str]:
    """As many as three seconds may have, due at once; their sources in rank order."""
    sent = [node.send("orders", DUE_MS, partition=number % 3) for number in range(COUNT)]
    node.ingest()
    return [f"{p}/{o}" for p, o in sorted((ack.partition, ack.offset) for ack in sent)]


def test_a_burst_goes_out_in_rank_order_at_the_rate_and_says_how_late_it_is(make: Maker) -> None:
    """Rules: smoothing-rate, smoothing-order"""
    node = make("orders", partitions=3, rates={"orders": RATE})
    wanted = burst_of(node)
    go_on(node, DUE_MS + 2_000)
    assert 0 < node.smoothing_ms()["orders"] < 4_000
    go_on(node, DUE_MS + 9_000)
    out = node.read("orders")
    assert [origin_of(record) for record in out] == wanted
    fired_ms = [int(header(record, "delayd-fired") or 0) for record in out]
    at_once = 1 + RATE // 4
    assert fired_ms[at_once - 1] < DUE_MS + 30 < DUE_MS + 1_000 <= fired_ms[at_once]
    later = fired_ms[at_once:]
    assert all(b - a in (40, 60) for a, b in pairwise(later)), later
    assert {header(record, "delayd-due") for record in out} == {str(DUE_MS)}
    assert {header(record, "delayd-attempt") for record in out} == {None}
    figures = node.counters
    assert figures.messages[Fate.SMOOTHED.value] == COUNT - at_once == len(later)
    assert sum(figures.lateness["orders"].counts) == at_once
    smoothed = figures.smoothing_lateness["orders"]
    assert sum(smoothed.counts) == len(later)
    assert abs(smoothed.sum_ms - sum(at_ms - DUE_MS for at_ms in later)) < 50 * len(later)
    assert node.smoothing_ms() == {"orders": 0} and not node.failures


def test_another_topic_is_not_delayed_even_in_the_same_lane(make: Maker) -> None:
    """Rules: smoothing-alone"""
    node = make("orders", NEIGHBOUR, partitions=3, rates={"orders": 1})
    assert lane_of(NEIGHBOUR, LANES) == lane_of("orders", LANES)
    burst_of(node)
    for number in range(10):
        node.send(NEIGHBOUR, DUE_MS + 100 * number)
    node.ingest()
    go_on(node, DUE_MS + 1_200)
    fired_ms = [int(header(record, "delayd-fired") or 0) for record in node.read(NEIGHBOUR)]
    assert [at_ms - DUE_MS for at_ms in fired_ms] == [100 * number for number in range(10)]
    assert len(node.read("orders")) <= 3


def test_a_deferred_message_can_be_cancelled(make: Maker) -> None:
    """Rules: continuation-stored"""
    node = make("orders", partitions=3, rates={"orders": RATE})
    for number in range(COUNT):
        node.send("orders", DUE_MS, id=f"id-{number}")
    node.ingest()
    go_on(node, DUE_MS + 1_500)
    gone = {header(record, "delayd-id") for record in node.read("orders")}
    for number in range(COUNT):
        node.send("", id=f"id-{number}", op="cancel")
    go_on(node, DUE_MS + 9_000)
    told = [record.value or b"" for record in node.read("delayd-receipts")]
    assert {header(record, "delayd-id") for record in node.read("orders")} == gone
    assert sum(b'"cancelled"' in each for each in told) == COUNT - len(gone) > 20
    assert sum(b'"too-late"' in each for each in told) == len(gone) > 5


def test_a_successor_goes_on_at_the_rate_and_in_order(make: Maker) -> None:
    """Rules: smoothing-handed-on, smoothing-order"""
    node = make("orders", partitions=3, rates={"orders": RATE})
    wanted = burst_of(node)
    go_on(node, DUE_MS + 2_000)
    node.stop_leading()
    node.clock.now_ms += 3_000
    more = node.send("orders", node.clock.now_ms)
    go_on(node, DUE_MS + 12_000)
    out = node.read("orders")
    assert [origin_of(record) for record in out] == [*wanted, f"{more.partition}/{more.offset}"]
    fired_ms = [int(header(record, "delayd-fired") or 0) for record in out]
    for first, from_ms in enumerate(fired_ms):
        for last in range(first, len(fired_ms)):
            assert last - first <= RATE * (fired_ms[last] - from_ms + 1_250) / 1_000
    assert not node.failures


def test_without_its_rate_what_was_deferred_comes_when_it_is_due(make: Maker) -> None:
    node = make("orders", partitions=3, rates={"orders": RATE})
    wanted = burst_of(node)
    go_on(node, DUE_MS + 1_100)
    node.rates = {}
    node.stop_leading()
    go_on(node, DUE_MS + 9_000)
    assert [origin_of(record) for record in node.read("orders")] == wanted


def first_record(node: OneNode) -> FrontierRecord:
    return decode(node.read("delayd-frontier")[0].value or b"")


def test_a_cluster_from_before_there_were_turns_is_not_smoothed(make: Maker) -> None:
    """docs/operations.md, "When a node refuses to start".

    Rules: rules-version
    """
    record = first_record(make())
    check_rates(NodeConfig.model_construct(rate_max={"orders": 5}), record)
    old = replace(record, settings=replace(record.settings, rules_version=2))
    check_rates(NodeConfig.model_construct(rate_max={}), old)
    with pytest.raises(ConfigError, match="rules version 2, and smoothing needs 3"):
        check_rates(NodeConfig.model_construct(rate_max={"orders": 5}), old)


@pytest.mark.parametrize("name", ["delayd-buffer", "__consumer_offsets"])
def test_what_is_no_target_has_no_rate(make: Maker, name: str) -> None:
    with pytest.raises(ConfigError, match=f"rate_max names {name}"):
        check_rates(
            NodeConfig.model_construct(rate_max={name: 5, "orders": 5}), first_record(make())
        )
