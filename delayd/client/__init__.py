"""The client: schedules messages from Python. A convenience: any Kafka client can do the same.

    with Client("localhost:9092") as client:
        client.schedule("reminders", b"drink water", in_="2h")

It writes one record to the buffer topic and says where it landed. `asking.py` makes the record,
`errors.py` holds what can go wrong. The client does not know the cluster's limits: a request that
it accepts may still become a dead letter (`too-far`, `too-large`).

Invariants:
- what the grammar of delayd refuses is refused here, before anything is sent;
- `schedule` returns only when all in-sync replicas of the broker have the request;
- every call and every future ends, about the acknowledgement time-out after it began at the latest;
- the buffer topic is never created by sending to it.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock, Thread
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from delayd.client.asking import Ask, Moment, Span, UserHeaders, ask
from delayd.client.errors import (
    NotScheduledError,
    OutcomeUnknownError,
    RequestRefusedError,
    failure,
    not_scheduled,
    outcome_unknown,
)
from delayd.errors import ConfigError, KafkaUnreachableError, NotInitialisedError

__all__ = [
    "REPORT_GRACE_MS",
    "Client",
    "NotScheduledError",
    "OutcomeUnknownError",
    "RequestRefusedError",
    "Scheduled",
]

ACK_TIMEOUT_MS: Final = 30_000
"""How long a request may wait for its acknowledgement; longer than a broker's restart."""

IN_FLIGHT_MAX: Final = 20_000
"""Requests without an acknowledgement; a fifth of what librdkafka's queue takes by default."""

REPORT_GRACE_MS: Final = 5_000
"""How much later than the acknowledgement time-out librdkafka may report it."""

POLL_INTERVAL_MS: Final = 100
"""How soon the thread that collects acknowledgements notices `close`."""

_FIXED: Final[Mapping[str, str]] = {
    "acks": "all",
    "enable.idempotence": "true",
    "partitioner": "murmur2_random",
}
"""The wire contract's: requests that share a key share a partition, and none is doubled."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Where a request landed. `partition` and `offset` are its source, for dedupe and audit."""

    partition: int
    offset: int
    append_ms: int
    """The broker's append time, Unix ms."""
    due_ms: int
    """The due time as asked, Unix ms; in the past means at once."""

    @property
    def source(self) -> str:
        """What the delivered record has in `delayd-source`."""
        return f"{self.partition}/{self.offset}"


