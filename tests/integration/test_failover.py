"""Nodes die, hand over and come back under load; the independent witness counts.

The witness (delayd/dev/witness.py) is kafka-python in a process of its own: lost, doubled, early,
altered and unknown must all be 0. Kills and freezes under loads of everything are in
test_failover_mixed.py. Source: docs/design/frontier.md, "Takeover" and "Fence".
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from clusters import TestCluster, schedule
from nodes import (
    CLOCK,
    HANGS_S,
    NodeProcess,
    master_of,
    node_group,
    running,
    wait_for,
    wait_until_wall,
)

from delayd.dev.batch import Batch
from delayd.dev.ledger import Kill
from delayd.dev.verdict import Verdict
from delayd.dev.witness import Witness

pytestmark = pytest.mark.real


def batch_on(topics: tuple[str, ...], count: int, spread_ms: int, lead_ms: int = 3_000) -> Batch:
    """A batch that begins to be due soon."""
    return Batch(f"r{CLOCK.wall_ms()}", topics, count, CLOCK.wall_ms() + lead_ms, spread_ms)


def wait_due(batch: Batch, share: float) -> None:
    """Wait until a share of the batch has become due."""
    at_ms = batch.first_due_ms + int(batch.spread_ms * share)
    wait_until_wall(at_ms)


def finish(witness: Witness, batch: Batch) -> Verdict:
    """Wait until everything came or is long overdue, and judge."""
    overdue_ms = max(0, batch.first_due_ms + batch.spread_ms - CLOCK.wall_ms())
    witness.wait_until(batch.count, overdue_ms + HANGS_S * 1000)
    verdict = witness.stop()
    assert verdict.ok, verdict
    return verdict


@contextmanager
def watched(cluster: TestCluster, batch: Batch) -> Iterator[Witness]:
    """Schedule a batch. At the end, all of it has come once."""
    with (
        cluster.client() as client,
        Witness(cluster.bootstrap, batch, log=cluster.folder / "witness.log") as witness,
    ):
        schedule(client, batch)
        yield witness
        finish(witness, batch)


def kill(node: NodeProcess, witness: Witness) -> None:
    """SIGKILL the master, and tell the witness."""
    at_ms = CLOCK.wall_ms()
    node.kill()
    witness.note_kill(Kill(at_ms, CLOCK.wall_ms()))


def test_sigterm_hands_over_within_the_lease_and_exits_0(cluster: TestCluster) -> None:
    nodes = [cluster.node(number, lease_ttl_s=60) for number in range(2)]
    with running(nodes):
        batch = batch_on((cluster.target("a"),), 5_000, 6_000)
        with watched(cluster, batch):
            wait_due(batch, 0.3)
            leaving = master_of(nodes)
            leaving.signal(signal.SIGTERM)
            assert leaving.wait_exit() == 0, leaving.log
            # Long before a lease of 60 s could run out: it was given back.
            master_of([node for node in nodes if node is not leaving], timeout_s=40)


def test_what_became_due_while_every_node_was_dead_is_delivered_once(
    cluster: TestCluster,
) -> None:
    nodes = [cluster.node(number) for number in range(2)]
    with running(nodes):
        batch = batch_on((cluster.target("a"),), 5_000, 5_000)
        with watched(cluster, batch) as witness:
            wait_due(batch, 0.3)
            for node in nodes:
                node.kill()
            wait_due(batch, 1.0)
            assert witness.snapshot().counts.delivered < batch.count
            for node in nodes:
                node.start()


def test_a_node_that_lost_its_disk_rebuilds_and_can_take_over(cluster: TestCluster) -> None:
    first, second = cluster.node(0), cluster.node(1)
    with running([first]), node_group([second]):
        batch = batch_on((cluster.target("a"),), 4_000, 12_000)
        with watched(cluster, batch) as witness:
            wait_due(batch, 0.2)
            second.start().wait_ready()
            wait_due(batch, 0.5)
            kill(first, witness)
            assert master_of([second]) is second


def test_a_node_whose_clock_is_ahead_delivers_nothing_early(cluster: TestCluster) -> None:
    """Source: docs/design/frontier.md, "Now"."""
    ahead, right = cluster.node(0), cluster.node(1)
    with node_group([ahead, right]):
        ahead.start(env={"DELAYD_CLOCK_OFFSET_MS": "10000"})
        batch = batch_on((cluster.target("a"),), 2_000, 4_000, lead_ms=6_000)
        with watched(cluster, batch):
            wait_for(lambda: "clock-drift" in ahead.log, "the wrong clock is noticed")
            right.start()
            assert master_of([right]) is right
        assert ahead.status()["delivered_count"] == 0


def test_a_node_whose_clock_is_a_little_ahead_is_held_back_by_the_brokers_clock(
    cluster: TestCluster,
) -> None:
    """Within `clock_drift_max_ms` a node may be master; the broker's bound keeps it from being
    early. Source: docs/design/frontier.md, "Now"."""
    node = cluster.node(0)
    with node_group([node]):
        node.start(env={"DELAYD_CLOCK_OFFSET_MS": "400"})
        master_of([node])
        batch = batch_on((cluster.target("a"),), 2_000, 4_000)
        with watched(cluster, batch):
            pass
