"""A node with a wheel and an admin port that gives it, without Kafka: for the tests of fetches."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exporting_node import BEGIN_MS, PROOF_KEY, SETTINGS, ExportingNode, schedule
from fastapi import FastAPI

from delayd.cluster.member_proof import MemberCheck, MemberKeys
from delayd.dev.ports import pick_ports
from delayd.node.monitoring.http import AdminServer
from delayd.node.monitoring.snapshots import add_snapshot_routes
from delayd.node.snapshots.donor import Donor
from delayd.runtime.clock import SystemClock

RECORDS = 2_000
BATCH = 5_000


class Giver:
    """A node with a wheel, and an admin port that gives it."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        role: str = "follower",
        realm: str = "",
        records: int = RECORDS,
        apart_ms: int = 250,
        value: bytes = b"v",
    ) -> None:
        self.name = name
        self.role = role
        self.node = ExportingNode(folder)
        self.node.begin()
        for first in range(0, records, BATCH):
            self.node.take(
                *[
                    schedule(n, BEGIN_MS + apart_ms * n, value=value)
                    for n in range(first, min(records, first + BATCH))
                ]
            )
        self.node.replica.checkpoint()
        self.donor = Donor(self.node.replica, SystemClock(), node=name, bytes_per_s=2**30)
        keys = MemberKeys(PROOF_KEY, realm or SETTINGS.realm)
        self.members = MemberCheck(keys, f"life of {name}", SystemClock())
        self.asked: list[str] = []
        self.meets: Callable[[str], object] = lambda path: None
        """Called with the path of each request, before it is answered."""
        (self.port,) = pick_ports(1)
        self._server = AdminServer(self._app(), "127.0.0.1", self.port)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()))
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            threading.Event().wait(0.005)

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/status")
        async def status() -> dict[str, Any]:
            return {
                "ready": True,
                "role": self.role,
                "snapshots": self.donor.shown(),
                "snapshot_bytes_per_s": 2**30,
                "wheel": asdict(self.node.replica.wheel.stats()),
                "ingested": self.node.replica.ingested,
                "compared": {"differs": 0},
            }

        @app.middleware("http")
        async def note(request: Any, call_next: Any) -> Any:
            path = request.url.path
            self.asked.append(path)
            self.meets(path)
            return await call_next(request)

        add_snapshot_routes(app, self)
        return app

    @property
    def member(self) -> str:
        return json.dumps({"admin": f"127.0.0.1:{self.port}", "nonce": f"life of {self.name}"})

    @property
    def gave(self) -> bool:
        """Has it given any bytes?"""
        return any("/bytes/" in path for path in self.asked)

    def die(self) -> None:
        """Answer nothing any more, and break off what is being answered."""
        self._server.should_exit = self._server.force_exit = True

    def close(self) -> None:
        self.die()
        self._thread.join(10)
        self.donor.stop()
        self.node.close()
