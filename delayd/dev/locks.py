"""A lock that is a file: one process at a time, until it leaves or dies."""

import contextlib
import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock

POLL_S: Final = 0.05


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float, refusal: DelaydError) -> Iterator[None]:
    """Hold the lock inside. Raise `refusal` if another process holds it for so long. The kernel
    releases it when this process ends, however it ends."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + int(timeout_s * 1000)
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.monotonic_ms() >= deadline_ms:
                    raise refusal from None
                threading.Event().wait(POLL_S)
        yield
