"""Reads of leader keys that elections share."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from delayd.coordination import Leadership
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.errors import CoordinationError
from delayd.node.election.leader_reads import LeaderReads
from delayd.runtime.clock import SystemClock


class Counted(MemoryCoordination):
    """An etcd in memory that says how often it was asked, and does something before it answers."""

    def __init__(self) -> None:
        super().__init__(MemoryEtcd(SystemClock()), "c")
        self.calls = 0
        self.first: Callable[[], object] = lambda: None
        self.won = {
            shard: self.campaign(shard, f"owner-{shard}", self.grant_lease(60).id)
            for shard in (0, 1)
        }

    def leaders(self) -> dict[int, Leadership]:
        self.calls += 1
        self.first()
        return super().leaders()


def test_elections_that_ask_together_share_one_call() -> None:
    etcd = Counted()

    async def play() -> None:
        reads = LeaderReads(etcd, SystemClock())
        answers = await asyncio.gather(*(reads.read(shard) for shard in range(3)))
        assert [held for _, held in answers] == [etcd.won[0], etcd.won[1], None]
        assert etcd.calls == 1
        assert (await reads.read(1))[1] == etcd.won[1] and etcd.calls == 2

    asyncio.run(play())


def test_who_asks_while_a_read_is_under_way_gets_the_next_one() -> None:
    etcd, clock = Counted(), SystemClock()

    async def play() -> None:
        reads, loop = LeaderReads(etcd, clock), asyncio.get_running_loop()
        later: list[asyncio.Future[tuple[int, Leadership | None]]] = []

        def meanwhile() -> None:
            etcd.first = lambda: None
            ask = asyncio.run_coroutine_threadsafe(begin(), loop)
            ask.result(10)

        async def begin() -> None:
            later.append(asyncio.ensure_future(reads.read(1)))
            await asyncio.sleep(0)

        etcd.first = meanwhile
        begun_ms = clock.monotonic_ms()
        first_ms, _ = await reads.read(0)
        second_ms, held = await later[0]
        assert begun_ms <= first_ms <= second_ms
        assert etcd.calls == 2 and held == etcd.won[1]

    asyncio.run(play())


def test_an_answer_counts_from_before_it_was_asked_for_at_etcd() -> None:
    """docs/design/election.md, "Campaign": a late answer moves nothing further."""
    etcd, clock, begun_ms = Counted(), SystemClock(), list[int]()

    def take_time() -> None:
        begun_ms.append(clock.monotonic_ms())
        threading.Event().wait(0.05)

    async def play() -> None:
        etcd.first = take_time
        asked_ms, _ = await LeaderReads(etcd, clock).read(0)
        assert asked_ms <= begun_ms[0]

    asyncio.run(play())


def test_a_failure_reaches_all_that_asked_and_the_next_read_is_another() -> None:
    etcd = Counted()

    def fail() -> None:
        raise CoordinationError("no answer", remedy="ask again")

    async def play() -> None:
        reads = LeaderReads(etcd, SystemClock())
        etcd.first = fail
        answers = await asyncio.gather(reads.read(0), reads.read(1), return_exceptions=True)
        assert [type(answer) for answer in answers] == [CoordinationError] * 2
        etcd.first = lambda: None
        assert (await reads.read(0))[1] == etcd.won[0]

    asyncio.run(play())


def test_who_is_cancelled_leaves_the_read_to_the_others() -> None:
    etcd = Counted()

    async def play() -> None:
        reads = LeaderReads(etcd, SystemClock())
        gone = asyncio.ensure_future(reads.read(0))
        stays = asyncio.ensure_future(reads.read(1))
        await asyncio.sleep(0)
        gone.cancel()
        assert (await stays)[1] == etcd.won[1]
        with pytest.raises(asyncio.CancelledError):
            await gone

    asyncio.run(play())
