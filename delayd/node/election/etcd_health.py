"""Whether etcd answers this node: a log line when it stops to and one when it does again, and
between them a count.

The election's own calls decide that, which a node makes all the time. Not here: what follows from
it for a master (`replication/election.py`).
"""

import structlog

from delayd.runtime.clock import Clock

log = structlog.get_logger()

AWAY_MS = 3_000
"""A call whose answer is lost is no news; after this long a lease would have run out."""


class EtcdHealth:
    """Lives on the event loop; what it found is read by any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.failures = 0
        """Calls to etcd that failed, whatever for."""
        self._error = ""
        self._silent_since_ms: int | None = None
        self._failures_before = 0

    @property
    def is_silent(self) -> bool:
        """Return whether the election's last call failed."""
        return self._silent_since_ms is not None

    @property
    def problem(self) -> str | None:
        """Return what people must know while etcd is away, or None."""
        since_ms = self._silent_since_ms
        silent_ms = 0 if since_ms is None else self._clock.monotonic_ms() - since_ms
        if silent_ms < AWAY_MS:
            return None
        return (
            f"etcd has not answered for {silent_ms // 1000} s, so no successor of the master could "
            f"be elected here: {self._error}"
        )

    def note_failure(self, call: str, error: Exception) -> None:
        """Take note that a call of the election failed."""
        self.failures += 1
        self._error = str(error)
        if self._silent_since_ms is None:
            self._silent_since_ms = self._clock.monotonic_ms()
            self._failures_before = self.failures - 1
            log.warning("etcd_call_failed", call=call, error=str(error))

    def note_answer(self) -> None:
        """Take note that etcd has answered the election."""
        since_ms, self._silent_since_ms = self._silent_since_ms, None
        if since_ms is not None:
            after_ms = self._clock.monotonic_ms() - since_ms
            failed = self.failures - self._failures_before
            log.info("etcd_answers", after_ms=after_ms, failed=failed)
