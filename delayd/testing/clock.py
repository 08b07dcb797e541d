"""Clocks that stand still until a test moves them: the port `delayd.runtime.clock.Clock`."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from delayd.errors import ConfigError
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of

Span: TypeAlias = timedelta | int | str
"""A timedelta, a number of ms, or text as `delayd-delay` takes it (`30d`)."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


class ManualClock:
    """A clock that says what it is told to."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        """Unix ms."""

    def wall_ms(self) -> int:
        """Return the time, Unix ms."""
        return self.now_ms

    def monotonic_ms(self) -> int:
        """Return the same."""
        return self.now_ms

    def monotonic_ns(self) -> int:
        """Return the same, a little fast, as it may be: a master that allows for that takes the
        millisecond that was set for its `now`."""
        return self.monotonic_ms() * 1_000_201


class SteppedClock(ManualClock):
    """The clock of a delayd in memory: whoever moves it sees all that becomes due on the way."""

    def __init__(self, now_ms: int, run_until: Callable[[int], None]) -> None:
        """`run_until` carries out what is due until then (Unix ms), and leaves the clock there."""
        super().__init__(now_ms)
        self._run_until = run_until

    @property
    def now(self) -> datetime:
        """Return the time, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.now_ms)

    def advance(self, by: Span) -> None:
        """Let so much time pass: what becomes due on the way is delivered at its own due time.

        ConfigError for what is no duration, or a negative one.
        """
        self._run_until(self.now_ms + _ms_of(by))

    def advance_to(self, at: datetime | int) -> None:
        """Let time pass until then: an aware datetime, or Unix ms. ConfigError for the past, which
        no clock goes back to."""
        at_ms = unix_ms_of(at)
        if at_ms < self.now_ms:
            raise ConfigError(
                f"the clock is at {self.now_ms}, which is {self.now_ms - at_ms} ms later",
                remedy="begin earlier: give the start of the clock when delayd is made",
            )
        self._run_until(at_ms)


def unix_ms_of(at: datetime | int) -> int:
    """Return a moment in Unix ms. ConfigError for a datetime without a time zone."""
    if not isinstance(at, datetime):
        return at
    if at.utcoffset() is None:
        raise ConfigError(
            f"the datetime {at.isoformat()} has no time zone, so it names no moment",
            remedy="give it one, for instance tzinfo=UTC",
        )
    return -((_EPOCH - at) // _MS)


def _ms_of(by: Span) -> int:
    """Return a duration in ms; less than a millisecond counts as one."""
    if isinstance(by, str):
        try:
            return delay_ms_of(by)
        except RefusedError as error:
            raise ConfigError(
                f"{by[:80]!a} is no duration", remedy="write it like 250ms, 10s, 5m, 2h or 30d"
            ) from error
    by_ms = -(-by // _MS) if isinstance(by, timedelta) else by
    if by_ms < 0:
        raise ConfigError(f"the duration {by!r} is negative", remedy="no clock goes back")
    return by_ms
