"""One look at the cluster for all who ask: what a page, a stream or a program is told of other
nodes and of Kafka is LOOK_MS old at most when it is asked for.

Invariant: one look at a time, in a thread of the reads, however many ask.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from delayd.errors import DelaydError
from delayd.node.monitoring.api.desk import Desk
from delayd.runtime.clock import Clock

LOOK_MS: Final = 700
"""Less than from one event of `GET /v1/live` to the next, so that each tells of a new look."""


class ClusterLook:
    """Lives on the event loop."""

    def __init__(self, reads: Desk, clock: Clock, look: Callable[[], dict[str, Any]]) -> None:
        """`look` takes a thread, and raises DelaydError."""
        self._reads = reads
        self._clock = clock
        self._look = look
        self._taking: asyncio.Task[None] | None = None
        self._taken_ms: int | None = None
        """Monotonic time of the last look that ended well."""
        self.report: dict[str, Any] | None = None
        """The last one that was complete."""
        self.report_ms: int | None = None
        """When it was complete, by this node's clock."""
        self.problem: DelaydError | None = None
        """Why there is no newer one."""

    def begin(self) -> "asyncio.Task[None] | None":
        """Take a look unless the last one is fresh or one is under way; return that one. It raises
        nothing."""
        taken_ms, now_ms = self._taken_ms, self._clock.monotonic_ms()
        if self._taking is not None and not self._taking.done():
            return self._taking
        if taken_ms is not None and now_ms - taken_ms < LOOK_MS:
            return None
        self._taking = asyncio.create_task(self._take())
        return self._taking

    async def fresh(self) -> dict[str, Any]:
        """Return a report that is LOOK_MS old at most, or of the look that is under way. Raises
        what that look raised."""
        if (taking := self.begin()) is not None:
            await asyncio.shield(taking)
            if self.problem is not None:
                raise self.problem
        assert self.report is not None, "a look that ended well left a report"
        return self.report

    async def _take(self) -> None:
        try:
            self.report = await self._reads.do(self._look)
        except DelaydError as error:
            self.problem = error
            return
        self.report_ms, self.problem = self._clock.wall_ms(), None
        self._taken_ms = self._clock.monotonic_ms()
