"""Hostile requests from a seed: bad request lines, bombs of headers, slow clients, bodies that are
too large, tricks with paths, wrong tokens, pages of other sites. None of them may have an effect.

Not here: what is listening (a node in memory, or real ones).
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

ANSWER_S: Final = 300
AT_ONCE: Final = 40
MESSAGE: Final = b'{"topic": "orders", "value": "x", "delay": "1h", "id": "hostile"}'
CHANGES: Final = (
    *(("POST", "/v1/messages"), ("POST", "/v1/messages/batch"), ("PUT", "/v1/messages/hostile")),
    *(("DELETE", "/v1/messages/hostile"), ("POST", "/v1/dead/redrive"), ("POST", "/export")),
)
READS: Final = (
    "/v1/health",
    "/v1/pending",
    "/v1/cluster",
    "/v1/dead",
    "/v1/messages/a",
    "/v1/live",
)
TRICKS: Final = (
    *("/v1/../status", "/v1/%2e%2e/export", "//v1/messages", "/v1/messages/", "/v1;x", "*", "/"),
    *(
        "/v1/messages/%00",
        "/v1/messages/%ff%fe",
        "/v1/messages/../../etc/passwd",
        "/v1/" + "a" * 9_000,
    ),
    *("/v1/pending?cursor=" + "9" * 5_000, "/v1/pending?limit=1e9", "http://elsewhere/v1/health"),
    *("/v1/pending?topic=%c3%28", "/v1/health?" + "a&" * 2_000, "/console/..%2f..%2fhttp.py"),
    *("/ids/%2e%2e", "/snapshots/n", "/snapshots/x/bytes/1", "/comparisons/n", "/pulse/x"),
    *(
        "/console/%00",
        "/\\..\\..\\etc",
        "/v1/messages/" + "%2f" * 3_000,
        "/comparisons/a/" + "0" * 64,
    ),
)
METHODS: Final = (
    *("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "HEAD", "CONNECT", "get"),
    *("\x00", "G" * 500, "", "POST POST"),
)
STRANGE: Final = (
    *("Authorization: Bearer", "Authorization: Bearer \xff", "Authorization: Basic eDp5"),
    *("Authorization: bearer x, Bearer y", "Content-Length: -1", "Content-Length: 99999999999"),
    *("Transfer-Encoding: chunked", "Content-Type: application/json", "Content-Type: \x01"),
    *("Expect: 100-continue", "X: " + "y" * 20_000, "Host:", "Connection: upgrade", ": x"),
    *("Upgrade: websocket\r\nConnection: Upgrade", "Content-Length: 1\r\nContent-Length: 2"),
    *("Range: bytes=0-99999999999", "X-Forwarded-For: 127.0.0.1", "Cookie: a=b; token=x"),
)


def hostile_request(chance: random.Random) -> bytes:
    """One of them, as bytes."""
    return chance.choice(KINDS)(chance)


def _raw(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(1, 500))


def _request_line(chance: random.Random) -> bytes:
    path = chance.choice((*TRICKS, *READS))
    line = f"{chance.choice(METHODS)} {path} HTTP/{chance.choice(('1.1', '1.0', '0.9', '2', '9'))}"
    lines = [line, *chance.sample(STRANGE, chance.randrange(4))]
    body = chance.choice(
        (b"", b"{", b"[" * 1_000, b"5\r\nhello\r\n0\r\n\r\n", chance.randbytes(99))
    )
    return "\r\n".join(lines).encode("latin-1") + b"\r\nHost: n\r\n\r\n" + body


def _header_bomb(chance: random.Random) -> bytes:
    count = chance.choice((100, 1_000, 5_000))
    bomb = b"".join(b"X-%d: %d\r\n" % (number, number) for number in range(count))
    return b"POST /v1/messages HTTP/1.1\r\nHost: n\r\n" + bomb + b"\r\n" + MESSAGE


def _large_body(chance: random.Random) -> bytes:
    method, path = chance.choice(CHANGES)
    if chance.random() < 0.5:
        head = f"{method} {path} HTTP/1.1\r\nHost: n\r\nContent-Length: {2**40}\r\n\r\n"
        return head.encode() + b"x" * 1_000
    head = f"{method} {path} HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"FFFFFFFFFFFF\r\n" + b"x" * 1_000


def _wrong_token(chance: random.Random) -> bytes:
    method, path = chance.choice((*CHANGES[:-1], *(("GET", read) for read in READS)))
    token = chance.choice(("", "x", "a-token-for-everythin", "A-TOKEN-FOR-EVERYTHING", "0" * 4_000))
    return _with_body(method, path, f"Authorization: Bearer {token}", MESSAGE)


def _foreign_page(chance: random.Random) -> bytes:
    """As a browser sends it for a page of another site."""
    method, path = chance.choice(CHANGES)
    kind = chance.choice(
        (
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/json",
            "multipart/form-data",
        )
    )
    origin = chance.choice(("http://elsewhere", "null", "https://n.elsewhere", "http://n:1"))
    return _with_body(method, path, f"Origin: {origin}\r\nContent-Type: {kind}", MESSAGE)


def _with_body(method: str, path: str, headers: str, body: bytes) -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: n\r\n{headers}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body


KINDS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    *(_raw, _request_line, _request_line, _request_line),
    *(_header_bomb, _large_body, _wrong_token, _foreign_page),
)


async def answer(port: int, request: bytes) -> bytes:
    """The first line of the answer; empty if the server hung up. Nothing more is sent."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return b""
    try:
        writer.write(request)
        writer.write_eof()
        async with asyncio.timeout(ANSWER_S):
            return await reader.readline()
    except (ConnectionError, ValueError):
        return b""
    finally:
        writer.close()


async def throw(port: int, chance: random.Random, count: int) -> list[bytes]:
    """The first lines of the answers to so many hostile requests, some at a time; between them
    clients come that send a part of a request, and then nothing."""
    found: list[bytes] = []
    silent = []
    for _ in range(0, count, AT_ONCE):
        some = [answer(port, hostile_request(chance)) for _ in range(AT_ONCE)]
        found += await asyncio.gather(*some)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_request_line(chance).partition(b"\r\n")[0])
        silent.append(writer)
    for writer in silent:
        writer.close()
    return found


def statuses(lines: list[bytes]) -> set[bytes]:
    """What was answered to those that were answered."""
    return {line.split()[1] for line in lines if line}
