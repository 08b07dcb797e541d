"""Malformed requests, bytes at random, path tricks and slow clients against the real server: no
crash, no 5xx, no effect. Seeds are printed."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from api_node import ALL, ApiNode, Client, api_node

from delayd.dev.ports import pick_ports
from delayd.node.monitoring.api import intake
from delayd.node.monitoring.http import AdminServer

pytestmark = pytest.mark.long

REQUESTS = 1_500
AT_ONCE = 20
ANSWER_S = 300
PATHS = (
    *("/v1/messages", "/v1/messages/batch", "/v1/messages/a", "/v1/pending", "/v1/dead/0/0"),
    *("/v1/dead/redrive", "/v1/../status", "/v1/%2e%2e/export", "//v1/messages", "/v1/messages/"),
    *("/v1/messages/%00", "/v1/messages/%ff%fe", "/v1/messages/../../etc/passwd", "/v1;x", "*"),
    *("/v1/pending?cursor=" + "9" * 5_000, "/v1/pending?limit=1e9", "/v1/" + "a" * 9_000),
    *("http://elsewhere/v1/health", "/v1/pending?topic=%c3%28", "/v1/health?" + "a&" * 2_000),
)
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "get", "\x00", "G" * 500)
HEADERS = (
    *("Authorization: Bearer", "Authorization: Bearer \xff", "Authorization: Basic eDp5"),
    *("Authorization: bearer x, Bearer y", "Content-Length: -1", "Content-Length: 99999999999"),
    *("Transfer-Encoding: chunked", "Content-Type: application/json", "Content-Type: \x01"),
    *("Expect: 100-continue", "X: " + "y" * 20_000, "Host:", "Connection: upgrade", ": x"),
)


def random_request(chance: random.Random) -> bytes:
    """One request that no token allows, or bytes that are none."""
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(1, 500))
    lines = [f"{chance.choice(METHODS)} {chance.choice(PATHS)} HTTP/1.{chance.choice('01129')}"]
    lines += chance.sample(HEADERS, chance.randrange(4))
    body = chance.choice(
        (b"", b"{", b"[" * 1_000, b"5\r\nhello\r\n0\r\n\r\n", chance.randbytes(99))
    )
    return "\r\n".join(lines).encode("latin-1") + b"\r\nHost: n\r\n\r\n" + body


@contextmanager
def serving(node: ApiNode) -> Iterator[int]:
    """The port of the node's real server."""
    [port] = pick_ports(1)
    server = AdminServer(node.app, "127.0.0.1", port)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started and thread.is_alive():
        threading.Event().wait(0.005)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(10)


async def answer(port: int, request: bytes) -> bytes:
    """The first line of the answer; empty if the server hung up. Nothing more is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        writer.write_eof()
        async with asyncio.timeout(ANSWER_S):
            return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("api")) as made:
        yield made


def test_malformed_requests_have_no_effect_and_end_nothing(node: ApiNode) -> None:
    seed = random.randrange(10**9)
    print("seed", seed)
    chance = random.Random(seed)
    before = len(node.read("delayd-buffer"))

    async def throw(port: int) -> list[bytes]:
        found = []
        for _ in range(REQUESTS // AT_ONCE):
            some = [answer(port, random_request(chance)) for _ in range(AT_ONCE)]
            found += await asyncio.gather(*some)
        return found

    with serving(node) as port:
        lines = asyncio.run(throw(port))
        statuses = {line.split()[1] for line in lines if line}
        assert {b"401", b"400", b"404"} <= statuses
        assert not [line for line in lines if line and line.split()[1] >= b"500"]
        assert b" 200 " in asyncio.run(answer(port, b"GET /livez HTTP/1.1\r\nHost: n\r\n\r\n"))
    assert len(node.read("delayd-buffer")) == before
    assert Client(node)("GET", "/v1/health").json()["ready"]


def test_clients_that_send_slowly_keep_nobody_out_for_long(
    node: ApiNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are places, each with a body that does not come."""
    monkeypatch.setattr(intake, "BODY_TIMEOUT_S", 1.0)
    head = b"POST /v1/messages HTTP/1.1\r\nHost: n\r\nContent-Length: 10\r\n\r\n{"
    well = f"GET /v1/health HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer {ALL}\r\n\r\n".encode()

    async def play(port: int) -> tuple[list[bytes], bytes]:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
        for _, writer in slow:
            writer.write(head)
        async with asyncio.timeout(ANSWER_S):
            lines = [await reader.readline() for reader, _ in slow]
        for _, writer in slow:
            writer.close()
        return lines, await answer(port, well)

    with serving(node) as port:
        lines, after = asyncio.run(play(port))
    statuses = sorted(line.split()[1] for line in lines)
    assert statuses.count(b"408") == intake.REQUESTS_MAX
    assert statuses.count(b"503") == 80 - intake.REQUESTS_MAX
    assert b" 200 " in after
