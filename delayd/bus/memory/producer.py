"""The producer twin.

Not here: batching; a record is in the log as soon as it is sent, which a real one may be.

Invariants: as of the port. Like librdkafka it learns of lost records and of being fenced only in
`flush` and `commit`, begins without asking a broker, and commits an empty transaction alone.
"""

from collections.abc import Mapping
from typing import NoReturn

from delayd.bus.memory.idempotent import MemoryIdempotentProducer
from delayd.bus.memory.kafka import MemoryKafka
from delayd.bus.memory.link import Link
from delayd.bus.memory.transactions import FlushFault
from delayd.errors import FencedError, ProducerError
from delayd.runtime.clock import Clock


class MemoryProducer(MemoryIdempotentProducer):
    """One transactional id; see the port `TransactionalProducer`."""

    def __init__(
        self,
        kafka: MemoryKafka,
        link: Link,
        clock: Clock,
        transactional_id: str,
        record_bytes_max: int,
    ) -> None:
        super().__init__(kafka, link, clock, record_bytes_max)
        self._coordinator = kafka.coordinator
        self._id = transactional_id
        self._epoch: int | None = None
        self._began = False
        self._sent_count = 0

    def init_transactions(self, timeout_ms: int) -> None:
        """See the port."""
        assert not self._dead, "a producer that raised is dead"
        if not self._link.up:
            self._fail("init_transactions", "_TIMED_OUT")
        with self._kafka.changed:
            self._epoch = self._coordinator.init(self._id)
            self._kafka.changed.notify_all()

    def begin(self) -> None:
        """See the port; asks no broker, so that a fenced producer may pass it."""
        assert not self._dead, "a producer that raised is dead"
        assert self._epoch is not None, "init_transactions comes first"
        assert not self._began, "one open transaction at a time"
        self._began = True

    def flush(self, timeout_ms: int) -> None:
        """See the port."""
        assert not self._dead, "a producer that raised is dead"
        with self._kafka.changed:
            fault = self._coordinator.take_flush_fault(self._id)
        if fault is FlushFault.BROKER_GONE:
            self._dead = True
            raise ProducerError(f"{self._id}: flush: a broker is gone", is_broker_gone=True)
        if fault is not None:
            self._fail("flush", "_TIMED_OUT")
        super().flush(timeout_ms)

    def send_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], timeout_ms: int
    ) -> None:
        """See the port."""
        epoch = self._open_epoch()
        if not self._link.up:
            self._fail("send_offsets", "_TIMED_OUT")
        with self._kafka.changed:
            if not self._coordinator.is_current(self._id, epoch):
                self._fail("send_offsets", "_FENCED")
            self._coordinator.join_group(self._id, group, offsets)
        self._sent_count += 1

    def commit(self, timeout_ms: int) -> None:
        """See the port."""
        epoch = self._open_epoch()
        self.flush(timeout_ms)
        if self._sent_count:
            with self._kafka.changed:
                if not self._link.up:
                    self._fail("commit", "_TIMED_OUT")
                if not self._coordinator.is_current(self._id, epoch):
                    self._fail("commit", "_FENCED")
                fault = self._coordinator.commit(self._id)
                self._kafka.changed.notify_all()
            if fault is not None:
                self._fail("commit", "_TIMED_OUT")
        self._began = False
        self._sent_count = 0

    def _transaction(self) -> tuple[str, int]:
        epoch = self._open_epoch()
        self._sent_count += 1
        return self._id, epoch

    def _open_epoch(self) -> int:
        assert not self._dead, "a producer that raised is dead"
        assert self._began and self._epoch is not None, "begin comes first"
        return self._epoch

    def _fail(self, doing: str, error: str) -> NoReturn:
        self._dead = True
        kind = FencedError if error == "_FENCED" else ProducerError
        raise kind(f"{self._id}: {doing}: {error}", refusals=self._refusals, silent=self._silent)
