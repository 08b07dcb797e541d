"""A step as one Kafka transaction: its deliveries and its frontier are committed together.

Whatever a predecessor left open is aborted before the last frontier is read, and nothing that it
writes afterwards is taken: so each message is delivered once.

Source: docs/design/frontier.md, "Step" and "Fence".
"""

from collections.abc import Callable

from delayd.bus import Bus, Producer, TransactionalProducer
from delayd.cluster.frontier_log import FrontierLog
from delayd.node.delivery.commits import Asked, Written
from delayd.node.delivery.commits.writing import write_frontier
from delayd.runtime.clock import Clock
from replication import takeover_facts as facts
from replication.record import FrontierRecord
from replication.takeover import Takeover

INIT_TIMEOUT_MS = 10_000
COMMIT_TIMEOUT_MS = 5_000
READ_TIMEOUT_MS = 5_000


class TransactionCommit:
    """The port `StepCommit` over a transactional producer. Raises ProducerError, FencedError."""

    def __init__(
        self, bus: Bus, transactional_id: str, frontier_log: FrontierLog, clock: Clock
    ) -> None:
        self._transaction: TransactionalProducer = bus.transactional_producer(transactional_id)
        self._log = frontier_log
        self._clock = clock

    @property
    def producer(self) -> Producer:
        """See the port."""
        return self._transaction

    @property
    def last(self) -> FrontierRecord | None:
        """See the port."""
        return None if self._log.newest is None else self._log.newest.record

    def takeover(self) -> Takeover:
        """See the port."""
        return Takeover()

    def obey(self, order: Asked) -> facts.Fact:
        """See the port; raises KafkaUnreachableError too."""
        match order:
            case facts.FencePredecessors():
                self._transaction.init_transactions(INIT_TIMEOUT_MS)
                return facts.PredecessorsFenced(self._clock.monotonic_ms())
            case facts.ReadEnds():
                stable = self._log.stable_end(READ_TIMEOUT_MS)
                written = self._log.high_watermark(READ_TIMEOUT_MS)
                return facts.EndsRead(self._clock.monotonic_ms(), stable, written)
            case facts.ReadFrontier(end):
                self._log.catch_up(end, READ_TIMEOUT_MS)
                last = self.last
                if last is None:
                    return facts.FrontierRead(self._clock.monotonic_ms(), None)
                is_of_topic = self._log.is_of_topic(last, READ_TIMEOUT_MS)
                return facts.FrontierRead(self._clock.monotonic_ms(), last.frontier, is_of_topic)
            case facts.ReadProgress():
                raise AssertionError("the progress stands in the frontier topic")

    def begin(self) -> None:
        """See the port."""
        self._transaction.begin()

    def commit(self, record: FrontierRecord, check: Callable[[Written], None]) -> Written:
        """See the port; `check` forbids it."""
        written = write_frontier(self._transaction, record, self._clock)
        check(written)
        self._transaction.commit(COMMIT_TIMEOUT_MS)
        return written

    def close(self) -> None:
        """See the port; an open transaction is left for a successor to abort."""
        self._transaction.close()
