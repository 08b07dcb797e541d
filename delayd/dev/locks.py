"""A lock that is a file: one process at a time, until it leaves or dies."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from delayd.errors import DelaydError
from delayd.runtime.clock import wait_until


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float, refusal: DelaydError) -> Iterator[None]:
    """Hold the lock inside. Raise `refusal` if another process holds it for so long. The kernel
    releases it when this process ends, however it ends."""
    with path.open("w") as lock:

        def is_held() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not wait_until(is_held, int(timeout_s * 1000)):
            raise refusal
        yield
