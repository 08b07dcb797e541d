"""A watch that compares how far a node has read the buffer with how far brokers say that it goes.

It asks over connections of its own, because those of a reader that hears nothing may be the fault.
So a node tells whether it has read all, has not, or cannot know.

Not here: reading (`delayd.node.replica.ingest_loop`); whether topics are as they must be
(`kafka_health.py`).

Invariant: an answer is compared with a position that was noted before the question, so a reader
that has read all is never taken for one that is behind.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from delayd.bus import Bus, Cluster
from delayd.bus.progress import Progress
from delayd.errors import DelaydError
from delayd.runtime.clock import Clock

log = structlog.get_logger()

INTERVAL_S = 1
TIMEOUT_MS: Final = 5_000
DEAF_MS: Final = 5_000
"""How long a position may stand still before an end that is beyond it. A driver replaces a reader
that stands still for 3 s (`delayd.bus.progress`)."""


class Held(NamedTuple):
    """A partition that an open transaction holds up."""

    offset: int
    """Nobody reads from there on, until the transaction ends."""
    since_ms: int
    """Monotonic time at which this was seen first."""


class IngestWatch:
    """The watch of one node. Lives on the event loop; what it found is read by any thread."""

    def __init__(
        self,
        bus: Bus,
        topic: str,
        clock: Clock,
        read_to: Callable[[], Sequence[int]],
        takes_in: Callable[[], bool],
    ) -> None:
        """`read_to` returns the next offset to read, by partition, as was noted a moment ago;
        `takes_in`, whether the node has room for what it would read."""
        self._bus = bus
        self._topic = topic
        self._clock = clock
        self._read_to = read_to
        self._takes_in = takes_in
        self._progress = Progress(topic, 0, DEAF_MS)
        self.problem: str | None = None
        """Why the node does not read what is there; None if it does, or if nobody can know."""
        self.unanswered: str | None = None
        """Why it is not known how far the buffer goes; None as of a good answer."""
        self.unread: tuple[int | None, ...] = (None,) * len(read_to())
        """Offsets from where the node reads to the end of the log, by partition; None while no
        broker tells. Markers and open transactions are among them."""
        self._held: dict[int, Held] = {}

    def held_ms(self) -> dict[int, int]:
        """Return for how long an open transaction has held up readers of the buffer, ms, by
        partition; only those that are held up. The reader may still be on its way there."""
        now_ms = self._clock.monotonic_ms()
        return {number: now_ms - held.since_ms for number, held in self._held.items()}

    async def run(self) -> None:
        """Watch until it is cancelled."""
        cluster = self._bus.cluster()
        try:
            while True:
                await asyncio.to_thread(self.look, cluster)
                await asyncio.sleep(INTERVAL_S)
        finally:
            cluster.close()

    def look(self, cluster: Cluster) -> None:
        """Ask once, and note what that means."""
        read_to = dict(enumerate(self._read_to()))
        readable: Mapping[int, int] = {}
        try:
            ends = cluster.end_offsets(self._topic, TIMEOUT_MS, committed=False)
            if any(ends.get(n, 0) > at for n, at in read_to.items()):
                # Nobody reads behind an open transaction.
                readable = cluster.end_offsets(self._topic, TIMEOUT_MS, committed=True)
        except DelaydError as error:
            self.unanswered, self.unread = str(error), (None,) * len(read_to)
            self._note(None)
            return
        self.unanswered = None
        self._held = self._held_at(
            {n: readable[n] for n in read_to if n in readable and readable[n] < ends.get(n, 0)}
        )
        if not self._takes_in():
            readable = {}
        self.unread = tuple(max(0, ends.get(n, at) - at) for n, at in read_to.items())
        self._note(self._progress.note(read_to, readable, self._clock.monotonic_ms()))

    def _held_at(self, offsets: Mapping[int, int]) -> "dict[int, Held]":
        """Return what holds up readers, of which that at the same offset began earlier."""
        now_ms = self._clock.monotonic_ms()
        return {
            number: held
            if (held := self._held.get(number)) is not None and held.offset == offset
            else Held(offset, now_ms)
            for number, offset in offsets.items()
        }

    def _note(self, stalled: Exception | None) -> None:
        """Log one line when the node begins to hear nothing, and when that is over."""
        if stalled is not None and self.problem is None:
            log.error("ingest_hears_nothing", error=str(stalled))
        if stalled is None and self.problem is not None:
            log.info("ingest_hears", unanswered=self.unanswered)
        self.problem = None if stalled is None else str(stalled)
