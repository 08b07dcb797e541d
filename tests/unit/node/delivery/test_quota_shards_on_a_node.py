"""Limits of a cluster with several shards, over Kafka in memory: each master counts the whole topic
and shuts the partitions of its shard.

Source: docs/design/quotas.md, "Shards".
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from manual_clock import START_MS
from one_node import CLUSTER_KEY, Maker, OneNode, ShardedNode, nodes_in

from delayd.cluster.frontier_log import FrontierLog, SeenFrontier
from delayd.cluster.limiting import change_quota, lagging_shards, set_quota, torn_limits
from delayd.cluster.ordering import Cluster
from delayd.cluster.topics import last_frontier
from delayd.errors import QuotaError
from delayd.node.delivery.mastership import Mastership
from delayd.node.delivery.standby import Standby
from delayd.request import RequestLimits, quota_record
from delayd.testing.node import TIMEOUT_MS
from replication.quotas import QUOTAS_MAX, Quota, QuotaOrder
from replication.record import FrontierRecord, decode

SHARDS, PARTITIONS = 2, 4
LATER_MS = START_MS + 60_000


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    with nodes_in(tmp_path) as maker:
        yield maker


def made(make: Maker) -> OneNode:
    return make("orders", partitions=PARTITIONS, shards=SHARDS)


def limit(
    node: OneNode,
    max_pending: int,
    rate: int = 0,
    shards: Iterable[int] = range(SHARDS),
    topic: str = "orders",
) -> None:
    """Write an order to these shards, to be obeyed by the next steps."""
    order = QuotaOrder(topic, node.clock.now_ms, max_pending, rate)
    limits = RequestLimits.of(node.settings, CLUSTER_KEY.encode())
    for shard in shards:
        written = quota_record(order, limits, shard)
        node.kafka.append("delayd-buffer", written.partition, None, None, written.headers)


def turn(node: OneNode, count: int = 3, by_ms: int = 1) -> None:
    """Let the node take in what there is, and take steps of all shards."""
    for _ in range(count):
        node.clock.now_ms += by_ms
        node.ingest()
        node.step()


def last(node: OneNode, shard: int) -> FrontierRecord:
    record = node.kafka.log("delayd-frontier", shard).read(0, 10**9)[0][-1]
    return decode(record.value or b"")


def quotas(node: OneNode) -> list[Quota]:
    return [last(node, shard).quotas["orders"] for shard in range(SHARDS)]


def seen(node: OneNode) -> SeenFrontier:
    found = last_frontier(node.bus, "delayd-frontier", TIMEOUT_MS)
    assert found is not None
    return found


def gates(node: OneNode) -> list[list[str]]:
    """By partition: what masters have said of topics."""
    found = []
    for log in node.kafka.topics["delayd-buffer"].partitions:
        headers = [dict(record.headers) for record in log.read(0, 10**9)[0]]
        said = [(each.get("delayd-quota") or b"").decode().split("/")[0] for each in headers]
        found.append([kind for kind in said if kind in ("full", "fast", "open")])
    return found


def test_each_master_counts_all_and_shuts_its_own_partitions(make: Maker) -> None:
    """Rules: quota-shards, quota-full, quota-opened"""
    node = made(make)
    limit(node, 4)
    turn(node)
    assert [each.at_ms for each in quotas(node)] == [START_MS] * SHARDS
    for number in range(4):
        node.send("orders", LATER_MS, partition=number % 2 * 2)
    turn(node, 1)
    assert gates(node) == [["full"]] * PARTITIONS, "though all are in partitions of shard 0"
    assert [(each.pending, each.is_full) for each in quotas(node)] == [(4, True)] * SHARDS
    for partition in range(PARTITIONS):
        node.send("orders", LATER_MS, partition=partition)
    turn(node)
    assert len(node.read("delayd-dead")) == PARTITIONS
    node.clock.now_ms = LATER_MS
    turn(node, 8, by_ms=500)
    assert len(node.read("orders")) == 4 and not node.failures
    assert gates(node) == [["full", "open"]] * PARTITIONS
    assert [(each.pending, each.is_full) for each in quotas(node)] == [(0, False)] * SHARDS


def test_requests_of_all_shards_count_for_a_rate(make: Maker) -> None:
    """Rules: quota-shards, quota-rate"""
    node = made(make)
    limit(node, 0, rate=1)
    turn(node)
    for number in range(10):
        node.send("orders", LATER_MS, partition=number % PARTITIONS)
    turn(node, 1)
    assert gates(node) == [["fast"]] * PARTITIONS
    assert [each.taken for each in quotas(node)] == [10] * SHARDS


def test_a_shard_that_lags_is_counted_with(make: Maker) -> None:
    """What a shard has delivered in seconds that another has not passed counts in both: too many
    may be counted, and none too few. Rules: quota-shards"""
    node = made(make)
    assert isinstance(node, ShardedNode)
    limit(node, 4)
    turn(node)
    for number in range(4):
        node.send("orders", START_MS + 500, partition=number)
    node.ingest()
    node.clock.now_ms = START_MS + 3_000
    first = node._leading[0]
    for _ in range(3):
        node.clock.now_ms += 4_000
        first.advance()
    assert len(node.read("orders")) == 2
    found = last(node, 0).quotas["orders"]
    assert found.pending == 4 and found.is_full, "shard 1 stands before that second"
    assert lagging_shards(seen(node), "orders") == [1], "which people are told"
    turn(node, 4, by_ms=500)
    assert lagging_shards(seen(node), "orders") == []
    assert len(node.read("orders")) == 4
    assert [each.pending for each in quotas(node)] == [0, 0]


def test_a_successor_in_one_shard_goes_on_with_the_whole_count(make: Maker) -> None:
    """Rules: quota-shards, quota-in-frontier"""
    node = made(make)
    limit(node, 2)
    turn(node)
    for partition in (0, 1):
        node.send("orders", LATER_MS, partition=partition)
    turn(node, 1)
    assert gates(node) == [["full"]] * PARTITIONS
    node.stop_leading()
    turn(node)
    for partition in range(PARTITIONS):
        node.send("orders", LATER_MS, partition=partition)
    turn(node)
    assert len(node.read("delayd-dead")) == PARTITIONS
    assert [each.pending for each in quotas(node)] == [2, 2]


def ordering(node: OneNode, steps: bool) -> Cluster:
    """A person who gives orders; with `steps` masters pass them meanwhile."""

    class Stepping(type(node.clock)):  # type: ignore[misc]
        def monotonic_ms(self) -> int:
            if steps:
                turn(node, 1)
            node.clock.now_ms += 100
            return node.clock.monotonic_ms()

        def wall_ms(self) -> int:
            return node.clock.wall_ms()

    return Cluster(node.bus, Stepping(), node.settings.cluster, "delayd-", CLUSTER_KEY, 1_000)


def test_an_order_that_has_reached_some_shards_only_is_seen_and_given_again(make: Maker) -> None:
    """Rules: quota-shards"""
    node = made(make)
    turn(node)
    limit(node, 7, shards=[0])
    turn(node)
    assert torn_limits(seen(node)) == ["orders"]
    told = change_quota(ordering(node, steps=True), "orders", None, 3)
    assert told is not None and (told.max_pending, told.rate) == (7, 3)
    assert [(each.max_pending, each.rate) for each in quotas(node)] == [(7, 3)] * SHARDS
    assert torn_limits(seen(node)) == []
    ended = QuotaOrder("orders", node.clock.now_ms, 0)
    assert set_quota(ordering(node, steps=True), ended) is None
    assert not any(last(node, shard).quotas for shard in range(SHARDS))


def test_an_order_that_one_shard_does_not_obey_is_an_error(make: Maker) -> None:
    """Here it has as many limits as it may have. Rules: quota-shards"""
    node = made(make)
    limit(node, 7, shards=[0])
    for number in range(QUOTAS_MAX):
        limit(node, 5, shards=[1], topic=f"topic-{number}")
    turn(node)
    with pytest.raises(QuotaError, match="was passed and not obeyed"):
        change_quota(ordering(node, steps=True), "orders", 9, None)
    assert last(node, 0).quotas["orders"].max_pending == 9
    assert "orders" not in last(node, 1).quotas


def test_an_order_that_a_shard_has_not_passed_is_not_called_obeyed(make: Maker) -> None:
    """Rules: quota-shards"""
    node = made(make)
    turn(node)
    assert isinstance(node, ShardedNode)
    node._leading.pop(1).close()
    with pytest.raises(QuotaError, match="no master has passed it yet"):
        change_quota(ordering(node, steps=True), "orders", 5, None)
    log = FrontierLog(node.bus, node.settings.frontier.name, 1)
    log.open(TIMEOUT_MS)
    standby = Standby(node.bus, node.settings, node.clock, 1)
    context = replace(node.delivery_context(), frontier_log=log, standby=standby, shard=1)
    node._leading[1] = Mastership(context, node.grant)
    assert node._leading[1].take_over()
    turn(node)
    assert [each.max_pending for each in quotas(node)] == [5] * SHARDS
