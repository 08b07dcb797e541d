"""Sending over kafka-python: the client's own producer, and the user's."""

from collections.abc import Callable
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, Final

from delayd.bus import Ack
from delayd.client.driver import Failure, NotTakenError, OnOutcome, PlainRecord, UserTransaction
from delayd.client.kafka_python.awaited import Awaited
from delayd.client.kafka_python.library import (
    CLOSE_MS,
    KafkaProducer,
    faults,
    made,
    partition_count,
)
from delayd.client.kafka_python.settings import Settings

REPORT_GRACE_MS: Final = 1_000
"""How much later than its time-out the library may report it."""

EXPIRY_INTERVAL_MS: Final = 100
"""How soon what it does not report at all is noticed."""

_CERTAIN: Final = (
    faults.MessageSizeTooLargeError,
    faults.RecordListTooLargeError,
    faults.InvalidRecordError,
    faults.InvalidTimestampError,
    faults.PolicyViolationError,
    faults.TopicAuthorizationFailedError,
    faults.UnknownTopicOrPartitionError,
)


class KafkaPythonSender:
    """See the port `Sender`. The library's own thread sends and reports.

    A thread of ours ends what that one forgets: while a broker is frozen, it waits for an answer
    and checks no time-out.
    """

    def __init__(self, settings: Settings) -> None:
        self._properties = settings.producer
        self._shared = settings.shared
        self._lock = Lock()
        self._producer: Any = None
        self._judge = _Judge()
        self._awaited = Awaited(self._properties["delivery_timeout_ms"] + REPORT_GRACE_MS)
        self._closed = Event()
        self._expiry = Thread(target=self._expire, name="delayd-client", daemon=True)
        self._expiry.start()

    def partition_count(self, topic: str, timeout_ms: int) -> int:
        """See the port."""
        return partition_count(self._shared, topic, timeout_ms)

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        """See the port. The library's queue has no bound, so it is never full."""
        with self._lock:
            if self._producer is not None and self._producer._transaction_manager.has_error():
                # One refused record ends it for all: every later one would fail with that error.
                spent, self._producer = self._producer, None
                _end(spent, CLOSE_MS)
            if self._producer is None:
                timeout_ms = self._properties["bootstrap_timeout_ms"]
                self._producer = made(KafkaProducer, self._properties, timeout_ms)
                # The library takes the setting and forgets it.
                self._producer._metadata.config["allow_auto_create_topics"] = False
                self._judge = _Judge()
            once = self._awaited.add(on_outcome)
            try:
                _send(self._producer, record, once, self._judge.failure_of)
            except NotTakenError:
                self._awaited.drop(once)
                raise
        return True

    def wait_for_room(self, timeout_ms: int) -> None:
        """See the port: never needed."""

    def close(self, timeout_ms: int) -> None:
        """See the port."""
        with self._lock:
            producer, self._producer = self._producer, None
        self._closed.set()
        if producer is not None:
            _end(producer, timeout_ms)
        self._awaited.end_all("the client was closed")
        self._expiry.join(timeout_ms / 1000)

    def _expire(self) -> None:
        while not self._closed.wait(EXPIRY_INTERVAL_MS / 1000):
            self._awaited.end_overdue()


def transacting(producer: object) -> UserTransaction | None:
    """Wrap the user's own producer, if it is of this library.

    It ends each record by its own `delivery_timeout_ms`.
    """
    if not isinstance(producer, KafkaProducer):
        return None
    return UserTransaction(producer, partial(_send_by_user, producer), producer.flush)


def _send_by_user(producer: Any, record: PlainRecord, on_outcome: OnOutcome) -> bool:
    for serializer in ("key_serializer", "value_serializer"):
        if producer.config[serializer] is not None:
            raise NotTakenError(f"the producer's {serializer} would change the record")
    # Its other errors may be those of earlier records: none proves that this record failed.
    _send(producer, record, on_outcome, lambda error, _: Failure(False, str(error)))
    return True


class _Judge:
    """What the failures of one producer mean for their records.

    Kafka refuses one batch, and the library fails all others with that same error, even those on
    their way: only the first batch is certainly not in the log.
    """

    def __init__(self) -> None:
        self._refused: object = None

    def failure_of(self, error: BaseException, batch: object) -> Failure:
        """Return the failure of a record in `batch`, which is any object its records share."""
        if not isinstance(error, _CERTAIN):
            return Failure(False, str(error))
        if self._refused is None:
            self._refused = batch
        if batch is self._refused:
            return Failure(True, str(error))
        return Failure(False, f"another record ended the producer: {error}")


def refusal_of(record: PlainRecord) -> str | None:
    """Return why kafka-python cannot send this record, or None.

    It has nothing that stands for null in a header, and takes a record without key and value for a
    mistake.
    """
    nulls = [name for name, content in record.headers if content is None]
    if nulls:
        return f"kafka-python cannot send the null value of the header {nulls[0][:80]!a}"
    if record.key is None and record.value is None:
        return "kafka-python cannot send a record without key and value"
    return None


def _send(
    producer: Any,
    record: PlainRecord,
    on_outcome: OnOutcome,
    failure_of: Callable[[BaseException, object], Failure],
) -> None:
    refusal = refusal_of(record)
    if refusal is not None:
        raise NotTakenError(refusal)
    try:
        future = producer.send(
            record.topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
        )
    except (faults.KafkaError, ValueError, TypeError, AssertionError) as error:
        raise NotTakenError(str(error) or type(error).__name__) from error

    def on_success(metadata: Any) -> None:
        on_outcome(Ack(metadata.partition, metadata.offset, metadata.timestamp))

    def on_failure(error: BaseException) -> None:
        on_outcome(failure_of(error, future._produce_future))

    future.add_callback(on_success)
    future.add_errback(on_failure)


def _end(producer: Any, timeout_ms: int) -> None:
    """Close it. The library's own `close` gives up when its `flush` does, and leaves its thread."""
    thread = producer._sender
    try:
        producer.close(timeout=CLOSE_MS / 1000)
    except Exception:
        producer._closed = True  # or the garbage collector would try the same again
    if thread.is_alive():
        thread.force_close()
        thread.join(timeout_ms / 1000)
