"""kafka-python's transaction state, with what makes it forget a failure taken out.

Not here: when a transaction begins and ends.

Invariants:
- an epoch is never bumped: kafka-python would abort the transaction on the broker, go on as if
  nothing had happened, and let later records into the next one; and a producer that was fenced
  would come back with an epoch of its own and fence its successor;
- a partition that the coordinator denies for longer than new topics take to spread ends the
  transaction: kafka-python would ask for ever.
"""

from typing import Any, Final

from delayd.bus.kafka_python.library import (
    AddPartitionsToTxnHandler,
    TransactionManager,
    errors,
)
from delayd.bus.kafka_python.losses import Losses
from delayd.bus.kafka_python.settings import TOPIC_PROPAGATION_MS
from delayd.runtime.clock import Clock

WITHOUT_EPOCH_BUMPS: Final = (2, 4)
"""The last brokers for which kafka-python takes a lost sequence for fatal, as it must be here. It
asks this version for nothing else; requests are agreed upon with the real broker."""


class Transactions(TransactionManager):  # type: ignore[misc]  # kafka-python has no types
    """The state of one transactional id. Shared with the sender thread, under its own lock."""

    def __init__(
        self,
        transactional_id: str | None,
        *,
        timeout_ms: int,
        backoff_ms: int,
        metadata: Any,
        losses: Losses,
        clock: Clock,
    ) -> None:
        super().__init__(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            retry_backoff_ms=backoff_ms,
            api_version=WITHOUT_EPOCH_BUMPS,
            metadata=metadata,
        )
        self._losses = losses
        self._clock = clock

    def _add_partitions_to_transaction_handler(self) -> Any:
        with self._lock:
            self._pending_partitions_in_transaction.update(self._new_partitions_in_transaction)
            self._new_partitions_in_transaction.clear()
            return _AddPartitions(
                self, self._pending_partitions_in_transaction, self._losses, self._clock
            )


class _AddPartitions(AddPartitionsToTxnHandler):  # type: ignore[misc]
    """The request that takes partitions into the transaction, and who was refused."""

    def __init__(
        self, transactions: Transactions, partitions: Any, losses: Losses, clock: Clock
    ) -> None:
        super().__init__(transactions, partitions)
        self._losses = losses
        self._clock = clock
        self._deadline_ms = clock.monotonic_ms() + TOPIC_PROPAGATION_MS

    def handle_response(self, response: Any) -> None:
        """Take the coordinator's answer, partition by partition."""
        patient = self._clock.monotonic_ms() < self._deadline_ms
        unknown: BaseException | None = None
        for topic, partitions in response.results_by_topic_v3_and_below:
            for _, code in partitions:
                error = errors.for_code(code)(topic)
                if isinstance(error, errors.UnknownTopicOrPartitionError):
                    if patient:
                        continue
                    unknown = unknown or error
                self._losses.note_refusal(topic, error)
        if unknown is None:
            super().handle_response(response)
        else:
            self.abortable_error(unknown)
