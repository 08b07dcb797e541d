"""Ctrl-C and SIGTERM, so that an interrupted `up` still ends what it started.

Invariants: an interrupt is raised once as SystemExit (128 + signal, as shells say it); while things
are being ended it is ignored, because ending is bounded and half of it would leave processes.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupts_raised() -> Iterator[None]:
    """Raise SystemExit inside at the first interrupt, and ignore any further one."""

    def interrupt(signal_number: int, _frame: FrameType | None) -> None:
        for each in _INTERRUPTS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + signal_number)

    with _handlers(interrupt):
        yield


@contextlib.contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore interrupts inside: for short, bounded work that must not stop half-way."""
    with _handlers(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handlers(handler: "signal._HANDLER") -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets interrupts, and only it may set handlers
        return
    before = {each: signal.signal(each, handler) for each in _INTERRUPTS}
    try:
        yield
    finally:
        for each, previous in before.items():
            signal.signal(each, previous)
