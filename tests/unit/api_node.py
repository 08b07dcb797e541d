"""A node with its HTTP API over Kafka and etcd in memory, its threads running; clients of it."""

import asyncio
import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response
from monitored_node import Desk
from one_node import wait_for

from delayd.bus import Record
from delayd.config.api_tokens import ApiToken, ApiTokens, Scope, digest_of
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.node.delivery.grant import Grant
from delayd.node.monitoring.api.access import Access, Rates
from delayd.node.monitoring.api.services import Requests, Services
from delayd.node.monitoring.http import AdminServer, build_app
from delayd.runtime.clock import SystemClock
from delayd.testing.driver import MemoryDriver, connected

ALL = "a-token-for-everything"
READER = "a-token-for-reading-only"
TEAM = "a-token-of-the-orders-team"
TARGETS = ("orders", "orders-eu", "billing")
PER_S = 100_000


def token(name: str, shown: str, *scopes: Scope, targets: tuple[str, ...] = ("*",)) -> ApiToken:
    return ApiToken(name=name, sha256=digest_of(shown), scopes=frozenset(scopes), targets=targets)


TOKENS = (
    token("all", ALL, *Scope),
    token("reader", READER, Scope.READ),
    token("team", TEAM, *Scope, targets=("orders*",)),
    ApiToken(
        name="shop",
        certificate="shop.example",
        scopes=frozenset({Scope.READ, Scope.SCHEDULE}),
        targets=("orders*",),
    ),
)


class ApiNode(Desk):
    """The node; `app` answers."""

    def __init__(
        self, folder: Path, *, anonymous_reads: bool = False, requests_per_s: int = PER_S
    ) -> None:
        clock = SystemClock()
        super().__init__(folder, clock)
        for topic in TARGETS:
            self.kafka.create_topic(topic, 2, {"message.timestamp.type": "LogAppendTime"})
        etcd = MemoryCoordination(MemoryEtcd(clock), "c")
        etcd.enter(self.settings.realm)
        lease = etcd.grant_lease(10**9)
        etcd.put_member("n", json.dumps({"admin": "127.0.0.1:1"}), lease.id)
        etcd.campaign(0, json.dumps({"node": "n"}), lease.id)
        driver = MemoryDriver(self.kafka, self.bus)
        self.services = Services(
            weakref.proxy(self.view),
            self.bus,
            etcd,
            Access(
                ApiTokens(TOKENS), Rates(clock, requests_per_s), anonymous_reads=anonymous_reads
            ),
            Requests(lambda: connected(driver, "delayd-buffer", "delayd-receipts")),
        )
        self.app: FastAPI = build_app(weakref.proxy(self.view), services=self.services)

    def start(self) -> None:
        """Ingest, deliver as the master, and wait until it does."""
        super().start()
        self.delivery.give(Grant("n/1", 10**15))
        wait_for(lambda: self.view.role == "master")

    def stop(self) -> None:
        self.services.stop()
        super().stop()

    def read(self, topic: str) -> list[Record]:
        """Committed records of a topic."""
        logs = self.kafka.topics[topic].partitions
        return [record for log in logs for record in log.read(0, 10**9)[0]]

    def wait_checkpointed(self, count: int) -> None:
        """Until so many records are durable: lists show no others."""
        wait_for(lambda: self.replica.ingested_count >= count)
        before = self.ingestion.checkpointed_ms
        wait_for(lambda: self.ingestion.checkpointed_ms > before + 10)


@contextmanager
def api_node(folder: Path, **options: Any) -> Iterator[ApiNode]:
    """A node that runs."""
    node = ApiNode(folder, **options)
    try:
        node.start()
        yield node
    finally:
        node.stop()


@contextmanager
def serving(node: ApiNode, *tls: Path) -> Iterator[int]:
    """The port of the node's real server. `tls`: certificate, key, and authorities of clients."""
    [port] = pick_ports(1)
    server = AdminServer(node.app, LOOPBACK, port, *tls)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started and thread.is_alive():
        threading.Event().wait(0.005)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(10)


class Client:
    """Somebody who asks, with a token or without; what a handler raises is raised here."""

    def __init__(self, node: ApiNode, shown: str | None = ALL) -> None:
        self._app = node.app
        self._headers = {} if shown is None else {"authorization": f"Bearer {shown}"}

    def __call__(self, method: str, path: str, **more: Any) -> Response:
        return asyncio.run(self._ask(method, path, **more))

    async def _ask(self, method: str, path: str, **more: Any) -> Response:
        transport = ASGITransport(self._app)
        async with AsyncClient(
            transport=transport, base_url="http://n", headers=self._headers, timeout=60
        ) as client:
            return await client.request(method, path, **more)
