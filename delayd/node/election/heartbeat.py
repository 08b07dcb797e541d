"""The heartbeat of a node: what its process says to whoever listens at `GET /pulse/NONCE`.

A line each BEAT_MS, by the event loop that also keeps the lease alive, another one while Kafka does
not answer this master, and a farewell when this node has given a leadership back. Not here: what a
listener makes of it (`replication/pulse.py`).

Source: docs/design/election.md, "Pulse".
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from replication.pulse import BEAT_MS

BEAT: Final = b"beat\n"
CUT_OFF: Final = b"cut-off\n"
"""Follows a beat while Kafka does not answer this master."""
FAREWELL: Final = b"farewell %d\n"
"""With the lease of the leadership that is over."""

LISTENERS_MAX: Final = 64
"""Every node listens once for each shard; connections of nodes that were cut off end late."""
LISTENERS_OF_PORT: Final = 128
"""However many shards there are: half of the connections of the admin port are for others."""


class Heartbeat:
    """Of one life of a node. Lives on the event loop."""

    def __init__(self, life: str, shards: int = 1) -> None:
        self._listeners_max = min(LISTENERS_MAX * shards, LISTENERS_OF_PORT)
        self.life = life
        """The nonce of this life."""
        self.is_cut_off: Callable[[], bool] = lambda: False
        """Does Kafka not answer this node, which leads?"""
        self._listeners: set[asyncio.Queue[bytes | None]] = set()

    @property
    def is_full(self) -> bool:
        """True if nobody else may listen now."""
        return len(self._listeners) >= self._listeners_max

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield what a listener is told, until the node ends."""
        told: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._listeners.add(told)
        try:
            line: bytes | None = BEAT
            while line is not None:
                yield line
                try:
                    line = await asyncio.wait_for(told.get(), BEAT_MS / 1000)
                except TimeoutError:
                    line = BEAT + CUT_OFF if self.is_cut_off() else BEAT
        finally:
            self._listeners.discard(told)

    def say_farewell(self, lease_id: int) -> None:
        """Tell all listeners that the leadership under this lease was given back."""
        self._tell(FAREWELL % lease_id)

    def end(self) -> None:
        """End what all listeners hear."""
        self._tell(None)

    def _tell(self, line: bytes | None) -> None:
        for told in self._listeners:
            told.put_nowait(line)
