"""The size of a master's steps: as large as they may be, while they stay short and succeed.

It is kept over all masterships of a process, because a step that was too large to succeed must not
be tried again at the same size after the next takeover.
Source: docs/design/frontier.md, "Full steps".
"""

from replication.delivery_queue import StepLimits

STEP_TARGET_MS = 200
"""A step that takes longer makes the next ones smaller; one that takes less than half, larger."""

RECORDS_SLOW = 1_000
BYTES_SLOW = 1024 * 1024
"""No smaller for being slow: so much takes milliseconds, so what takes longer is the transaction
itself. Smaller steps would be as slow, and a master that is behind would stay behind."""

BYTES_MIN = 64 * 1024
"""Steps that fail become as small as this, and as one record."""


MEASURED_MIN = 1_000
"""A rate is measured by steps of so many records or more, and by those that take too long: smaller
ones tell what a commit takes."""


class StepSizing:
    """The limits of the next step, and the measured rate. Used by one thread."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._most = StepLimits(records_max, bytes_max)
        self.limits = self._most
        self._sent, self._took_ms = 0, 0
        """Of the last large steps, older ones with less weight."""

    @property
    def measured_rate(self) -> int:
        """Return how many messages a second large steps deliver; 0 before the first one, and after
        a failure."""
        return self._sent * 1000 // max(1, self._took_ms)

    def succeeded(self, took_ms: int, records: int, delivered: int) -> None:
        """Adapt to a step that was committed in that time; so many of its records were messages
        that it delivered. One that did mostly other things measures nothing."""
        is_large = records >= MEASURED_MIN or took_ms > STEP_TARGET_MS
        if is_large and delivered * 2 > records:
            self._sent = self._sent * 3 // 4 + delivered
            self._took_ms = self._took_ms * 3 // 4 + took_ms
        limits = self.limits
        is_small = limits.records_max < RECORDS_SLOW or limits.bytes_max < BYTES_SLOW
        if took_ms > STEP_TARGET_MS and not is_small:
            self._scale(1, 2, RECORDS_SLOW, BYTES_SLOW)
            return
        was_full = records * 2 > limits.records_max
        is_cut = limits.bytes_max < self._most.bytes_max
        if (took_ms * 2 < STEP_TARGET_MS or is_small) and (was_full or is_cut):
            self._scale(2, 1, 1, BYTES_MIN)

    def failed(self) -> None:
        """Adapt to a failed step that held something: it may have been too much for the
        time-outs."""
        self._sent, self._took_ms = 0, 0
        self._scale(1, 2, 1, BYTES_MIN)

    def _scale(self, up: int, down: int, records_min: int, bytes_min: int) -> None:
        limits, most = self.limits, self._most
        self.limits = StepLimits(
            min(most.records_max, max(records_min, limits.records_max * up // down)),
            min(most.bytes_max, max(bytes_min, limits.bytes_max * up // down)),
        )
