"""Threads, events and conditions of one simulated process: the port `delayd.runtime.threads`.

A condition really excludes: one OS thread runs everything, so a lock of Python's own would let all
in. The turn may be lost when a lock is taken, and under it: see `stumble`.
"""

from collections import deque
from collections.abc import Callable
from math import ceil
from types import TracebackType
from typing import TypeVar

from kernel.scheduler import Kernel, Killed, Process, Task, Waiting

T = TypeVar("T")
Stumble = Callable[[], None]


def microseconds(seconds: float | None) -> int | None:
    """Return a time-out for the kernel, rounded up; None: for ever."""
    return None if seconds is None else max(0, ceil(seconds * 1_000_000))


class SimulatedThreads:
    """What one process makes. `stumble` is called wherever a thread could lose its turn."""

    def __init__(self, process: Process, stumble: Stumble = lambda: None) -> None:
        self._process = process
        self._stumble = stumble

    def thread(self, name: str, run: Callable[[], None]) -> "SimulatedThread":
        """See the port."""
        return SimulatedThread(self._process, name, run)

    def event(self) -> "SimulatedEvent":
        """See the port."""
        return SimulatedEvent(self._process.kernel)

    def condition(self) -> "SimulatedCondition":
        """See the port."""
        return SimulatedCondition(self._process.kernel, self._stumble)


class SimulatedThread:
    """See the port `Thread`."""

    def __init__(self, process: Process, name: str, run: Callable[[], None]) -> None:
        self._process = process
        self._name = name
        self._run = run
        self._task: Task | None = None
        self._ended = SimulatedEvent(process.kernel)

    def start(self) -> None:
        """See the port."""
        assert self._task is None, "a thread is started once"
        self._task = self._process.spawn(self._name, self._run)
        self._task.at_end.append(self._ended.set)

    def join(self, timeout: float | None = None) -> None:
        """See the port."""
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        """See the port."""
        return self._task is not None and not self._ended.is_set()


class SimulatedEvent:
    """See the port `Event`."""

    def __init__(self, kernel: Kernel) -> None:
        self._is_set = False
        self._waiting = Waiting(kernel)

    def is_set(self) -> bool:
        """See the port."""
        return self._is_set

    def set(self) -> None:
        """See the port."""
        self._is_set = True
        self._waiting.ring()

    def wait(self, timeout: float | None = None) -> bool:
        """See the port."""
        if not self._is_set:
            self._waiting.wait(microseconds(timeout))
        return self._is_set


class SimulatedCondition:
    """See the port `Condition`."""

    def __init__(self, kernel: Kernel, stumble: Stumble) -> None:
        self._kernel = kernel
        self._stumble = stumble
        self._owner: Task | None = None
        self._depth = 0
        self._at_the_door: deque[Task] = deque()
        self._waiting = Waiting(kernel)

    def __enter__(self) -> bool:
        task = self._kernel.current
        if task is not None and self._owner is not task:
            self._stumble()
            self._take(task)
            self._stumble()
        self._depth += 1
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = self._kernel.current
        if task is not None and task.process.is_dead:
            return  # Nobody is left to be let in, and the lock may have been given up already.
        assert self._owner is task and self._depth > 0, f"{task} gives back what it does not hold"
        self._depth -= 1
        if self._depth == 0:
            self._give()

    def wait(self, timeout: float | None = None) -> bool:
        """See the port."""
        task = self._kernel.current
        assert task is not None and self._owner is task, "the lock is held by whoever waits"
        depth, self._depth = self._depth, 0
        self._give()
        woken = self._waiting.wait(microseconds(timeout))
        self._take(task)
        self._depth = depth
        return woken

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """See the port."""
        kernel = self._kernel
        wait_us = microseconds(timeout)
        ends_us = None if wait_us is None else kernel.now_us + wait_us
        found = predicate()
        while not found:
            left_us = None if ends_us is None else ends_us - kernel.now_us
            if left_us is not None and left_us <= 0:
                break
            self.wait(None if left_us is None else left_us / 1_000_000)
            found = predicate()
        return found

    def notify_all(self) -> None:
        """See the port."""
        assert self._owner is self._kernel.current, "the lock is held by whoever notifies"
        self._waiting.ring()

    def _take(self, task: Task) -> None:
        if task.process.is_dead:
            raise Killed
        while self._owner is not None:
            self._at_the_door.append(task)
            self._kernel.block(None)
        self._owner = task

    def _give(self) -> None:
        self._owner = None
        if self._at_the_door:
            self._kernel.wake(self._at_the_door.popleft())
