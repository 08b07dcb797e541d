"""Sending over kafka-python: the client's own producer, and the user's."""

import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from threading import Event, Lock, Thread
from typing import Any, Final

from delayd.bus import Ack
from delayd.client.driver import Failure, NotTakenError, OnOutcome, PlainRecord, UserTransaction
from delayd.client.kafka_python.library import KafkaProducer, faults, made
from delayd.client.kafka_python.settings import Settings

CLOSE_MS: Final = 1_000
"""How long a producer that has nothing to send takes to end; then it is ended by force."""

REPORT_GRACE_MS: Final = 1_000
"""How much later than its time-out the library may report it."""

EXPIRY_INTERVAL_MS: Final = 100
"""How soon the client notices a record that the library never reports."""

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

    A thread of ours ends records that the library forgets: while a broker is frozen, the library
    waits for an answer and checks no time-out.
    """

    def __init__(self, settings: Settings) -> None:
        self._properties = settings.producer
        self._lock = Lock()
        self._producer: Any = None
        self._judge = _Judge()
        self._awaited = _Awaited(self._properties["delivery_timeout_ms"] + REPORT_GRACE_MS)
        self._closed = Event()
        self._expiry = Thread(target=self._expire, name="delayd-client", daemon=True)
        self._expiry.start()

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        """See the port. The library's queue has no bound, so it is never full."""
        with self._lock:
            if self._producer is not None and self._producer._transaction_manager.has_error():
                # One refused record ends it for all: every later one would fail with that error.
                spent, self._producer = self._producer, None
                _end(spent, CLOSE_MS)
            if self._producer is None:
                self._producer = made(lambda named: KafkaProducer(**named), self._properties)
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


class _Awaited:
    """Records that the library took and has not reported on, oldest first: it may never do so.

    Used by any thread. Each gets exactly one outcome, at the latest when it is overdue and someone
    looks.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._lock = Lock()
        self._deadlines_s: dict[OnOutcome, float] = {}

    def add(self, on_outcome: OnOutcome) -> OnOutcome:
        """Return what to report the outcome to; a second report is ignored."""

        def once(outcome: Ack | Failure) -> None:
            if self.drop(once):
                on_outcome(outcome)

        with self._lock:
            self._deadlines_s[once] = time.monotonic() + self._timeout_ms / 1000
        return once

    def drop(self, once: OnOutcome) -> bool:
        """Stop waiting for it; return False if nothing waited."""
        with self._lock:
            return self._deadlines_s.pop(once, None) is not None

    def end_overdue(self) -> None:
        """Fail the records whose time is over: nobody knows more of them."""
        now_s = time.monotonic()
        with self._lock:
            late = list(takewhile(lambda each: self._deadlines_s[each] < now_s, self._deadlines_s))
        for once in late:
            once(Failure(False, "the library did not report in time"))

    def end_all(self, why: str) -> None:
        """Fail every record that is left."""
        with self._lock:
            left = list(self._deadlines_s)
        for once in left:
            once(Failure(False, why))


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
    """The meaning of one producer's failures for their records.

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
