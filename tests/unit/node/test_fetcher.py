"""A node that fetches its wheel: others see it, and take none of its answers for knowledge."""

import asyncio
import threading

import httpx
import pytest
from manual_clock import ManualClock

from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.node.election.etcd_calls import Identity
from delayd.node.fetcher import keep_announced
from delayd.node.monitoring.http import build_fetching_app


def test_it_is_announced_until_it_has_its_wheel() -> None:
    etcd = MemoryCoordination(MemoryEtcd(ManualClock()), "c")
    is_over = threading.Event()
    identity = Identity("n2", "a life", "127.0.0.1:1")
    thread = threading.Thread(target=keep_announced, args=(etcd, identity, is_over))
    thread.start()
    tick = threading.Event()
    for _ in range(1_000):
        if etcd.members():
            break
        tick.wait(0.01)
    assert etcd.members() == {"n2": identity.member_value(has_room=False)}
    is_over.set()
    thread.join(30)
    assert etcd.members() == {}, "the node announces itself"


@pytest.mark.parametrize("path", ["/ids/an-id", "/ids/a/b", "/pending", "/metrics", "/livez"])
def test_it_says_nothing_of_messages(path: str) -> None:
    """To `delayd show`, 404 means that a node knows nothing of the id."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(build_fetching_app(dict))
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            return await client.get(path)

    assert asyncio.run(asked()).status_code == (200 if path == "/livez" else 503)
