"""Producing with kafka-python: its accumulator, sender and transaction state, under guard.

Not here: what belongs into a transaction; what to do after a failure (takeover, always).

Invariants:
- a producer that raised is dead: it is never used again (an assertion), only closed;
- a transaction that lost a record never commits: kafka-python would, so every delivery report is
  read before it is asked to;
- what waits unacknowledged is bounded here: kafka-python has no bound of its own;
- closing neither commits nor aborts, and ends the sender thread, however many requests are in
  flight: the successor's `init_transactions` cleans up (docs/design/frontier.md, "Fence").
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from delayd.bus import Ack, Headers
from delayd.bus.flat import Outgoing, send_each
from delayd.bus.kafka_python.connections import open_client, wait_done
from delayd.bus.kafka_python.failures import Losses, QueueFullError
from delayd.bus.kafka_python.guards import GuardedSender, Transactions, Uncounted
from delayd.bus.kafka_python.library import (
    DefaultRecordBatchBuilder,
    OffsetAndMetadata,
    RecordAccumulator,
    TopicPartition,
    errors,
)
from delayd.bus.kafka_python.places import Places
from delayd.bus.kafka_python.settings import (
    PRODUCE_BACKOFF_MS,
    REQUEST_BYTES,
    TRANSACTION_BACKOFF_MS,
    TRANSACTION_TIMEOUT_MS,
    Properties,
)
from delayd.runtime.clock import SystemClock

TAKE_EVERY_RECORDS: Final = 500
"""Delivery reports are taken this often, so that acknowledged records leave the local queue."""

SEND_WAIT_MS_MAX: Final = 10_000
"""How long `send` waits for room in the local queue: the transaction times out then anyhow."""

CONNECT_WAIT_MS_MAX: Final = 10_000
"""How long a producer without transactions, which begins to send at once, looks for a broker."""

WAIT_MS: Final = 20
"""How often a wait looks whether topics vanished under the records that it waits for."""

CLOSE_WAIT_S: Final = 0.2
"""How long `close` watches the sender thread end; it does within a millisecond unless it is in the
middle of a name lookup, and then it ends after that, without sending anything more."""


class _Waiting(NamedTuple):
    """A record that is not acknowledged yet."""

    future: Any
    topic: str
    size_bytes: int
    on_ack: Callable[[Ack], None] | None


class KafkaPythonProducer:
    """One transactional id; see the port `TransactionalProducer`. Without an id it is only a
    `Producer`: the calls about transactions are not for it.

    FencedError also comes when the coordinator gave the id a new epoch because this producer's
    transaction timed out: the broker does not tell the two apart.
    """

    def __init__(self, transactional_id: str | None, properties: Properties) -> None:
        self._transactional_id = transactional_id
        self._record_bytes_max = int(properties["record_bytes_max"])
        self._queue_records_max = int(properties["queue_records_max"])
        self._queue_bytes_max = int(properties["queue_bytes_max"])
        self._clock = SystemClock()
        self._losses = Losses()
        self._client = open_client(properties)
        self._metadata = self._client.cluster
        self._transactions = Transactions(
            transactional_id,
            timeout_ms=TRANSACTION_TIMEOUT_MS,
            backoff_ms=TRANSACTION_BACKOFF_MS,
            metadata=self._metadata,
            losses=self._losses,
            clock=self._clock,
        )
        delivery_timeout_ms = properties["linger_ms"] + properties["request_timeout_ms"]
        self._accumulator = RecordAccumulator(
            transaction_manager=self._transactions,
            retry_backoff_ms=PRODUCE_BACKOFF_MS,
            delivery_timeout_ms=delivery_timeout_ms,
            **properties,
        )
        self._sender = GuardedSender(
            self._client,
            self._metadata,
            self._accumulator,
            transaction_manager=self._transactions,
            transactional_id=transactional_id,
            guarantee_message_order=True,
            max_request_size=REQUEST_BYTES,
            retry_backoff_ms=TRANSACTION_BACKOFF_MS,
            losses=self._losses,
            **properties,
        )
        self._places = Places(self._metadata, self._sender, self._losses, self._clock)
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._untaken_count = 0
        self._dead = False
        self._is_connected = False

    def init_transactions(self, timeout_ms: int) -> None:
        """See the port; the first call that talks to a broker."""
        self._check_alive()
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self._connect(timeout_ms)
        result = self._transactions.initialize_transactions()
        self._sender.wakeup()
        self._await("init_transactions", result, deadline_ms)

    def begin(self) -> None:
        """See the port; asks no broker, so that a fenced producer may pass it."""
        self._check_alive()
        try:
            self._transactions.begin_transaction()
        except errors.KafkaError as error:
            self._fail("begin", error)

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        self._check_alive()
        self._raise_lost("send")
        if not self._is_connected:
            self._connect(CONNECT_WAIT_MS_MAX)
        size_bytes = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers)
        if size_bytes > self._record_bytes_max:
            error = errors.MessageSizeTooLargeError(f"{size_bytes} bytes")
            self._losses.note_refusal(topic, error)
            self._fail(f"send to {topic}", error)
        place = self._places.place_of(topic, key, partition)
        if place is None:
            return  # the transaction is lost; flush or commit will say so
        if self._is_full(size_bytes):
            self._wait_for_room(size_bytes)
        try:
            if self._transactional_id is not None:
                self._transactions.maybe_add_partition_to_transaction(place)
            future, full, new, _ = self._accumulator.append(
                place, None, key, value, Uncounted(headers)
            )
        except errors.KafkaError as error:
            self._take_reports()  # what a report says is the cause of what append says
            self._fail(f"send to {topic}", error)
        if full or new:
            self._sender.wakeup()
        self._waiting.append(_Waiting(future, topic, size_bytes, on_ack))
        self._waiting_bytes += size_bytes
        self._untaken_count += 1
        if self._untaken_count >= TAKE_EVERY_RECORDS:
            self._untaken_count = 0
            self._take_reports()  # the next call raises what they tell

    def send_flat(self, records: Outgoing) -> None:
        send_each(self, records)

    def flush(self, timeout_ms: int) -> None:
        self._check_alive()
        self._settle("flush", self._clock.monotonic_ms() + timeout_ms)

    def send_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], timeout_ms: int
    ) -> None:
        self._check_alive()
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        # Its transaction is told of the partitions before it is told of the group.
        self._settle("send_offsets", deadline_ms)
        places = {
            TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
            for place, offset in offsets.items()
        }
        try:
            result = self._transactions.send_offsets_to_transaction(places, group)
        except errors.KafkaError as error:
            self._fail("send_offsets", error)
        self._sender.wakeup()
        self._await("send_offsets", result, deadline_ms)

    def commit(self, timeout_ms: int) -> None:
        self._check_alive()
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        # kafka-python commits even if records failed, so none may be waiting or lost.
        self._settle("commit", deadline_ms)
        try:
            result = self._transactions.begin_commit()
        except errors.KafkaError as error:
            self._fail("commit", error)
        self._sender.wakeup()
        self._await("commit", result, deadline_ms)

    def close(self) -> None:
        self._dead = True
        self._waiting.clear()
        self._sender.stop(CLOSE_WAIT_S)

    def _connect(self, timeout_ms: int) -> None:
        """Start the sender thread and find the brokers; without an id it asks for one by itself."""
        self._is_connected = True
        self._sender.start()
        connected = self._client._manager.bootstrap_async(timeout_ms)
        self._sender.wakeup()
        if not wait_done(connected, timeout_ms):
            self._fail("connect", errors.KafkaTimeoutError(f"no broker in {timeout_ms} ms"))
        if connected.exception is not None:
            self._fail("connect", connected.exception)

    def _check_alive(self) -> None:
        assert not self._dead, "a producer that raised is dead"

    def _is_full(self, size_bytes: int) -> bool:
        return len(self._waiting) >= self._queue_records_max or (
            bool(self._waiting) and self._waiting_bytes + size_bytes > self._queue_bytes_max
        )

    def _wait_for_room(self, size_bytes: int) -> None:
        deadline_ms = self._clock.monotonic_ms() + SEND_WAIT_MS_MAX
        self._sender.wakeup()
        while True:
            self._take_reports()
            self._raise_lost("send")
            if not self._is_full(size_bytes):
                return
            if self._clock.monotonic_ms() >= deadline_ms:
                self._note_silent()
                self._fail("send", QueueFullError(f"for {SEND_WAIT_MS_MAX} ms"))
            self._waiting[0].future._produce_future.wait(WAIT_MS / 1000)

    def _settle(self, doing: str, deadline_ms: int) -> None:
        """Wait until no record waits; raises if one was lost or the time is over."""
        self._accumulator.begin_flush()
        self._sender.wakeup()
        try:
            while True:
                self._take_reports()
                self._raise_lost(doing)
                if not self._waiting:
                    return
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    self._note_silent()
                    count = len(self._waiting)
                    self._fail(doing, errors.KafkaTimeoutError(f"{count} records unacknowledged"))
                self._places.check_exists(self._waiting[0].topic)
                self._waiting[0].future._produce_future.wait(min(left_ms, WAIT_MS) / 1000)
        finally:
            self._accumulator._flushes_in_progress.decrement()

    def _note_silent(self) -> None:
        """Note which partitions have not acknowledged their records."""
        for record in self._waiting:
            if not record.future.is_done:
                place = record.future._produce_future.topic_partition
                self._losses.silent.add((place.topic, place.partition))

    def _take_reports(self) -> None:
        """Take the delivery reports that have come, in the order of sending."""
        waiting = self._waiting
        while waiting and waiting[0].future.is_done:
            record = waiting.popleft()
            self._waiting_bytes -= record.size_bytes
            error = record.future.exception
            report = record.future.value
            if error is not None:
                # Records that shared a batch with the one at fault say only that.
                self._losses.note(self._transactions.last_error or error)
            elif report.offset < 0:
                # A repeated batch whose place and time the broker no longer remembers.
                doubt = errors.DuplicateSequenceNumberError("acknowledged without a place")
                self._losses.note(doubt)
            elif record.on_ack is not None:
                record.on_ack(Ack(report.partition, report.offset, report.timestamp))

    def _await(self, doing: str, result: Any, deadline_ms: int) -> None:
        try:
            done = result.wait(max(1, deadline_ms - self._clock.monotonic_ms()))
        except errors.KafkaError as error:
            self._fail(doing, error)
        if not done:
            self._fail(doing, errors.KafkaTimeoutError("no answer of the coordinator"))

    def _raise_lost(self, doing: str) -> None:
        if self._losses.cause is not None:
            self._fail(doing, self._losses.cause)

    def _fail(self, doing: str, error: BaseException) -> NoReturn:
        self._dead = True
        self._sender.await_noted()
        known = self._transactions.last_error or error
        whose = self._transactional_id or "producer"
        raise self._losses.failure(whose, doing, known) from None
