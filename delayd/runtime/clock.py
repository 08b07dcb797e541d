"""The one door to the clocks of this machine.

Wall time is for due times and for people; monotonic time drives leases, deadlines and waits.
Nothing else in delayd calls `time` or `datetime.now`, but the file of virtual time. That maps the
wall time of a process that belongs to a virtual cluster (`delayd.runtime.virtual_time`), and
`DELAYD_CLOCK_OFFSET_MS` shifts it: the chaos tests use it to give one node a wrong clock. Monotonic
time is always real.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from delayd.runtime.virtual_time import real_now_ms, virtual_time_of


class Clock(Protocol):
    """Where a component gets its time from; the simulator has its own."""

    def wall_ms(self) -> int:
        """Return Unix time in ms, as this machine believes it."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that only go forward; comparable within one process only."""

    def monotonic_ns(self) -> int:
        """Return the same clock in nanoseconds, for waits that must not be 1 ms too long."""


class SystemClock:
    """The clocks of this process: real ones, unless its cluster is virtual."""

    def __init__(self, offset_ms: int | None = None) -> None:
        if offset_ms is None:
            offset_ms = int(os.environ.get("DELAYD_CLOCK_OFFSET_MS", "0"))
        self._offset_ms = offset_ms
        self._virtual = virtual_time_of(os.environ)

    def wall_ms(self) -> int:
        real_ms = real_now_ms()
        if self._virtual is not None:
            real_ms = self._virtual.virtual_ms(real_ms)
        return real_ms + self._offset_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


def cluster_ms(real_ms: int) -> int:
    """Return what time it was in this process's cluster at a real time that has passed, Unix ms."""
    virtual = virtual_time_of(os.environ)
    return real_ms if virtual is None else virtual.virtual_ms(real_ms)


def wait_until(condition: Callable[[], bool], timeout_ms: int, poll_ms: int = 50) -> bool:
    """Look at the condition every `poll_ms` until it holds. Return False if time is up before."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while not condition():
        if clock.monotonic_ms() >= deadline_ms:
            return False
        threading.Event().wait(poll_ms / 1000)
    return True
