"""The clocks of a simulated machine, all of them wrong in their own way."""

from kernel.scheduler import Kernel

SECOND_US = 1_000_000
START_MS = 1_785_002_394_000
"""Unix time at which every run begins: six seconds before an hour ends."""


def true_ms(kernel: Kernel) -> int:
    """Return the time of a perfect wall clock."""
    return START_MS + (kernel.suspended_us + kernel.now_us) // 1_000


class MachineClock:
    """Both clocks of one machine, which run at the same wrong rate; the wall clock may be set.

    As on Linux, only the wall clock goes on while the machines are suspended.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        skew_ms: int = 0,
        drift_ppm: int = 0,
        up_us: int = 0,
        phase_us: int = 0,
    ) -> None:
        self._kernel = kernel
        self._up_us = up_us
        """For how long the machine was up when the run began."""
        self._drift_ppm = drift_ppm
        self._phase_us = phase_us
        """By how much its wall clock changes from one ms to the next sooner than others do."""
        self.skew_ms = skew_ms
        """How far the wall clock is ahead, before drift. Change it and the clock jumps."""

    def wall_ms(self) -> int:
        """Return Unix time in ms, as this machine believes it."""
        us = self._kernel.suspended_us + self._phase_us + self._elapsed_us()
        return START_MS + self.skew_ms + us // 1_000

    def monotonic_ms(self) -> int:
        """Return the ms since the machine was started."""
        return (self._up_us + self._elapsed_us()) // 1_000

    def monotonic_ns(self) -> int:
        """Return the same, to the microsecond."""
        return (self._up_us + self._elapsed_us()) * 1_000

    def _elapsed_us(self) -> int:
        now_us = self._kernel.now_us
        return now_us + now_us * self._drift_ppm // 1_000_000
