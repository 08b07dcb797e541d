"""Records that a library took and has not reported on: it may never do so.

Invariant: each gets exactly one outcome, at the latest when it is overdue and someone looks.
"""

import time
from itertools import takewhile
from threading import Lock

from delayd.bus import Ack
from delayd.client.driver import Failure, OnOutcome


class Awaited:
    """Records without an outcome, oldest first. Used by any thread."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._lock = Lock()
        self._deadlines_s: dict[OnOutcome, float] = {}

    def add(self, on_outcome: OnOutcome) -> OnOutcome:
        """Return what to report the outcome to; a second report is ignored."""

        def once(outcome: Ack | Failure) -> None:
            if self.drop(once):
                on_outcome(outcome)

        with self._lock:
            self._deadlines_s[once] = time.monotonic() + self._timeout_ms / 1000
        return once

    def drop(self, once: OnOutcome) -> bool:
        """Stop waiting for it; return False if nothing waited."""
        with self._lock:
            return self._deadlines_s.pop(once, None) is not None

    def end_overdue(self) -> None:
        """Fail the records whose time is over: nobody knows more of them."""
        now_s = time.monotonic()
        with self._lock:
            late = list(takewhile(lambda each: self._deadlines_s[each] < now_s, self._deadlines_s))
        for once in late:
            once(Failure(False, "the library did not report in time"))

    def end_all(self, why: str) -> None:
        """Fail every record that is left."""
        with self._lock:
            left = list(self._deadlines_s)
        for once in left:
            once(Failure(False, why))
