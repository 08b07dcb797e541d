"""Each election of a node with several shards acts on the leader key of its own shard, though one
read serves them all.

Real elections and control loops over an etcd in memory; no delivery thread runs. Source:
docs/design/shards.md, "How a node runs them".
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest
from one_node import TIMEOUT_MS, Maker, OneNode

from delayd.cluster.frontier_log import FrontierLog
from delayd.coordination import Leadership
from delayd.coordination.keys import leader_key
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.node.delivery.delivery_loop import DeliveryLoop
from delayd.node.election.control_loop import ControlLoop
from delayd.node.election.election_context import ElectionContext
from delayd.node.election.etcd_calls import Identity
from delayd.node.election.etcd_health import EtcdHealth
from delayd.node.election.heartbeat import Heartbeat
from delayd.node.election.leader_reads import LeaderReads
from delayd.node.election.membership import Membership
from delayd.runtime.clock import SystemClock
from replication.election import Election
from replication.election_facts import ResignReason, State
from replication.election_times import ElectionTimes

SHARDS = 4
ALL = range(SHARDS)
LEASE_TTL_S = 600
"""No lease runs out, and no keepalive is due, while a test runs."""
TIMES = ElectionTimes(lease_ttl_s=LEASE_TTL_S, stall_ms=10**9)
LIFE = "life"
WAIT_S = 60
READS = 3
"""After so many more reads each election has had an answer that was asked for before."""


class Etcd(MemoryCoordination):
    """Says how often the leader keys of all shards were read."""

    def __init__(self) -> None:
        self.server = MemoryEtcd(SystemClock())
        super().__init__(self.server, "c")
        self.reads = 0

    def leaders(self) -> dict[int, Leadership]:
        found = super().leaders()
        self.reads += 1
        return found

    def lose_key(self, shard: int) -> None:
        """Delete a leader key; its lease stays good."""
        key = leader_key("c", shard)
        self.server.client_call(lambda: self.server.delete(key), None)

    def led_by(self, node: str, nonce: str, shard: int) -> int:
        """Let a node lead a shard; return its lease."""
        lease_id = self.grant_lease(LEASE_TTL_S).id
        value = Identity(node, nonce, "").leader_value(lease_id)
        assert self.campaign(shard, value, lease_id).owner == value, "nobody else leads it"
        return lease_id


class Loops:
    """The control loops of one node. Made on the event loop."""

    def __init__(self, node: OneNode, etcd: Etcd) -> None:
        self.etcd, clock = etcd, SystemClock()
        identity, health = Identity("n", LIFE, ""), EtcdHealth(clock)
        context = ElectionContext(
            etcd,
            node.replica,
            clock,
            identity,
            health,
            Membership(etcd, node.replica, clock, identity, health),
            Heartbeat(LIFE, SHARDS),
            leaders=LeaderReads(etcd, clock),
        )
        self.of = [self._loop(node, context, shard) for shard in ALL]

    def _loop(self, node: OneNode, context: ElectionContext, shard: int) -> ControlLoop:
        log = FrontierLog(node.bus, node.settings.frontier.name, shard)
        seen = log.open(TIMEOUT_MS)
        assert seen is not None
        node.replica.observe(seen)
        options = node.delivery_context().options
        delivery = DeliveryLoop(
            node.bus, node.replica, log, context.clock, options, lambda *_: None, lambda _: None
        )
        return ControlLoop(context, Election(LIFE, TIMES, is_fenced=True), delivery, shard)

    def masters(self) -> list[str | None]:
        """Who leads each shard, as its own loop knows."""
        return [loop.master_name for loop in self.of]

    def won(self) -> list[int]:
        """The leaderships of each loop."""
        return [loop.won_count for loop in self.of]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def read_again(self) -> None:
        """Wait until each loop has heard of what is in etcd now."""
        seen = self.etcd.reads + READS
        await self.until(lambda: self.etcd.reads >= seen)


def play(make: Maker, etcd: Etcd, what: Callable[[Loops], Awaitable[None]]) -> None:
    """Do it while the loops of a node run."""
    node = make(shards=SHARDS, partitions=SHARDS)

    async def run() -> None:
        loops = Loops(node, etcd)
        tasks = [asyncio.create_task(loop.run()) for loop in loops.of]
        try:
            await what(loops)
        finally:
            for task in tasks:
                task.cancel()

    asyncio.run(run())


def others_lead(etcd: Etcd, shards: Iterable[int]) -> dict[int, int]:
    """Let another node lead each of these shards; return its leases, by shard."""
    return {shard: etcd.led_by(f"n{shard}", f"life-{shard}", shard) for shard in shards}


def test_each_election_follows_the_master_of_its_own_shard(make: Maker) -> None:
    etcd = Etcd()
    others_lead(etcd, ALL)

    async def watch(loops: Loops) -> None:
        await loops.until(lambda: None not in loops.masters())
        await loops.read_again()
        assert loops.masters() == ["n0", "n1", "n2", "n3"]
        assert loops.won() == [0, 0, 0, 0]

    play(make, etcd, watch)


@pytest.mark.parametrize("absent", ALL)
def test_a_key_that_goes_is_campaigned_for_by_the_election_of_its_shard_alone(
    make: Maker, absent: int
) -> None:
    etcd = Etcd()
    leases = others_lead(etcd, ALL)

    async def lose(loops: Loops) -> None:
        await loops.until(lambda: None not in loops.masters())
        etcd.revoke(leases[absent])
        await loops.until(lambda: any(loops.won()))
        await loops.read_again()
        assert loops.won() == [int(shard == absent) for shard in ALL]
        assert loops.masters() == ["n" if shard == absent else f"n{shard}" for shard in ALL]

    play(make, etcd, lose)


def test_the_key_of_a_former_life_is_nobodys_until_it_goes(make: Maker) -> None:
    """Its lease is of a former campaign, which runs out: nothing is delivered under it."""
    etcd = Etcd()
    others_lead(etcd, (0, 1, 3))
    stale = etcd.led_by("n", LIFE, 2)

    async def wait(loops: Loops) -> None:
        await loops.until(lambda: None not in loops.masters())
        await loops.read_again()
        assert loops.masters()[2] == "n" and loops.won() == [0, 0, 0, 0]
        etcd.revoke(stale)
        await loops.until(lambda: any(loops.won()))
        await loops.read_again()
        assert loops.won() == [0, 0, 1, 0]

    play(make, etcd, wait)


@pytest.mark.parametrize("is_taken", [False, True], ids=["absent", "taken"])
def test_a_master_that_has_lost_one_key_of_four_reads_that_one_again(
    make: Maker, is_taken: bool
) -> None:
    """It leads the first shard, too, whose key says so: that is no answer for another one."""
    etcd = Etcd()

    async def lose(loops: Loops) -> None:
        await loops.until(lambda: loops.won() == [1, 1, 1, 1])
        held = etcd.leaders()
        lost = loops.of[2]
        etcd.lose_key(2)
        if is_taken:
            etcd.led_by("n2", "life-2", 2)
        lost.fault(ResignReason.LEASE_LOST)
        ends_as = State.RESIGNING if is_taken else State.MASTER
        await loops.until(lambda: lost.state is ends_as)
        now = etcd.leaders()
        assert now[2].create_revision > held[2].create_revision
        assert {n: now[n] for n in (0, 1, 3)} == {n: held[n] for n in (0, 1, 3)}
        assert [loops.of[n].state for n in (0, 1, 3)] == [State.MASTER] * 3

    play(make, etcd, lose)
