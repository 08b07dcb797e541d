"""The latch that stops a wheel: after a failed write or sync, and once it is closed."""

from collections.abc import Iterator
from contextlib import contextmanager

from delayd.errors import DiskError


class FailureLatch:
    """Open until the first failure, then shut for good: every call raises DiskError."""

    def __init__(self) -> None:
        self._failure: BaseException | None = None
        self.is_closed = False

    def trip(self, error: BaseException) -> None:
        """Refuse every later call because of `error`. Any thread."""
        if self._failure is None:
            self._failure = error

    @contextmanager
    def tripped_by_errors(self) -> Iterator[None]:
        """Trip if the block raises: it may have changed the wheel by half."""
        self.require_usable()
        try:
            yield
        except BaseException as error:
            self.trip(error)
            raise

    def require_usable(self) -> None:
        """Raise DiskError after a failure."""
        assert not self.is_closed, "the wheel is closed"
        if self._failure is not None:
            raise DiskError(
                f"the wheel stopped after an earlier failure: {self._failure}",
                remedy="end the process; it goes on from the last checkpoint",
            ) from self._failure
