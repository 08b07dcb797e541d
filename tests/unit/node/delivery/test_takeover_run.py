"""A takeover as a node carries it out, and where it ends with its grant."""

from pathlib import Path

import pytest
from one_node import TIMEOUT_MS, OneNode

from delayd.cluster.frontier_log import FrontierLog
from delayd.cluster.topics import transactional_id
from delayd.errors import KafkaUnreachableError
from delayd.node.delivery.commits.transaction import SLOW_INIT_MS, TransactionCommit
from delayd.node.delivery.takeover_run import run_takeover
from replication.takeover import FencePredecessors, PredecessorsFenced, Takeover

ORDERS_BEFORE_THE_FENCE = 1
ORDERS = 5
"""Before the last one, BeginTerm."""


@pytest.mark.parametrize("turns", range(ORDERS + 2))
def test_a_takeover_ends_with_its_grant_wherever_it_is(tmp_path: Path, turns: int) -> None:
    """docs/design/frontier.md, Takeover: never fence without a fresh lease, never go on.

    Rules: fence-needs-lease
    """
    node = OneNode(tmp_path, "orders")
    node.lead()
    frontiers = FrontierLog(node.bus, "delayd-frontier", 0)
    frontiers.open(TIMEOUT_MS)
    producer = node.bus.transactional_producer(transactional_id(node.settings.realm, 0))
    commit = TransactionCommit(producer, frontiers, node.clock)
    is_good = iter([True] * turns + [False])  # The grant is not looked at again after its end.
    order = run_takeover(
        Takeover(), commit, node.replica, frontiers, node.clock, lambda: next(is_good)
    )
    assert (order is None) == (turns <= ORDERS)
    node.send("orders")
    node.ingest()
    node.step()
    assert bool(node.failures) == (turns > ORDERS_BEFORE_THE_FENCE), "is the predecessor fenced?"
    node.close()


@pytest.mark.parametrize(("took_ms", "renewals"), [(SLOW_INIT_MS - 1, 0), (SLOW_INIT_MS, 1)])
def test_what_waited_long_for_the_fence_asks_over_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_ms: int, renewals: int
) -> None:
    """docs/design/frontier.md, A broker that dies: old connections find successors late."""
    node = OneNode(tmp_path, "orders")
    frontiers = FrontierLog(node.bus, "delayd-frontier", 0)
    producer = node.bus.transactional_producer(transactional_id(node.settings.realm, 0))
    begin = producer.init_transactions

    def slow(timeout_ms: int) -> None:
        node.clock.now_ms += took_ms
        begin(timeout_ms)

    monkeypatch.setattr(producer, "init_transactions", slow)
    renewed: list[int] = []
    commit = TransactionCommit(producer, frontiers, node.clock, lambda: renewed.append(1))
    assert isinstance(commit.obey(FencePredecessors()), PredecessorsFenced)
    assert len(renewed) == renewals
    node.close()


def test_a_log_that_is_shorter_at_a_broker_that_leads_no_more_is_read_elsewhere(
    tmp_path: Path,
) -> None:
    """docs/design/frontier.md, Stale reads: new connections may lead there; no node ends for it."""
    node = OneNode(tmp_path, "orders")
    node.kafka.isolate_leader("delayd-frontier", 0)
    node.lead()
    frontiers = FrontierLog(node.bus, "delayd-frontier", 0)
    frontiers.open(TIMEOUT_MS)
    end = frontiers.read_to
    node.clock.now_ms += TIMEOUT_MS
    node.step()
    node.bus.link.meets_zombies = True
    frontiers.renew()
    with pytest.raises(KafkaUnreachableError, match="cannot be read from"):
        frontiers.catch_up(end + 2, TIMEOUT_MS)
    node.bus.link.meets_zombies = False
    frontiers.renew()
    frontiers.catch_up(end + 2, TIMEOUT_MS)
    assert frontiers.read_to == end + 2
    node.close()
