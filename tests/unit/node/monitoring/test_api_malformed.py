"""Hostile requests and slow clients against the real server: no crash, no 5xx, no effect. Seeds are
printed.

Source: docs/security.md.
"""

import asyncio
import random
from collections.abc import Iterator

import pytest
from api_node import ALL, ApiNode, Client, api_node, serving
from hostile_http import ANSWER_S, answer, statuses, throw
from one_node import wait_for

from delayd.node.monitoring import connections
from delayd.node.monitoring.api import intake

pytestmark = pytest.mark.long

REQUESTS = 3_000
SILENCE_S = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiNode]:
    with api_node(tmp_path_factory.mktemp("api")) as made:
        yield made


def throw_all(node: ApiNode, count: int) -> None:
    seed = random.randrange(10**9)
    print("seed", seed)
    before = len(node.read("delayd-buffer"))
    with serving(node) as port:
        lines = asyncio.run(throw(port, random.Random(seed), count))
        assert {b"401", b"400", b"404", b"403", b"413"} <= statuses(lines)
        assert not [line for line in lines if line and line.split()[1] >= b"500"]
        assert b" 200 " in asyncio.run(answer(port, b"GET /livez HTTP/1.1\r\nHost: n\r\n\r\n"))
    assert len(node.read("delayd-buffer")) == before
    sent = Client(node)("POST", "/v1/messages", json={"topic": "orders", "delay": "0ms"})
    assert sent.status_code == 201
    wait_for(lambda: len(node.read("orders")) > 0)


def test_hostile_requests_have_no_effect_and_the_node_goes_on_delivering(node: ApiNode) -> None:
    throw_all(node, REQUESTS)


@pytest.mark.rehearsal
def test_ten_thousand_hostile_requests_have_no_effect(node: ApiNode) -> None:
    throw_all(node, 10_000)


def test_a_client_that_sends_no_whole_request_is_let_go(
    node: ApiNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever trickles in."""
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.2)

    async def play(port: int) -> list[bytes]:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        silent[1][1].write(b"GET /livez HTTP/1.1\r\nHost:")
        silent[2][1].write(b"GET /livez HTTP/1.1\r\nHost: n\r\n\r\nGET /")
        async with asyncio.timeout(SILENCE_S):
            rests = [await ended(reader) for reader, _ in silent]
        for _, writer in silent:
            writer.close()
        return rests

    with serving(node) as port:
        nothing, part, second = asyncio.run(play(port))
    assert nothing == part == b"" and second.count(b"HTTP/1.1 200") == 1


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side hangs up."""
    found = b""
    try:
        while some := await reader.read(1_000):
            found += some
    except ConnectionError:
        pass
    return found


def test_silent_connections_keep_no_probe_out(
    node: ApiNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 10)

    async def play(port: int) -> tuple[list[bytes], int]:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        probes = [await answer(port, b"GET /livez HTTP/1.1\r\nHost: n\r\n\r\n") for _ in range(5)]
        for _, writer in silent[:-4]:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: n\r\n\r\n")
        answered = sum([b"HTTP" in await ended(reader) for reader, _ in silent[:15]])
        for _, writer in silent:
            writer.close()
        return probes, answered

    with serving(node) as port:
        probes, answered = asyncio.run(play(port))
    assert all(b" 200 " in each for each in probes)
    assert answered == 0, "the oldest silent ones made room"


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
