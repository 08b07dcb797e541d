"""Requests that have no outcome yet: a bound on how many and how large, and someone to end them.

Invariants: an admitted future is counted until it ends; more wait, so the memory is bounded
whatever the library's own queue does (kafka-python's has no bound); after `close` nothing is
admitted.
"""

import time
from concurrent.futures import Future, wait
from threading import Condition
from typing import Any


class InFlight:
    """Admits futures. Used by any thread."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sizes: dict[Future[Any], int] = {}
        self._closed = False
        self._room = Condition()

    def admit(self, future: "Future[Any]", size: int, deadline_s: float) -> bool:
        """Count it once there is room; return False if there is none in time, or after `close`.

        A request that is larger than all the room is admitted alone.
        """
        with self._room:
            while not self._closed and self._is_full(size):
                if not self._room.wait(max(0.0, deadline_s - time.monotonic())):
                    return False
            if self._closed:
                return False
            self._sizes[future] = size
            self._bytes += size
        future.add_done_callback(self._ended)
        return True

    def wait_for_those_now(self, timeout_ms: int) -> int:
        """Return how many of those in flight now still are after that time; 0 returns at once."""
        return len(wait(self.left(), timeout_ms / 1000).not_done)

    def close(self) -> None:
        """Admit nothing more; waits for room end."""
        with self._room:
            self._closed = True
            self._room.notify_all()

    def left(self) -> "list[Future[Any]]":
        """Return those without an outcome."""
        with self._room:
            return list(self._sizes)

    def _ended(self, future: "Future[Any]") -> None:
        with self._room:
            self._bytes -= self._sizes.pop(future)
            self._room.notify_all()

    def _is_full(self, size: int) -> bool:
        return len(self._sizes) >= self._records_max or (
            bool(self._sizes) and self._bytes + size > self._bytes_max
        )
