"""The watch over a follower's batches: reports when none come, and when to give up. Pure.

Times are monotonic ms. A plan that could not be made and a query that ended are failures; a batch
that was judged ends them all. A batch that only takes long is none.
"""

from collections.abc import Iterator
from typing import Final

from delayd.audit.errors import FollowFailedError

STALL_MS: Final = 60_000
"""Without a batch for so long a person is told, once."""

GIVE_UP_MS: Final = 10 * 60 * 1000
"""A follower that only failed for so long ends, with what stands in its way."""

WHY_CHARS_MAX: Final = 1_000


class StallWatch:
    """A watch that takes events and yields what a person must know."""

    def __init__(self, now_ms: int) -> None:
        self._judged_ms = now_ms
        self._failing_ms: int | None = None
        self._why = ""
        self._is_stalled = False

    def judged(self, now_ms: int) -> None:
        """Note that a batch was judged."""
        self._judged_ms = now_ms
        self._failing_ms = None
        self._why = ""

    def failed(self, now_ms: int, why: str) -> None:
        """Note what stands in the way of the next batch."""
        if self._failing_ms is None:
            self._failing_ms = now_ms
        self._why = why[:WHY_CHARS_MAX]

    def lines(self, now_ms: int) -> Iterator[str]:
        """Yield what a person must know now; raise FollowFailedError after failing for too long."""
        stalled_ms = now_ms - self._judged_ms
        is_stalled = stalled_ms >= STALL_MS
        if is_stalled and not self._is_stalled:
            why = self._why or "it is still being read and judged"
            yield f"follow: no batch for {stalled_ms // 1000} s: {why}"
        elif self._is_stalled and not is_stalled:
            yield "follow: batches come again"
        self._is_stalled = is_stalled
        if self._failing_ms is not None and now_ms - self._failing_ms >= GIVE_UP_MS:
            raise FollowFailedError(
                f"no batch could be judged for {GIVE_UP_MS // 60_000} min: {self._why}",
                remedy="start it again when that is mended; it goes on where it was",
            )
