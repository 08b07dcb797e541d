"""Whether Kafka answers this node, while it leads: else a node that Kafka answers takes its place.

A step that waits does not show it: it waits as long for one partition that is slow. Not here: what
the others make of it (`replication/pulse.py`).

Invariant: a master that has committed a step, or been answered, within LOST_MS is not cut off.

Source: docs/design/election.md, "Cut off from Kafka".
"""

import asyncio
from collections.abc import Callable
from contextlib import closing
from threading import Lock
from typing import Final

from delayd.bus import Bus, Cluster
from delayd.errors import DelaydError
from delayd.runtime.clock import Clock

ASK_MS: Final = 500
"""How soon after an answer a master asks again."""
AGAIN_MS: Final = 50
"""How soon after none."""
TIMEOUT_MS: Final = 1_000
FAILURES_MIN: Final = 2
"""Each by a new client: one that a frozen broker has answered before may wait for that one."""
LOST_MS: Final = 2_000
"""After so long without an answer a master says that it is cut off."""


class KafkaContact:
    """Of one node. `is_lost` is for the event loop, the questions are for other threads."""

    def __init__(self, bus: Bus, clock: Clock, stepped_ms: Callable[[], int]) -> None:
        """`stepped_ms`: when this node last committed a step, monotonic."""
        self._bus = bus
        self._clock = clock
        self._stepped_ms = stepped_ms
        self._cluster: Cluster | None = None
        self._lock = Lock()
        self._is_over = False
        self._answered_ms = 0
        self._failures = 0

    @property
    def is_lost(self) -> bool:
        """True on a master that Kafka has not answered for long."""
        heard_ms = max(self._answered_ms, self._stepped_ms())
        is_long = self._clock.monotonic_ms() - heard_ms >= LOST_MS
        return self._failures >= FAILURES_MIN and is_long

    async def run(self, is_master: Callable[[], bool]) -> None:
        """Ask while this node leads, until cancelled. Then nobody waits for an answer."""
        self._is_over = False
        try:
            while True:
                await asyncio.sleep((AGAIN_MS if self._failures else ASK_MS) / 1000)
                if is_master():
                    await asyncio.to_thread(self.ask)
                else:
                    self._failures = 0
        finally:
            self._is_over = True
            self._end()

    def ask(self) -> bool:
        """Return whether a broker answers now, and note it."""
        with self._lock:
            answers = self._ask()
        if self._is_over:
            self._end()
        return answers

    def _ask(self) -> bool:
        try:
            self._cluster = self._cluster or self._bus.cluster()
            self._cluster.broker_count(TIMEOUT_MS)
        except DelaydError:
            self._failures += 1
            self._forget()
            return False
        self._answered_ms, self._failures = self._clock.monotonic_ms(), 0
        return True

    def _end(self) -> None:
        """Close the client, unless somebody asks by it: who ends last closes it."""
        if self._lock.acquire(blocking=False):
            try:
                self._forget()
            finally:
                self._lock.release()

    def is_there(self) -> bool:
        """Return whether a broker answers this node by new connections. For a follower; others may
        ask at the same time."""
        try:
            with closing(self._bus.cluster()) as cluster:
                cluster.broker_count(TIMEOUT_MS)
        except DelaydError:
            return False
        return True

    def _forget(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
