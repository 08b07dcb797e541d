"""All wires between nodes and servers, on an event loop in a thread of its own.

A wire is known by its node and what it leads to: `kafka` are the wires to all brokers, `etcd` that
to etcd. Methods may be called from any thread and return when it is done.
"""

import asyncio
import random
import threading
from collections.abc import Collection, Coroutine
from typing import Any, Final, NamedTuple, Self

from chaos.network.link import FAIR, Link, Weather

CALL_TIMEOUT_S: Final = 10.0

KAFKA: Final = "kafka"
ETCD: Final = "etcd"
BOTH: Final = (KAFKA, ETCD)


class Wire(NamedTuple):
    """From a node to one server: the port at which the node finds it, and where it is."""

    node: str
    to: str
    port: int
    server: str


class Wires:
    """Open from `__enter__` to `__exit__`. OSError if a port is taken."""

    def __init__(self, wires: Collection[Wire], seed: int) -> None:
        self._wires = tuple(wires)
        self._links: dict[Wire, Link] = {}
        self._chance = random.Random(f"{seed}: wires")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._call(self._open())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set(self, weather: Weather, *, nodes: Collection[str], to: Collection[str]) -> None:
        """The weather on the wires from these nodes to these servers."""
        self._call(self._set(weather, nodes, to))

    def mend_all(self) -> None:
        """Fair weather everywhere."""
        self._call(self._set(FAIR, {wire.node for wire in self._wires}, BOTH))

    async def _open(self) -> None:
        for wire in self._wires:
            link = self._links[wire] = Link(wire.server, self._chance)
            await link.open(wire.port)

    async def _close(self) -> None:
        for link in self._links.values():
            await link.close()

    async def _set(self, weather: Weather, nodes: Collection[str], to: Collection[str]) -> None:
        for wire, link in self._links.items():
            if wire.node in nodes and wire.to in to:
                link.set(weather)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)
