"""The ingest thread: reads the whole buffer into this node's replica, and checkpoints it.

Every node does this for all partitions, master or not.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import structlog

from delayd.bus import Bus, Consumer
from delayd.node.replica.replica import Replica
from delayd.node.replica.told import Rejected
from delayd.runtime.clock import Clock
from delayd.runtime.threads import SystemThreads, Threads

log = structlog.get_logger()

BATCH_RECORDS_MAX = 1_000
"""About a megabyte of objects, which fits the caches of a processor: with 2,000 a message took a
tenth more of its time. How long the master's lock is held by one of them depends on it, too."""
POLL_MS = 50
FOLLOW_PAUSE_MS = 20
"""A follower reads the records of this time at once: to wake up for each batch of the brokers costs
more than to take in its records."""
LEAD_PAUSE_MS = 8
"""The same for a master, while all that comes is for later."""
SOON_MS = 1_000
"""A master pauses when nothing has come for so long that a step may want at once."""
PAUSE_RECORDS_MAX = 500
"""After more of them it reads on: it has to catch up."""
NOTE_MS = 500
"""How often it is noted how far the buffer was read, for whoever compares that with its end."""
REJECT_LINES_PER_S = 20
"""Rejects logged one by one within a second; the rest are counted in one line."""


class IngestLoop:
    """The ingest thread's state. `stop` may be called from another thread."""

    def __init__(
        self,
        bus: Bus,
        replica: Replica,
        clock: Clock,
        checkpoint_interval_ms: int,
        on_failure: Callable[[BaseException], object],
        threads: Threads | None = None,
        *,
        careful: bool = False,
        careful_to: Mapping[int, int] | None = None,
    ) -> None:
        """`careful`, `careful_to`: as of `Bus.consumer`."""
        threads = threads or SystemThreads()
        self._replica = replica
        self._clock = clock
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._on_failure = on_failure
        topic = replica.settings.buffer.name
        self._consumer: Consumer = bus.consumer(
            topic, careful=careful, careful_to=careful_to, may_be_flat=True
        )
        self._stopping = threads.event()
        self._rejects = RejectLog(clock)
        self.progressed_ms = clock.monotonic_ms()
        """Monotonic time of the last sign of life."""
        self.checkpointed_ms = clock.monotonic_ms()
        self.checkpoint_took_ms = 0
        """How long the last checkpoint took, most of it fsyncs."""
        self._tried_ms = self.checkpointed_ms
        """When a checkpoint was last tried: without room there is none."""
        self.rejects: Counter[str] = Counter()
        """Requests that were refused, by reason."""
        self._soon_count, self._soon_ms = 0, self.checkpointed_ms
        """What was stored for a step to come, when that was last seen to change, and when."""
        self._noted_ms = self.checkpointed_ms
        self.read_to: tuple[int, ...] = replica.reached
        """The next offset to read, by partition, as of NOTE_MS ago at most."""
        self.delay_ms: int | None = None
        """How old the first record of the last batch was."""
        self._thread = threads.thread("ingest", self._run)

    def start(self) -> None:
        """Read on from the replica's positions."""
        self._consumer.assign(self._replica.positions)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the thread after a last checkpoint."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            is_splitting = False
            while not self._stopping.is_set():
                self.progressed_ms = self._clock.monotonic_ms()
                timeout_ms = 0 if is_splitting else POLL_MS
                if self._replica.takes_in():
                    count = self._ingest(timeout_ms)
                    if 0 < count < PAUSE_RECORDS_MAX:
                        self._pause()
                else:
                    self._stopping.wait(timeout_ms / 1000)
                is_splitting = self._replica.split_some(self._clock.wall_ms())
                if self._clock.monotonic_ms() - self._noted_ms >= NOTE_MS:
                    self._note_place()
                if self._clock.monotonic_ms() - self._tried_ms >= self._checkpoint_interval_ms:
                    self._checkpoint()
            self._checkpoint()
        except BaseException as error:
            self._on_failure(error)
        finally:
            self._consumer.close()

    def _ingest(self, timeout_ms: int) -> int:
        """Take in what has come; return how many records that was."""
        # It returns without the records: what the next poll makes gets their memory, which is in
        # the processor's cache.
        records = self._consumer.poll(BATCH_RECORDS_MAX, timeout_ms)
        if not records:
            return 0
        rejected = self._replica.take(records)
        self._rejects.note(rejected)
        self.rejects.update(each.reject.reason.slug for each in rejected)
        self.delay_ms = self._clock.wall_ms() - records[0].append_ms
        return len(records)

    def _pause(self) -> None:
        """Let records come in, unless somebody waits for them."""
        if not self._replica.arrivals.has_listener:
            self._replica.pause_ingest(FOLLOW_PAUSE_MS)
            return
        now_ms = self._clock.monotonic_ms()
        soon_count = self._replica.arrivals.soon_count
        if soon_count != self._soon_count:
            self._soon_count, self._soon_ms = soon_count, now_ms
        if now_ms - self._soon_ms >= SOON_MS:
            self._stopping.wait(LEAD_PAUSE_MS / 1000)

    def _note_place(self) -> None:
        partitions = range(self._replica.settings.partitions)
        self.read_to = tuple(self._consumer.position(partition) for partition in partitions)
        self._noted_ms = self._clock.monotonic_ms()

    def _checkpoint(self) -> None:
        self._note_place()
        began_ms = self._clock.monotonic_ms()
        is_made = self._replica.checkpoint(self.read_to)
        self._tried_ms = self._clock.monotonic_ms()
        if is_made:
            self.checkpointed_ms = self._tried_ms
            self.checkpoint_took_ms = self._tried_ms - began_ms


class RejectLog:
    """Writes a line for each reject, up to a rate, and one line for those above it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = 0
        self._lines = 0
        self._suppressed = 0

    def note(self, rejected: list[Rejected]) -> None:
        """Log what was rejected."""
        second = self._clock.monotonic_ms() // 1000
        if second != self._second:
            if self._suppressed:
                log.warning("requests_rejected", suppressed=self._suppressed)
            self._second, self._lines, self._suppressed = second, 0, 0
        for partition, offset, reject in rejected:
            if self._lines >= REJECT_LINES_PER_S:
                self._suppressed += 1
                continue
            self._lines += 1
            log.warning(
                "request_rejected",
                source=f"{partition}/{offset}",
                reason=reject.reason.slug,
                detail=reject.detail,
            )
