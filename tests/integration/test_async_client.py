"""The asyncio client on a real Kafka, through both drivers."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import answering
import pytest
from answering import Answering, freeze
from confluent_kafka import Producer
from nodes import HANGS_S

from delayd import AsyncClient
from delayd.bus import Record
from delayd.client import (
    NotScheduledError,
    OutcomeUnknownError,
    Request,
    RequestRefusedError,
    Scheduled,
    VerdictUnknownError,
    async_client,
)
from delayd.client.connection import WINDOW
from delayd.client.driver import DriverName
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions
from delayd.errors import NotInitialisedError

SHORT_ACK_MS = 4_000
BLOCKED_S_MAX = 2.0
"""A loop that a busy machine holds up; a call that blocked it would take SHORT_ACK_MS or more."""

pytestmark = pytest.mark.real
master, driver = answering.master, answering.driver


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[tuple[Answering, Callable[[], None]]]:
    """Topics on a broker of the test's own, and a way to freeze it."""
    with LocalCluster(tmp_path, ClusterOptions(nodes=0)) as cluster:
        yield Answering(cluster.bootstrap), lambda: freeze(cluster)


def run(main: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANGS_S):
            await main

    asyncio.run(bounded())


async def longest_block_s(over: asyncio.Event) -> float:
    """How long the loop was away, at most, until `over`."""
    longest_s, last_s = 0.0, time.monotonic()
    while not over.is_set():
        await asyncio.sleep(0.01)
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def test_many_cancels_at_once_get_each_its_own_verdict(
    master: Answering, driver: DriverName
) -> None:
    async def main() -> None:
        async with AsyncClient(master.bootstrap, driver=driver, buffer=master.buffer) as client:
            ids = [f"order-{number}" for number in range(200)]
            with master.answering():
                verdicts = await asyncio.gather(*(client.cancel(id) for id in ids))
                replaced = await client.replace("order-1", "orders", b"v", in_="1h", key="k")
        assert {verdict.verdict for verdict in verdicts} == {"cancelled"}
        assert len({verdict.source for verdict in verdicts}) == 200
        assert replaced.verdict == "replaced"

    run(main())


def test_schedules_that_wait_get_each_its_own_verdict(
    master: Answering, driver: DriverName
) -> None:
    def answer(record: Record) -> None:
        source = f"{record.partition}/{record.offset}"
        id = dict(record.headers).get("delayd-id", source.encode())
        master.write(source, (id or b"").decode(), "scheduled", op="schedule")

    async def main() -> None:
        async with AsyncClient(master.bootstrap, driver=driver, buffer=master.buffer) as client:
            with master.answering(answer):
                verdicts = await asyncio.gather(
                    *(client.schedule("orders", b"v", in_="1h", wait=True) for _ in range(30)),
                    *(
                        client.schedule("orders", b"v", in_="1h", id=f"order-{n}", wait=True)
                        for n in range(30)
                    ),
                )
        assert {verdict.verdict for verdict in verdicts} == {"scheduled"}
        assert len({verdict.source for verdict in verdicts}) == 60

    run(main())


def test_schedules_and_calls_without_wait_return_their_places(
    master: Answering, driver: DriverName
) -> None:
    async def main() -> None:
        async with AsyncClient(master.bootstrap, driver=driver, buffer=master.buffer) as client:
            first = await client.schedule("orders", b"1", at=7, id="a")
            second = await client.cancel("a", wait=False)
            third = await client.replace("a", "orders", b"3", at=9, wait=False)
            await client.flush()
        places = [(p.partition, p.offset) for p in (first, second, third)]
        assert [(r.partition, r.offset) for r in master.read(3)] == places
        assert (first.due_ms, third.due_ms) == (7, 9)

    run(main())


def test_many_requests_are_taken_from_an_asynchronous_source_as_it_goes(
    master: Answering, driver: DriverName
) -> None:
    taken = 0

    async def endless() -> AsyncIterator[Request]:
        nonlocal taken
        while True:
            taken += 1
            yield Request("orders" if taken != 10 else "__bad", b"v", at=taken, id="i")

    async def main() -> None:
        async with AsyncClient(master.bootstrap, driver=driver, buffer=master.buffer) as client:
            outcomes = client.schedule_many(endless())
            first = [await anext(outcomes) for _ in range(1_500)]
            assert taken <= 1_500 + WINDOW
            await outcomes.aclose()
            assert isinstance(first[9], RequestRefusedError)
            done = [outcome for outcome in first if isinstance(outcome, Scheduled)]
            assert [outcome.due_ms for outcome in done] == [n for n in range(1, 1_501) if n != 10]
            offsets = [outcome.offset for outcome in done]
            assert offsets == sorted(offsets)
            listed = client.schedule_many([Request("orders", b"v", at=1)])
            assert len([outcome async for outcome in listed]) == 1

    run(main())


