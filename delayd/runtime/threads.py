"""The one door to threads: what the data plane's loops are made of, as a port.

IngestLoop, DeliveryLoop and the replica's lock take their threads, events and conditions from here,
so that the simulator can run the very same loops one at a time, in an order drawn from a seed, in
virtual time. Not here: locks that nobody waits under (nothing else may happen while they are held),
and calls made off the event loop, which go through the loop's own executor.

Invariant: a condition's lock is re-entrant, and `wait` gives it up however often it is held.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TypeVar

T = TypeVar("T")


class Thread(Protocol):
    """A thread that was made but perhaps not started; it does not keep the process alive."""

    def start(self) -> None:
        """Run, once."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, for so many seconds at most."""

    def is_alive(self) -> bool:
        """Return if it was started and has not ended."""


class Event(Protocol):
    """A flag that goes up once."""

    def is_set(self) -> bool:
        """Return if it is up."""

    def set(self) -> None:
        """Raise it; wakes all who wait."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is up, for so many seconds at most; return if it is."""


class Condition(Protocol):
    """A re-entrant lock, and a bell for those who wait under it."""

    def __enter__(self) -> bool:
        """Take the lock."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the lock."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until notified or for so many seconds; False if the time ran out."""

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until the predicate holds, for so many seconds at most; its last value."""

    def notify_all(self) -> None:
        """Wake all who wait. Lock held by the caller."""


class Threads(Protocol):
    """Where a component gets its threads from; the simulator has its own."""

    def thread(self, name: str, run: Callable[[], None]) -> Thread:
        """Return a thread that will run `run`."""

    def event(self) -> Event:
        """Return a new flag, down."""

    def condition(self) -> Condition:
        """Return a new condition with a lock of its own."""


class SystemThreads:
    """Python's own threads."""

    def thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=run, name=name, daemon=True)

    def event(self) -> threading.Event:
        return threading.Event()

    def condition(self) -> threading.Condition:
        return threading.Condition()
