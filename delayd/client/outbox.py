"""The requests that a client sends: from an ask to a future that ends with its outcome.

Not here: the shape of the calls (`client.py`, `async_client.py`), waiting for verdicts.

Invariants: every accepted future ends; the bounds on what is in flight hold; nothing is sent before
the buffer was seen to exist, or after `close`.
"""

import sys
import time
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import closing, suppress
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from delayd.bus import Ack
from delayd.bus.murmur2 import partition_of
from delayd.client.asking import Ask
from delayd.client.driver import (
    Driver,
    Failure,
    NotTakenError,
    OnOutcome,
    PlainRecord,
    Producing,
    UserTransaction,
    existing,
)
from delayd.client.errors import RequestRefusedError, failed, not_done, outcome_unknown
from delayd.client.outcomes import Scheduled, Sent
from delayd.errors import ConfigError
from delayd.runtime.virtual_time import VirtualTime

if TYPE_CHECKING:
    from delayd.client.request_spans import RequestSpans

IN_FLIGHT_MAX: Final = 20_000
"""Requests without an acknowledgement; a fifth of what librdkafka's queue takes by default."""

IN_FLIGHT_BYTES_MAX: Final = 64 * 1024 * 1024
"""The same in bytes: kafka-python's own queue has no bound."""

REPORT_GRACE_MS: Final = 5_000
"""How much later than the acknowledgement time-out a library may report it."""

QUEUE_POLL_MS: Final = 100

T = TypeVar("T", Sent, Scheduled)


class InFlight:
    """Requests that have no outcome yet: a bound on how many and how large. Used by any thread.

    An admitted future is counted until it ends; more wait, so the memory is bounded whatever the
    library's own queue does (kafka-python's has no bound).
    """

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._sizes: dict[Future[Any], int] = {}
        self._closed = False
        self._room = Condition()

    def admit(self, future: "Future[Any]", size: int, deadline_s: float) -> bool:
        """Count it once there is room; return False if there is none in time, or after `close`.

        A request that is larger than all the room is admitted alone.
        """
        with self._room:
            while not self._closed and self._is_full(size):
                if not self._room.wait(max(0.0, deadline_s - time.monotonic())):
                    return False
            if self._closed:
                return False
            self._sizes[future] = size
            self._bytes += size
        future.add_done_callback(self._ended)
        return True

    def wait_for_those_now(self, timeout_ms: int) -> int:
        """Return how many of those in flight now still are after that time; 0 returns at once."""
        return len(wait(self.left(), timeout_ms / 1000).not_done)

    def close(self) -> None:
        """Admit nothing more; waits for room end."""
        with self._room:
            self._closed = True
            self._room.notify_all()

    def left(self) -> "list[Future[Any]]":
        """Return those without an outcome."""
        with self._room:
            return list(self._sizes)

    def _ended(self, future: "Future[Any]") -> None:
        with self._room:
            self._bytes -= self._sizes.pop(future)
            self._room.notify_all()

    def _is_full(self, size: int) -> bool:
        return len(self._sizes) >= self._records_max or (
            bool(self._sizes) and self._bytes + size > self._bytes_max
        )


