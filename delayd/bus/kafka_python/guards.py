"""kafka-python's transaction state, sender thread and batches, guarded as the port promises.

Not here: when a transaction begins and ends; what is sent, and when it is waited for.

Invariants:
- an epoch is never bumped: kafka-python would abort the transaction on the broker, go on as if
  nothing had happened, and let later records into the next one; and a producer that was fenced
  would come back with an epoch of its own and fence its successor;
- a partition that the coordinator denies for longer than new topics take to spread ends the
  transaction: kafka-python would ask for ever.
"""

import contextlib
from threading import Lock
from typing import Any, Final

from delayd.bus.kafka_python.connections import give_back
from delayd.bus.kafka_python.failures import Losses
from delayd.bus.kafka_python.library import (
    AddPartitionsToTxnHandler,
    Sender,
    TransactionManager,
    errors,
)
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
    """The request that adds partitions to the transaction, and the partitions that were refused."""

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


class GuardedSender(Sender):  # type: ignore[misc]
    """The sender thread, which notes whose records a broker refused.

    kafka-python fails all records of the transaction with the first refusal. Afterwards nobody can
    tell the record at fault from the others.
    """

    def __init__(self, *arguments: Any, losses: Losses, **properties: Any) -> None:
        super().__init__(*arguments, **properties)
        self.daemon = True
        self._losses = losses
        self._answering = Lock()

    def await_noted(self) -> None:
        """Wait until an answer that is being read is noted as a whole: its first refusal wakes the
        caller, who would miss the others."""
        with self._answering:
            pass

    def stop(self, wait_s: float) -> None:
        """End the thread without sending anything more, or never let it start.

        kafka-python's own close flushes first, and leaves the thread running if that takes too
        long. Closing the connections under the thread ends whatever it waits for.
        """
        if self.is_alive():
            self.force_close()
            with contextlib.suppress(RuntimeError):  # the thread has ended by itself
                self._client._net.call_soon_threadsafe(self._client._manager.close)
            self.join(wait_s)
        elif not self._client._manager.closed:
            self._client.close()
        if not self.is_alive():
            give_back(self._client)

    def _handle_produce_response(self, *answer: Any) -> None:
        with self._answering:
            super()._handle_produce_response(*answer)

    def _dispatch_error(self, batch: Any, exception: Any, partition_response: Any) -> None:
        super()._dispatch_error(batch, exception, partition_response)
        if batch.final_state is not None:  # else it is tried again
            self._losses.note_refusal(batch.topic_partition.topic, exception)


class Uncounted(list[tuple[str, bytes | None]]):
    """Headers that kafka-python does not count the bytes of: it cannot count a null value.

    It counts only what is not empty, for a report that nobody reads; the record is built from the
    length and the items, as of any list.
    """

    def __bool__(self) -> bool:
        return False
