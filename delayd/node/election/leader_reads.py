"""Reads of the leader keys of all shards, which the elections of a node share.

Each election asks for its own key every 150 ms. Reads begin every 50 ms at most, and whoever has
asked by then gets their answer. So a node reads 20 times a second at most, whatever the number of
shards.

Invariant: an answer is of a read that began after it was asked for.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from delayd.coordination import Coordination, Leadership
from delayd.runtime.clock import Clock

EVERY_MS: Final = 50
"""Reads begin at its multiples: an answer is later by half of it, on average."""


class LeaderReads:
    """Of one node. Lives on the event loop."""

    def __init__(self, coordination: Coordination, clock: Clock) -> None:
        self._etcd = coordination
        self._clock = clock
        self._next: asyncio.Task[tuple[int, Mapping[int, Leadership]]] | None = None
        """The read that has not begun yet."""

    async def read(self, shard: int) -> tuple[int, Leadership | None]:
        """Return the holder of a leader key, and the monotonic time at which that was asked, in ms.
        Raises CoordinationError."""
        if self._next is None:
            self._next = asyncio.create_task(self._read())
        # Whoever ends while it waits does not end it for the others.
        asked_ms, leaders = await asyncio.shield(self._next)
        return asked_ms, leaders.get(shard)

    async def _read(self) -> tuple[int, Mapping[int, Leadership]]:
        await asyncio.sleep((EVERY_MS - self._clock.monotonic_ms() % EVERY_MS) / 1000)
        self._next = None
        asked_ms = self._clock.monotonic_ms()
        return asked_ms, await asyncio.to_thread(self._etcd.leaders)
