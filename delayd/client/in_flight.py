"""Requests that have no outcome yet: a bound on how many and how large, and someone to end them.

Invariants: an admitted future is counted until `done`; more wait, so the memory is bounded whatever
the library's own queue does (kafka-python's has no bound); after `close` nothing is admitted.
"""

import time
from concurrent.futures import Future
from threading import Condition, Lock
from typing import Any


class _Barrier:
    """A wait for everything that was in flight when it began."""

    def __init__(self, last: int, left: int) -> None:
        self.last = last
        self.left = left


class InFlight:
    """Admits futures. Used by any thread."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._admitted = 0
        self._entries: dict[Future[Any], tuple[int, int]] = {}  # number, size
        self._barriers: list[_Barrier] = []
        self._closed = False
        lock = Lock()
        self._room = Condition(lock)
        self._drained = Condition(lock)

    def admit(self, future: "Future[Any]", size: int, deadline_s: float) -> bool:
        """Count it once there is room; return False if there is none in time, or after `close`.

        One that is larger than all the room is admitted alone.
        """
        with self._room:
            while not self._closed and self._is_full(size):
                if not self._room.wait(max(0.0, deadline_s - time.monotonic())):
                    return False
            if self._closed:
                return False
            self._admitted += 1
            self._entries[future] = (self._admitted, size)
            self._bytes += size
            return True

    def done(self, future: "Future[Any]") -> None:
        """Stop counting it: it has its outcome, or was never sent. Idempotent."""
        with self._room:
            if future not in self._entries:
                return
            number, size = self._entries.pop(future)
            self._bytes -= size
            self._room.notify_all()
            for barrier in self._barriers:
                barrier.left -= number <= barrier.last
                if not barrier.left:
                    self._drained.notify_all()

    def wait_for_those_now(self, timeout_ms: int) -> int:
        """Return how many of those in flight now still are after that time; 0 returns at once."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        with self._drained:
            barrier = _Barrier(self._admitted, len(self._entries))
            self._barriers.append(barrier)
            try:
                while barrier.left:
                    if not self._drained.wait(max(0.0, deadline_s - time.monotonic())):
                        break
                return barrier.left
            finally:
                self._barriers.remove(barrier)

    def close(self) -> None:
        """Admit nothing more; waits for room end."""
        with self._room:
            self._closed = True
            self._room.notify_all()

    def left(self) -> "list[Future[Any]]":
        """Return those without an outcome."""
        with self._room:
            return list(self._entries)

    def _is_full(self, size: int) -> bool:
        return len(self._entries) >= self._records_max or (
            bool(self._entries) and self._bytes + size > self._bytes_max
        )