class Client:
    """Schedules messages. May be used by several threads; not across a fork.

    `overrides` are more librdkafka properties (security, compression, linger); those that the wire
    contract fixes cannot be changed. Nothing is sent and nothing awaited before the first request.
    Raises ConfigError for a property that librdkafka refuses.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        buffer: str = "delayd-buffer",
        overrides: Mapping[str, str] | None = None,
        ack_timeout_ms: int = ACK_TIMEOUT_MS,
    ) -> None:
        self._buffer = buffer
        self._ack_timeout_ms = ack_timeout_ms
        self._producer = _producer(bootstrap, overrides or {}, ack_timeout_ms)
        self._room = BoundedSemaphore(IN_FLIGHT_MAX)
        self._lock = Lock()
        self._buffer_seen = False
        self._closed = False
        self._collector = Thread(target=self._collect, name="delayd-client", daemon=True)
        self._collector.start()

    def schedule(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        in_: Span | None = None,
        at: Moment | None = None,
        headers: UserHeaders | None = None,
        partition: int | None = None,
    ) -> Scheduled:
        """Schedule one message and wait for the broker's acknowledgement.

        Exactly one of `in_` (counted from the broker's append time) and `at`; a number is in ms.
        `partition` is of the target. Raises RequestRefusedError or NotScheduledError (nothing is
        scheduled), KafkaUnreachableError or NotInitialisedError (nothing was sent), and
        OutcomeUnknownError: whoever repeats such a request may schedule it twice.
        """
        future = self.schedule_async(
            topic, value, key=key, in_=in_, at=at, headers=headers, partition=partition
        )
        try:
            return future.result((self._ack_timeout_ms + REPORT_GRACE_MS) / 1000)
        except TimeoutError as error:
            raise outcome_unknown("the driver did not report in time") from error

    def schedule_async(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        in_: Span | None = None,
        at: Moment | None = None,
        headers: UserHeaders | None = None,
        partition: int | None = None,
    ) -> Future[Scheduled]:
        """Schedule one message; the future ends with the result or the error of `schedule`.

        What can be refused at once is raised at once. Waits while IN_FLIGHT_MAX requests are
        unacknowledged. The future cannot be cancelled (the request is on its way), and its
        callbacks must not wait for this client: they run on the thread that it is waiting for.
        """
        asked = ask(
            self._buffer,
            topic,
            value,
            key=key,
            in_=in_,
            at=at,
            headers=headers,
            partition=partition,
        )
        self._check_buffer()
        future: Future[Scheduled] = Future()
        future.set_running_or_notify_cancel()
        deadline_s = time.monotonic() + self._ack_timeout_ms / 1000
        if not self._room.acquire(timeout=self._ack_timeout_ms / 1000):
            raise not_scheduled(f"{IN_FLIGHT_MAX} earlier ones still wait for the broker")
        try:
            self._produce(asked, self._reporter(asked, future), deadline_s)
        except BaseException:
            self._room.release()
            raise
        return future

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every request so far has its outcome; OutcomeUnknownError if some have not."""
        bound_ms = self._ack_timeout_ms + REPORT_GRACE_MS if timeout_ms is None else timeout_ms
        waiting = self._producer.flush(bound_ms / 1000)
        if waiting:
            raise outcome_unknown(f"{waiting} requests are unacknowledged after {bound_ms} ms")

    def close(self) -> None:
        """Wait for what is in flight, then give back sockets and threads. Idempotent.

        What is still unacknowledged at the time-out ends with its error in its future.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._producer.flush((self._ack_timeout_ms + REPORT_GRACE_MS) / 1000)
        self._producer.purge()
        self._producer.flush(REPORT_GRACE_MS / 1000)
        self._collector.join(REPORT_GRACE_MS / 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _reporter(
        self, asked: Ask, future: Future[Scheduled]
    ) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._room.release()
            if error is not None:
                future.set_exception(failure(error))
                return
            partition, offset = message.partition(), message.offset()
            _, append_ms = message.timestamp()
            assert partition is not None, "an acknowledged record has a partition"
            assert offset is not None, "an acknowledged record has an offset"
            future.set_result(Scheduled(partition, offset, append_ms, asked.due_ms(append_ms)))

        return on_delivery

    def _produce(
        self,
        asked: Ask,
        on_delivery: Callable[[KafkaError | None, Message], None],
        deadline_s: float,
    ) -> None:
        """Hand the record to librdkafka; while its queue is full in bytes, wait for room."""
        while True:
            try:
                # Under the lock, so that `close` flushes all that was ever accepted.
                with self._lock:
                    self._refuse_if_closed()
                    self._producer.produce(
                        self._buffer,
                        asked.value,
                        asked.key,
                        headers=list(asked.headers),
                        on_delivery=on_delivery,
                    )
                return
            except BufferError as error:
                if time.monotonic() > deadline_s:
                    raise not_scheduled("the local queue is full") from error
                self._producer.poll(POLL_INTERVAL_MS / 1000)
            except KafkaException as error:
                raise not_scheduled(error.args[0].str()) from error

    def _check_buffer(self) -> None:
        """Once, before the first request: a broker that creates topics would swallow it."""
        with self._lock:
            self._refuse_if_closed()
            if self._buffer_seen:
                return
            try:
                topics = self._producer.list_topics(timeout=self._ack_timeout_ms / 1000).topics
            except KafkaException as error:
                raise KafkaUnreachableError(
                    f"no broker answered within {self._ack_timeout_ms} ms: {error.args[0].str()}",
                    remedy="check the bootstrap address and the security settings",
                ) from error
            if self._buffer not in topics:
                raise NotInitialisedError(
                    f"there is no topic {self._buffer}",
                    remedy="run `delayd topics create`, or name the right buffer topic",
                )
            self._buffer_seen = True

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RequestRefusedError("the client is closed", remedy="make a new one")

    def _collect(self) -> None:
        while not self._closed:
            self._producer.poll(POLL_INTERVAL_MS / 1000)


def _producer(bootstrap: str, overrides: Mapping[str, str], ack_timeout_ms: int) -> Producer:
    settings = {
        **_FIXED,
        "bootstrap.servers": bootstrap,
        "message.timeout.ms": str(ack_timeout_ms),
    }
    clash = sorted(settings.keys() & overrides.keys())
    if clash:
        raise ConfigError(
            f"the producer property {', '.join(clash)} cannot be overridden",
            remedy="delayd's contract fixes it, or an argument of Client sets it",
        )
    try:
        return Producer({**overrides, **settings})
    except (KafkaException, ValueError, TypeError) as error:
        raise ConfigError(
            f"the producer cannot be made: {error}", remedy="correct the property that it names"
        ) from error
