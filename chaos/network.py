"""Wires between nodes and servers: TCP proxies whose weather can change at any time.

    node ----- up ----> [ link ] ----- up ----> broker or etcd
    node <---- down --- [ link ] <---- down ---

A direction that is cut holds what it is given, and passes it on when it is mended, as TCP would
send it again: also what a node sent that has closed its end meanwhile. A connection that is made
while any direction is cut comes about when both are mended.

Not here: packets. Loss is what a TCP user sees of it: now and then a chunk waits for its resending.

Invariants: bytes keep their order and are never altered; at most CHUNK_BYTES a connection and
direction are held here, the rest waits in its sender.
"""

import asyncio
import contextlib
import random
import threading
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

CHUNK_BYTES: Final = 64 * 1024
CONNECT_TIMEOUT_S: Final = 5.0
CALL_TIMEOUT_S: Final = 10.0

KAFKA: Final = "kafka"
ETCD: Final = "etcd"
BOTH: Final = (KAFKA, ETCD)
"""What wires lead to: all brokers, or etcd."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How a wire is. `up` is from the node, `down` to it; `delay_ms` is for each chunk and way."""

    up_is_cut: bool = False
    down_is_cut: bool = False
    delay_ms: int = 0
    stall_chance: float = 0.0
    """Of a chunk: that it has to be sent again."""
    stall_ms: int = 0

    @property
    def is_cut(self) -> bool:
        """No connection can be made."""
        return self.up_is_cut or self.down_is_cut


FAIR: Final = Weather()
CUT: Final = Weather(up_is_cut=True, down_is_cut=True)
DEAF: Final = Weather(down_is_cut=True)
"""The node is heard and hears nothing."""
MUTE: Final = Weather(up_is_cut=True)
"""The node hears and is not heard."""


class Link:
    """A listening port that passes on to `host:port`. Lives on an event loop."""

    def __init__(self, server: str, chance: random.Random) -> None:
        self._host, _, port = server.rpartition(":")
        self._server_port = int(port)
        self._chance = chance
        self._weather = FAIR
        self._changed = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, port: int) -> None:
        """Listen on that loopback port; OSError if it is taken."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", port)

    async def close(self) -> None:
        """End the port and all connections, whatever the weather."""
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set(self, weather: Weather) -> None:
        """From now on, for connections that there are and those to come."""
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the link was closed; a stream's own callback would complain about it
        finally:
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while self._weather.is_cut:
                await self._changed.wait()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    upstream = await asyncio.open_connection(self._host, self._server_port)
            except (OSError, TimeoutError):
                return  # the node sees its connection closed: the server is not there
            server_reader, server_writer = upstream
            with contextlib.closing(server_writer):
                up = asyncio.create_task(self._pump(reader, server_writer, is_up=True))
                down = asyncio.create_task(self._pump(server_reader, writer, is_up=False))
                try:
                    # A pump ends when its reader's end is closed and all before that has crossed:
                    # The side that closes wants nothing more; the other has what was sent.
                    await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in (up, down):
                        pump.cancel()
                    await asyncio.gather(up, down, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                await self._cross(is_up)
                writer.write(chunk)
                await writer.drain()

    async def _cross(self, is_up: bool) -> None:
        """Wait as long as a chunk is under way."""
        weather = self._weather
        delay_ms = weather.delay_ms
        if weather.stall_chance and self._chance.random() < weather.stall_chance:
            delay_ms += weather.stall_ms
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        while self._weather.up_is_cut if is_up else self._weather.down_is_cut:
            await self._changed.wait()


class Wire(NamedTuple):
    """From a node to one server: the port at which the node finds it, and where it is."""

    node: str
    to: str
    port: int
    server: str


class Wires:
    """All wires, on an event loop in a thread of its own, until `close`. OSError if a port is
    taken. Any thread may call the methods; they return when it is done."""

    def __init__(self, wires: Collection[Wire], seed: int) -> None:
        chance = random.Random(f"{seed}: wires")
        self._links = {wire: Link(wire.server, chance) for wire in wires}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        try:
            for wire, link in self._links.items():
                self._call(link.open(wire.port))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all connections."""
        for link in self._links.values():
            self._call(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set(self, weather: Weather, *, nodes: Collection[str], to: Collection[str]) -> None:
        """Set the weather on the wires from these nodes to these servers."""

        async def change() -> None:
            for wire, link in self._links.items():
                if wire.node in nodes and wire.to in to:
                    link.set(weather)

        self._call(change())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)