def test_a_cancelled_task_leaves_nothing_behind(master: Answering, driver: DriverName) -> None:
    async def main() -> None:
        async with AsyncClient(master.bootstrap, driver=driver, buffer=master.buffer) as client:
            for id in ("a", "b", "c"):
                waiting = asyncio.create_task(client.cancel(id))
                sources = 1 + "abc".index(id)
                await asyncio.to_thread(master.read, sources)  # its request is there
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            at_once = [asyncio.create_task(client.cancel(f"{n}")) for n in range(50)]
            await asyncio.sleep(0)
            for task in at_once:
                task.cancel()
            await asyncio.gather(*at_once, return_exceptions=True)
            await until(lambda: client._calls._value == async_client.CALLS_MAX)
            reading = client._verdicts._reading
            assert reading is not None and not reading.tickets
            assert client._verdicts._count == 0
            await client.flush()
            assert not client._outbox._in_flight.left()
            with master.answering():
                assert (await client.cancel("a")).verdict == "cancelled"

    run(main())


def test_calls_under_way_are_bounded_and_the_others_wait_their_turn(
    master: Answering, driver: DriverName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_client, "CALLS_MAX", 3)

    async def main() -> None:
        async with AsyncClient(master.bootstrap, driver=driver, buffer=master.buffer) as client:
            tasks = [asyncio.create_task(client.cancel(f"{n}")) for n in range(10)]
            await asyncio.to_thread(master.read, 3)
            await until(client._calls.locked)
            assert client._verdicts._count == 3
            with master.answering():
                verdicts = await asyncio.gather(*tasks)
        assert len(verdicts) == 10

    run(main())


def test_the_loop_is_not_blocked_while_the_broker_is_frozen(
    frozen: tuple[Answering, Callable[[], None]], driver: DriverName
) -> None:
    master, freeze = frozen

    async def main() -> None:
        client = AsyncClient(
            master.bootstrap, driver=driver, buffer=master.buffer, ack_timeout_ms=SHORT_ACK_MS
        )
        await client.schedule("orders", b"v", in_="1h")
        await asyncio.to_thread(freeze)
        over = asyncio.Event()
        watch = asyncio.create_task(longest_block_s(over))
        outcomes = await asyncio.gather(
            *(client.schedule("orders", b"v", in_="1h") for _ in range(100)),
            client.cancel("a", wait=False),
            return_exceptions=True,
        )
        assert all(isinstance(outcome, OutcomeUnknownError) for outcome in outcomes), outcomes[0]
        pending = [asyncio.create_task(client.schedule("orders", b"v", in_="1h")) for _ in "ab"]
        await until(lambda: len(client._outbox._in_flight.left()) == len(pending))
        await client.close()
        done, waiting = await asyncio.wait(pending, timeout=HANGS_S)
        assert not waiting
        # The library may say that one never left its queue.
        errors = [task.exception() for task in done]
        assert all(isinstance(error, OutcomeUnknownError | NotScheduledError) for error in errors)
        over.set()
        assert await watch < BLOCKED_S_MAX

    run(main())


def test_close_ends_waits_and_threads_and_later_calls_are_refused(
    master: Answering, driver: DriverName
) -> None:
    before = set(threading.enumerate())

    async def main() -> None:
        client = AsyncClient(master.bootstrap, driver=driver, buffer=master.buffer)
        waiting = asyncio.create_task(client.cancel("a"))
        await asyncio.to_thread(master.read, 1)
        await client.close()
        await client.close()
        with pytest.raises(VerdictUnknownError, match="closed"):
            await waiting
        with pytest.raises(RequestRefusedError, match="closed"):
            await client.cancel("a")
        with pytest.raises(RequestRefusedError, match="closed"):
            await client.schedule("orders", b"v", in_="1h")

    run(main())
    assert {t.name for t in set(threading.enumerate()) - before} == set()


def test_a_time_out_says_that_the_outcome_is_unknown(master: Answering, driver: DriverName) -> None:
    async def main() -> None:
        async with AsyncClient(master.bootstrap, driver=driver, buffer=master.buffer) as client:
            with pytest.raises(VerdictUnknownError, match="a repeated cancel gets a true answer"):
                await client.cancel("a", timeout_ms=500)
            with master.answering():
                assert (await client.cancel("a")).verdict == "cancelled"

    run(main())


def test_errors_before_anything_is_sent_reach_the_caller(
    master: Answering, driver: DriverName
) -> None:
    async def main() -> None:
        missing = f"{master.buffer}-missing"
        async with AsyncClient(
            master.bootstrap, driver=driver, buffer=missing, receipts=master.receipts
        ) as client:
            with pytest.raises(NotInitialisedError, match=missing):
                await client.cancel("a")
            with pytest.raises(NotInitialisedError, match=missing):
                await client.schedule("orders", b"v", in_="1h")
            with pytest.raises(RequestRefusedError):
                await client.schedule("__bad", b"v", in_="1h")

    run(main())


def test_requests_go_through_the_users_own_producer_too(master: Answering) -> None:
    own = Producer({"bootstrap.servers": master.bootstrap})

    async def main() -> None:
        async with AsyncClient(master.bootstrap, buffer=master.buffer) as client:
            futures: list[asyncio.Future[Any]] = [
                await client.schedule_in(own, "orders", b"v", in_="1h", id="a"),
                await client.replace_in(own, "a", "orders", b"v", in_="1h"),
                await client.cancel_in(own, "a"),
            ]
            with pytest.raises(RequestRefusedError, match="inside the transaction"):
                await client.cancel_in(own, "a", wait=True)
            await asyncio.to_thread(own.flush, HANGS_S)
            offsets = [(await future).offset for future in futures]
        assert offsets == [record.offset for record in master.read(3)]

    run(main())