class Outbox:
    """Sends asks through one driver. Used by any thread."""

    def __init__(
        self,
        driver: Driver,
        buffer: str,
        ack_timeout_ms: int,
        spans: "RequestSpans | None" = None,
        virtual: VirtualTime | None = None,
    ) -> None:
        """`spans`: of requests; None: nobody traces. `virtual`: the time of the cluster; None: it
        is real, as the brokers' is. Raises ConfigError if its file cannot be read."""
        if virtual is not None:
            virtual.now_ms()
        self._virtual = virtual
        self.buffer: Final = buffer
        self._spans = spans
        self._driver = driver
        self._ack_timeout_ms = ack_timeout_ms
        self._sender = driver.sender()
        self._in_flight = InFlight(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX)
        self._lock = Lock()
        self._partition_count: int | None = None
        self._closed = False

    @property
    def bound_ms(self) -> int:
        """Return how long after its sending a request has its outcome, at the latest."""
        return self._ack_timeout_ms + REPORT_GRACE_MS

    def send(self, kind: type[T], asked: Ask) -> "Future[T]":
        """Send a request: a `Scheduled` if it has a due time, a `Sent` if only its place matters.

        The future ends with its outcome.
        """
        record = asked.record(self.buffer)
        refusal = self._driver.refusal(record)
        if refusal is not None:
            raise RequestRefusedError(refusal, remedy="use the driver confluent, or change it")
        self.check_buffer()
        deadline_s = time.monotonic() + self._ack_timeout_ms / 1000
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        if not self._in_flight.admit(future, asked.size(), deadline_s):
            with self._lock:
                self._refuse_if_closed()
            raise not_done("too many earlier requests still wait for the broker", asked.op)
        try:
            record = self._traced(asked, record, future)
            self._hand_over(record, asked, _ender(asked, future, kind, self._virtual), deadline_s)
        except BaseException as error:
            _fail(future, error)  # nobody has it, but it counts as in flight until it ends
            raise
        return future

    def send_in(self, producer: object, kind: type[T], asked: Ask) -> "Future[T]":
        """Send it through the user's own producer; the future ends when the producer reports."""
        sender = transacting(producer)
        partition_count = self.check_buffer()
        # A request with an id must lie there, whatever partitioner the user's producer has.
        partition = None if asked.id is None else partition_of(asked.id.encode(), partition_count)
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        try:
            record = self._traced(asked, asked.record(self.buffer, partition), future)
            if not _taken(sender, record, asked, _ender(asked, future, kind, self._virtual)):
                raise not_done("the producer's own queue is full: poll it, and repeat", asked.op)
        except BaseException as error:
            _fail(future, error)  # Its span ends.
            raise
        return future

    def _traced(self, asked: Ask, record: PlainRecord, future: "Future[Any]") -> PlainRecord:
        """Return the record with the context of its span, which ends with the future."""
        if self._spans is None:
            return record
        record, on_end = self._spans.begin(asked, record)
        if on_end is not None:
            future.add_done_callback(on_end)
        return record

    def check_buffer(self) -> int:
        """Check, once, that the buffer exists: a broker that creates topics would swallow requests.

        Returns the partitions of the buffer, which are fixed for ever.
        """
        with self._lock:
            self._refuse_if_closed()
            if self._partition_count is None:
                with closing(self._driver.cluster("producer")) as cluster, existing(self.buffer):
                    self._partition_count = cluster.partition_count(
                        self.buffer, self._ack_timeout_ms
                    )
            return self._partition_count

    def flush(self, timeout_ms: int | None) -> None:
        """Wait until every request so far has its outcome; OutcomeUnknownError if some have not."""
        bound_ms = self.bound_ms if timeout_ms is None else timeout_ms
        waiting = self._in_flight.wait_for_those_now(bound_ms)
        if waiting:
            raise outcome_unknown(f"{waiting} requests are unacknowledged after {bound_ms} ms")

    def close(self) -> None:
        """Wait for what is in flight, then end what is left with its error. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._in_flight.close()
        self._in_flight.wait_for_those_now(self.bound_ms)
        self._sender.close(REPORT_GRACE_MS)
        for future in self._in_flight.left():
            _fail(future, outcome_unknown("the client was closed"))

    def _hand_over(
        self, record: PlainRecord, asked: Ask, on_outcome: OnOutcome, deadline_s: float
    ) -> None:
        """Give the record to the library; while its queue is full, wait for room."""
        while True:
            # Under the lock, so that `close` waits for all that was ever accepted.
            with self._lock:
                self._refuse_if_closed()
                if _taken(self._sender, record, asked, on_outcome):
                    return
            if time.monotonic() > deadline_s:
                raise not_done("the local queue is full", asked.op)
            self._sender.wait_for_room(QUEUE_POLL_MS)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RequestRefusedError("the client is closed", remedy="make a new one")


def _taken(sender: Producing, record: PlainRecord, asked: Ask, on_outcome: OnOutcome) -> bool:
    try:
        return sender.send(record, on_outcome)
    except NotTakenError as error:
        raise not_done(str(error), asked.op) from error


def _ender(
    asked: Ask, future: "Future[T]", kind: type[T], virtual: VirtualTime | None
) -> OnOutcome:
    """Return what ends the future with the library's report: it raises nothing, for a library that
    is told so on its own thread would report no more."""

    def end(reported: Ack | Failure) -> None:
        if isinstance(reported, Failure):
            _fail(future, failed(asked.op, reported))
        elif reported.offset < 0:
            _fail(future, outcome_unknown("Kafka has it, but did not say where", asked.op))
        else:
            if virtual is not None:
                try:
                    reported = reported._replace(append_ms=virtual.virtual_ms(reported.append_ms))
                except ConfigError as error:
                    _fail(future, error)
                    return
            due_ms = asked.due_ms(reported.append_ms)
            with suppress(InvalidStateError):
                future.set_result(kind.of(reported, due_ms))

    return end


def _fail(future: "Future[T]", error: BaseException) -> None:
    with suppress(InvalidStateError):  # the library reported after all
        future.set_exception(error)


def transacting(producer: object) -> UserTransaction:
    """Wrap the user's own producer, of either library; its module is loaded already."""
    known: UserTransaction | None = None
    if "confluent_kafka" in sys.modules:
        from delayd.client import confluent

        known = confluent.transacting(producer)
    if known is None and "kafka" in sys.modules:
        from delayd.client.kafka_python import sending

        known = sending.transacting(producer)
    if known is not None:
        return known
    raise RequestRefusedError(
        f"{type(producer).__name__} is not a producer that delayd knows",
        remedy="give a confluent_kafka.Producer or a kafka.KafkaProducer, or send the plain record "
        "of schedule_record, cancel_record or replace_record yourself",
    )
