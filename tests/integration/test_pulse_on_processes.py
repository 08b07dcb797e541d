"""The pulse on real processes: who is dead is replaced at once, who is frozen after a suspicion.

Leases of 60 s, kept alive every 20: within 40 s of any moment no lease has run out.
Source: docs/design/election.md, "Pulse".
"""

import signal

import psutil
import pytest
from clusters import TestCluster
from nodes import NodeProcess, master_of, running, wait_for
from test_failover import batch_on, kill, wait_due, watched

pytestmark = pytest.mark.real

LEASE_TTL_S = 60
WITHIN_LEASE_S = 40


def hears(node: NodeProcess, master: NodeProcess) -> bool:
    """Has the node a connection to the master's admin port? The master answers it before it answers
    the question for its status."""
    assert node.process is not None, "it runs"
    connected = any(
        each.raddr and each.raddr.port == master.port and each.status == psutil.CONN_ESTABLISHED
        for each in psutil.Process(node.process.pid).net_connections("tcp")
    )
    return connected and master.is_master() and bool(node.status())


def test_a_killed_master_is_replaced_before_its_lease_ends_and_a_frozen_one_too(
    cluster: TestCluster,
) -> None:
    """Nothing is lost or doubled, also when the frozen master wakes up."""
    nodes = [cluster.node(number, lease_ttl_s=LEASE_TTL_S) for number in range(3)]
    with running(nodes):
        for node in nodes:
            node.wait_ready()
        batch = batch_on((cluster.target("a"),), 4_000, 6_000)
        with watched(cluster, batch) as witness:
            wait_due(batch, 0.2)
            killed = master_of(nodes)
            rest = [node for node in nodes if node is not killed]
            kill(killed, witness)
            frozen = master_of(rest, WITHIN_LEASE_S)
            assert any("master_found_dead" in node.log for node in rest)
            killed.start().wait_ready()
            rest = [node for node in nodes if node is not frozen]
            wait_for(lambda: all(hears(node, frozen) for node in rest), "both hear its pulse")
            frozen.signal(signal.SIGSTOP)
            master_of(rest, WITHIN_LEASE_S)
            assert all("master_missed" in node.log for node in rest)
            frozen.signal(signal.SIGCONT)
            wait_for(lambda: not frozen.is_master(), "it is master no more")
