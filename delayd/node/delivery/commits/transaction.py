"""A step as one Kafka transaction: its deliveries and its frontier are committed together.

A takeover aborts what a predecessor left open before it reads the last frontier, and Kafka refuses
what the predecessor writes afterwards: so each message is delivered once.

Source: docs/design/frontier.md, "Step" and "Fence".
"""

from collections.abc import Callable

from delayd.bus import TransactionalProducer
from delayd.cluster.frontier_log import FrontierLog
from delayd.node.delivery.commits import Written
from delayd.node.delivery.commits.frontier_topic import (
    READ_TIMEOUT_MS,
    frontier_read,
    write_frontier,
)
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord
from replication.takeover import (
    EndsRead,
    Fact,
    FencePredecessors,
    PredecessorsFenced,
    Read,
    ReadEnds,
    ReadFrontier,
    ReadProgress,
)

INIT_TIMEOUT_MS = 10_000
COMMIT_TIMEOUT_MS = 5_000
SLOW_INIT_MS = 1_000
"""A fence that took so long waited for a broker that was replaced, or for one that is slow."""


class TransactionCommit:
    """The port `StepCommit` over a transactional producer. Raises ProducerError, FencedError."""

    is_fenced = True

    def __init__(
        self,
        producer: TransactionalProducer,
        frontier_log: FrontierLog,
        clock: Clock,
        renew: Callable[[], object] | None = None,
    ) -> None:
        """`producer`: of the shard's transactional id, not initialised; closed with this. `renew`
        gives the log new connections, and whatever else reads."""
        self.producer = producer
        self._log = frontier_log
        self._clock = clock
        self._renew = renew or frontier_log.renew

    @property
    def last(self) -> FrontierRecord | None:
        """See the port."""
        return None if self._log.newest is None else self._log.newest.record

    def obey(self, order: Read) -> Fact:
        """See the port; raises KafkaUnreachableError too."""
        match order:
            case FencePredecessors():
                begun_ms = self._clock.monotonic_ms()
                self.producer.init_transactions(INIT_TIMEOUT_MS)
                if self._clock.monotonic_ms() - begun_ms >= SLOW_INIT_MS:
                    self._renew()  # Connections of before find new leaders a second later.
                return PredecessorsFenced(self._clock.monotonic_ms())
            case ReadEnds(is_anew):
                if is_anew:
                    self._log.renew()
                stable = self._log.stable_end(READ_TIMEOUT_MS)
                written = self._log.high_watermark(READ_TIMEOUT_MS)
                return EndsRead(self._clock.monotonic_ms(), stable, written, self._log.read_to)
            case ReadFrontier(end):
                self._log.catch_up(end, READ_TIMEOUT_MS)
                return frontier_read(self.last, self._log, self._clock)
            case ReadProgress():
                raise AssertionError("the progress stands in the frontier topic")

    def begin(self) -> None:
        """See the port."""
        self.producer.begin()

    def commit(self, record: FrontierRecord, check: Callable[[Written], None]) -> Written:
        """See the port; `check` forbids it."""
        written = write_frontier(self.producer, record, self._clock)
        check(written)
        self.producer.commit(COMMIT_TIMEOUT_MS)
        return written

    def close(self) -> None:
        """See the port; an open transaction is left for a successor to abort."""
        self.producer.close()
