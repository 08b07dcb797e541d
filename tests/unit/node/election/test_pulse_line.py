"""The pulse over real sockets: a node's admin server on one side, the line of another one here."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import Authority, Leaf

from delayd.config.security import certificate_digest
from delayd.dev.ports import pick_ports
from delayd.node.election.heartbeat import LISTENERS_MAX, Heartbeat
from delayd.node.election.pulse_line import HttpExchange, Opened, Place
from delayd.node.monitoring.http import AdminServer, build_app, build_fetching_app
from replication import pulse

LONG_MS = 60_000
LEASE_ID = 7


@asynccontextmanager
async def admin(app: Any, leaf: Leaf | None = None) -> AsyncIterator[int]:
    """The admin server of this app, and its port."""
    (port,) = pick_ports(1)
    files = (leaf.cert, leaf.key) if leaf else (None, None)
    server = AdminServer(app, "127.0.0.1", port, *files)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    yield port
    server.should_exit = True
    await serving


def node_app(heartbeat: Heartbeat) -> Any:
    view: Any = SimpleNamespace(control=SimpleNamespace(heartbeat=heartbeat))
    return build_app(view)


async def opened(port: int, *, within_ms: int = LONG_MS, leaf: Leaf | None = None) -> Opened:
    place = Place("localhost", port, certificate_digest(leaf.cert) if leaf else None)
    return await HttpExchange().open(place, "life", LEASE_ID, within_ms)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_life_beats_says_farewell_of_a_leadership_and_ends(
    has_tls: bool, authority: Authority
) -> None:
    leaf = authority.leaf("own") if has_tls else None

    async def listen() -> list[object]:
        heartbeat = Heartbeat("life")
        async with admin(node_app(heartbeat), leaf) as port:
            answered = await opened(port, leaf=leaf)
            assert answered.heard is pulse.Answered and answered.line is not None
            heard: list[object] = [await answered.line.hear(LONG_MS) for _ in range(2)]
            heartbeat.say_farewell(LEASE_ID + 1)
            heartbeat.say_farewell(LEASE_ID)
            heard.append(await _next_but_beats(answered))
            heartbeat.end()
            heard.append(await _next_but_beats(answered))
            answered.line.close()
        return heard

    assert asyncio.run(listen()) == [pulse.Beaten, pulse.Beaten, pulse.Parted, pulse.Ended]


async def _next_but_beats(answered: Opened) -> object:
    assert answered.line is not None
    while (heard := await answered.line.hear(LONG_MS)) is pulse.Beaten:
        pass
    return heard


@pytest.mark.parametrize("app", [node_app(Heartbeat("other")), build_fetching_app(dict)])
def test_another_life_says_so(app: Any) -> None:
    async def ask() -> object:
        async with admin(app) as port:
            return (await opened(port)).heard

    assert asyncio.run(ask()) is pulse.Replaced


def test_a_life_with_another_certificate_is_another_one(authority: Authority) -> None:
    """Nothing is sent to it."""
    own, others = authority.leaf("own"), authority.leaf("others")

    async def ask() -> list[object]:
        async with admin(node_app(Heartbeat("life")), own) as port:
            return [(await opened(port, leaf=leaf)).heard for leaf in (others, None)]

    assert asyncio.run(ask()) == [pulse.Replaced, pulse.Ended]


def test_a_port_that_nobody_listens_on_refuses_and_a_name_that_is_none_is_unanswered() -> None:
    (port,) = pick_ports(1)
    assert asyncio.run(opened(port)).heard is pulse.Refused
    nowhere = HttpExchange().open(Place("no-such-host.invalid", port), "life", 1, LONG_MS)
    assert asyncio.run(nowhere).heard is pulse.Unanswered


def test_each_address_of_a_name_is_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may listen at one of them only."""
    known = [(0, 0, 0, "", (address, 0)) for address in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known)

    async def ask() -> list[object]:
        exchange, heartbeat = HttpExchange(), Heartbeat("life")
        async with admin(node_app(heartbeat)) as port:
            place = Place("node", port)
            asked = [await exchange.open(place, "life", LEASE_ID, LONG_MS) for _ in range(3)]
            lines = [each.line for each in asked if each.line is not None]
            for line in lines:
                assert line.place == Place("127.0.0.1", port)
                line.close()
            heartbeat.end()
        return [each.heard for each in asked]

    assert asyncio.run(ask()) == [pulse.Refused, pulse.Answered, pulse.Answered]


def test_only_so_many_may_listen_and_who_hangs_up_makes_room() -> None:
    async def ask() -> list[object]:
        heartbeat = Heartbeat("life")
        async with admin(node_app(heartbeat)) as port:
            lines = [(await opened(port)).line for _ in range(LISTENERS_MAX)]
            heard: list[object] = [(await opened(port)).heard]
            for line in lines:
                assert line is not None
                line.close()
            while heartbeat.is_full:
                await asyncio.sleep(0.01)
            heartbeat.end()
        return heard

    assert asyncio.run(ask()) == [pulse.Unanswered]


@asynccontextmanager
async def talking(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A server that is none of ours."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await asyncio.sleep(0)  # Connections that were ended are closed.


@pytest.mark.parametrize(
    ("says", "heard"),
    [
        (b"", pulse.Ended),
        (b"HTTP/1.1 200 OK\r\n", pulse.Ended),
        (b"HTTP/1.1 503 Busy\r\n\r\n", pulse.Unanswered),
        (b"\r\n\r\n", pulse.Unanswered),
        (b"x" * 10_000, pulse.Unanswered),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000, pulse.Answered),
    ],
)
def test_whatever_else_answers_is_heard_and_breaks_nothing(says: bytes, heard: object) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        writer.close()

    async def ask() -> object:
        async with talking(talk) as port:
            answered = await opened(port)
            if answered.line is not None:
                assert await answered.line.hear(LONG_MS) is pulse.Ended
                answered.line.close()
            return answered.heard

    assert asyncio.run(ask()) is heard


def test_a_process_that_is_frozen_is_silent_before_and_after_it_has_answered() -> None:
    """Its kernel accepts connections, and ends none."""

    done = asyncio.Event()

    async def stand_still(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await done.wait()
        writer.close()

    async def ask() -> list[object]:
        with socket.create_server(("127.0.0.1", 0)) as frozen:
            heard: list[object] = [(await opened(frozen.getsockname()[1], within_ms=20)).heard]
        async with talking(stand_still) as port:
            answered = await opened(port)
            assert answered.line is not None
            heard.append(await answered.line.hear(20))
            answered.line.close()
            done.set()
        return heard

    assert asyncio.run(ask()) == [pulse.Unanswered, pulse.Silent]
