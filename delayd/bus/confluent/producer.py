"""Producing with librdkafka, with or without transactions: the delivery hot path.

Not here: what belongs in a transaction; what to do after a failure (takeover, always).

Invariants:
- a producer that raised is dead: it is never used again (an assertion), only closed;
- a transaction that lost a record never commits: librdkafka refuses, and so does the first failed
  delivery report;
- closing neither commits nor aborts: the successor's `init_transactions` does
  (docs/design/frontier.md, "Fence");
- a transaction does not wait longer than a new one would for what replaces a broker that is gone
  (docs/design/frontier.md, "A broker that dies").
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as Client

from delayd.bus import Ack, Headers
from delayd.bus.confluent.failures import (
    FENCED,
    PURGED,
    REFUSED,
    REMEDIES,
    Failures,
    acknowledge,
    kafka_error,
    may_go_on,
)
from delayd.bus.confluent.flat_writing import WriteRefusedError, made
from delayd.bus.confluent.living_brokers import LivingBrokers
from delayd.bus.confluent.settings import Properties
from delayd.bus.flat import Outgoing, send_each
from delayd.errors import FencedError, ProducerError
from delayd.runtime.clock import SystemClock
from delayd.runtime.native import Library

R = TypeVar("R")

POLL_EVERY_RECORDS: Final = 500
"""Delivery reports are taken this often, so that acknowledged records leave the local queue."""

SEND_WAIT_MS_MAX: Final = 10_000
"""How long `send` waits for room in the local queue: the transaction times out then anyhow."""

CAUSE_WAIT_MS_MAX: Final = 1_000
"""How long a thread of librdkafka, which has nothing else to do, may take to tell a cause."""

TOPICS_NAMED_MAX: Final = 5
"""How many of the refused topics an error's text names."""

INIT_SLICE_MS: Final = 20
"""How long librdkafka is asked for an epoch before it is asked what keeps it. It says so only when
its time is over, and goes on meanwhile: then the same call may be repeated."""

INIT_PAUSE_MS_MIN: Final = 5
INIT_PAUSE_MS_MAX: Final = 100
"""Before a coordinator that is busy is asked again: a transaction is ended in milliseconds, within
a second if a broker has just been replaced, or for a reason that lasts."""

PURGE_WAIT_MS_MAX: Final = 1_000
"""How long librdkafka may take to report the records that it drops."""

LOOK_AFTER_MS: Final = 1_000
"""A transaction that has waited for so long looks whether a broker is gone."""

LOOK_MS: Final = 200
"""How often it looks then."""

QUEUE_POLL_MS: Final = 10
"""How often a waiting `send` looks for room."""


class ConfluentProducer:
    """One transactional id; see the port `TransactionalProducer`. Without an id it is only a
    `Producer`: the calls about transactions are not for it.

    FencedError also comes when the coordinator gave the id a new epoch because this producer's
    transaction timed out: the broker does not tell the two apart.
    """

    def __init__(
        self,
        transactional_id: str | None,
        properties: Properties,
        library: Library | None = None,
    ) -> None:
        """`library`: it writes flat records in C."""
        self._transactional_id = transactional_id
        self._library = library
        self._clock = SystemClock()
        self._failures = Failures()
        self._note = self._failures.note_report
        self._unpolled_count = 0
        self._dead = False
        # The client must not be reachable from its own callbacks: dropping the last reference is
        # how it is closed.
        self._properties = properties
        self._living = LivingBrokers()
        self._groups: dict[str, Any] = {}
        self._client: Client | None = None
        self._make_client()

    def _make_client(self) -> None:
        self._client, self._writer = made(self._library, Client, self._properties)

    def init_transactions(self, timeout_ms: int) -> None:
        """See the port; takes about 5 ms, some 50 ms after a predecessor's open transaction.

        A coordinator that has to end such a transaction first asks to be asked again. librdkafka
        does so after 0.5 s, whatever its settings, and a new client at once. So does one that looks
        for the coordinator that replaces a broker.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        pause_ms = INIT_PAUSE_MS_MIN
        while not self._initialise(deadline_ms):
            self._client = None  # Closed, so that it asks no more.
            threading.Event().wait(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, INIT_PAUSE_MS_MAX)
            self._make_client()

    def _initialise(self, deadline_ms: int) -> bool:
        """Get an epoch; False if the coordinator is busy with the last one's transaction, or a
        broker is gone meanwhile.

        Metadata is asked for first: librdkafka looks for the transaction coordinator over the
        connections that it has, and waits 0.5 s before it looks again if there is none yet.
        """
        client, now_ms = self._alive(), self._clock.monotonic_ms
        left_s = max(1, deadline_ms - now_ms()) / 1000
        self._call("connect", partial(self._living.ask, client), left_s)
        look_ms = now_ms() + LOOK_MS
        while (left_ms := deadline_ms - now_ms()) > INIT_SLICE_MS:
            if now_ms() >= look_ms:
                if self._living.lost(client, LOOK_MS):
                    return False
                look_ms = now_ms() + LOOK_MS
            try:
                client.init_transactions(INIT_SLICE_MS / 1000)
                return True
            except (KafkaException, SystemError) as error:
                cause = kafka_error(error)
                if cause.code() == KafkaError.CONCURRENT_TRANSACTIONS:
                    return False
                if not cause.retriable():
                    self._fail("init_transactions", cause)
        self._call("init_transactions", client.init_transactions, max(1, left_ms) / 1000)
        return True

    def begin(self) -> None:
        """See the port; asks no broker, so that a fenced producer may pass it."""
        self._call("begin", self._alive().begin_transaction)

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
        client = self._alive()
        report = self._note if on_ack is None else partial(acknowledge, self._note, on_ack)
        number = -1 if partition is None else partition
        sent: Any = headers  # a list is invariant, and the stub wants str values allowed as well
        try:
            client.produce(topic, value, key, number, report, headers=sent)
        except BufferError:
            self._when_room(
                topic, lambda: client.produce(topic, value, key, number, report, headers=sent)
            )
        except KafkaException as error:
            self._refused_locally(topic, error.args[0])
        self._unpolled_count += 1
        if self._unpolled_count >= POLL_EVERY_RECORDS:
            self._take_reports()

    def send_flat(self, records: Outgoing) -> None:
        """See the port."""
        writer, _held = self._writer, self._alive()
        if writer is None:
            send_each(self, records)
            return
        while records.begin < records.end:
            write = partial(writer.write, records)
            try:
                records = write()
            except BufferError:
                records = self._when_room("records", write)
            except WriteRefusedError as refused:
                self._refused_locally(refused.topic, refused.error)
            self._take_reports()

    def _take_reports(self) -> None:
        self._unpolled_count = 0
        self._call("send", self._alive().poll, 0)
        self._raise_noted("send")

    def flush(self, timeout_ms: int) -> None:
        left_count = self._wait("flush", self._alive().flush, timeout_ms)
        self._raise_noted("flush")
        if left_count:
            said = f"flush: _TIMED_OUT, {left_count} records unacknowledged after {timeout_ms} ms"
            self._give_up(said)

    def send_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], timeout_ms: int
    ) -> None:
        client = self._alive()
        self._raise_noted("send_offsets")
        places = [TopicPartition(*place, offset) for place, offset in sorted(offsets.items())]
        if group not in self._groups:
            # Only a consumer makes what names its group; this one knows no broker.
            self._groups[group] = Consumer({"group.id": group}).consumer_group_metadata()
        try:
            client.send_offsets_to_transaction(places, self._groups[group], timeout_ms / 1000)
        except (KafkaException, SystemError) as error:
            self._fail("send_offsets", kafka_error(error))

    def commit(self, timeout_ms: int) -> None:
        client = self._alive()
        self._raise_noted("commit")
        self._wait("commit", client.commit_transaction, timeout_ms)
        self._raise_noted("commit")

    def _wait(self, doing: str, call: Callable[[float], int | None], timeout_ms: int) -> int | None:
        """Carry out a call that goes on if it is repeated when its time is over.

        Give up if a broker is gone: librdkafka finds what replaces it seconds later than a new
        client. Not without transactions, where giving up may double what was sent.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        slice_ms = LOOK_AFTER_MS if self._transactional_id else timeout_ms
        while (left_ms := deadline_ms - self._clock.monotonic_ms()) > slice_ms:
            try:
                if not (left_count := call(slice_ms / 1000)):
                    return left_count
            except (KafkaException, SystemError) as error:
                if not may_go_on(cause := kafka_error(error)):
                    self._fail(doing, cause)
            slice_ms = LOOK_MS
            if gone := self._living.lost(self._alive(), LOOK_MS):
                numbers = ", ".join(map(str, sorted(gone)))
                self._give_up(f"{doing}: broker {numbers} is gone", is_broker_gone=True)
        return self._call(doing, call, max(1, left_ms) / 1000)

    def close(self) -> None:
        """See the port.

        Not librdkafka's own close: that one aborts the open transaction, and hangs as long as a
        frozen broker does. Giving up the last reference frees threads and sockets in 1 ms.
        """
        self._dead = True
        self._client = None

    def _alive(self) -> Client:
        assert self._client is not None and not self._dead, "a producer that raised is dead"
        return self._client

    def _call(self, doing: str, call: Callable[..., R], *arguments: float) -> R:
        try:
            return call(*arguments)
        except (KafkaException, SystemError) as error:
            self._fail(doing, kafka_error(error))

    def _refused_locally(self, topic: str, error: KafkaError) -> NoReturn:
        if error.code() in REFUSED:
            self._failures.refusals[topic] = error.name()
        self._fail(f"send to {topic}", error)

    def _when_room(self, topic: str, produce: Callable[[], R]) -> R:
        client = self._alive()
        deadline_ms = self._clock.monotonic_ms() + SEND_WAIT_MS_MAX
        while True:
            if self._clock.monotonic_ms() >= deadline_ms:
                self._give_up(f"send: _QUEUE_FULL for {SEND_WAIT_MS_MAX} ms")
            self._call("send", client.poll, QUEUE_POLL_MS / 1000)
            self._raise_noted("send")
            try:
                return produce()
            except BufferError:
                continue
            except KafkaException as error:
                self._refused_locally(topic, error.args[0])
            except WriteRefusedError as refused:
                self._refused_locally(refused.topic, refused.error)

    def _raise_noted(self, doing: str) -> None:
        self._note_lost()
        first = self._failures.first
        if first is not None:
            self._fail(doing, first)

    def _give_up(self, said: str, *, is_broker_gone: bool = False) -> NoReturn:
        """Raise that it is waited no longer, and which partitions are silent: librdkafka reports
        each record that it is told to drop."""
        self._dead = True
        client, silent = self._client, self._failures.silent
        assert client is not None, "only a call of the client can take too long"
        with contextlib.suppress(KafkaException, SystemError):
            client.purge(in_queue=True, in_flight=True, blocking=False)
            client.flush(PURGE_WAIT_MS_MAX / 1000)
        self._note_lost()
        whose = ", ".join(
            f"{topic}/{number}" for topic, number in sorted(silent)[:TOPICS_NAMED_MAX]
        )
        told = f"{said}{f', of {whose}' if whose else ''}"
        raise ProducerError(told, silent=silent, is_broker_gone=is_broker_gone)

    def _fail(self, doing: str, error: KafkaError) -> NoReturn:
        self._dead = True
        self._note_lost()
        if error.code() == KafkaError._FATAL:
            error = self._fatal_cause() or error
        first = self._failures.first
        if error.code() == KafkaError._INCONSISTENT and first is not None:
            error = first  # commit only says that records were lost; the report says why
        if error.code() in PURGED:
            error = self._transaction_cause() or error
        fenced = error.code() in FENCED or (first is not None and first.code() in FENCED)
        refusals = self._failures.refusals
        kind = FencedError if fenced else ProducerError
        whose = f" of {', '.join(sorted(refusals)[:TOPICS_NAMED_MAX])}" if refusals else ""
        told = (
            f"{self._transactional_id or 'producer'}: {doing}: {error.name()}{whose}, {error.str()}"
        )
        remedy = "another master took over" if fenced else REMEDIES.get(error.name(), "")
        raise kind(told, remedy=remedy, refusals=refusals) from None

    def _note_lost(self) -> None:
        """Note what became of records that C wrote: no report of theirs comes to Python."""
        if self._writer is not None and self._client is not None:
            for code, topic, partition in self._writer.failures():
                self._failures.note(KafkaError(code), topic, partition)

    def _fatal_cause(self) -> KafkaError | None:
        # librdkafka tells the cause of a fatal error once, as an exception out of poll.
        assert self._client is not None, "only a call of the client can have failed"
        try:
            self._client.poll(0)
        except (KafkaException, SystemError) as error:
            return kafka_error(error)
        return None

    def _transaction_cause(self) -> KafkaError | None:
        # A transaction that cannot go on drops its queued records, and their reports say only
        # that. To commit it is refused with the cause, without asking a broker: librdkafka never
        # commits a transaction that lost a record.
        if self._transactional_id is None:
            return None
        assert self._client is not None, "only a call of the client can have failed"
        try:
            self._client.commit_transaction(CAUSE_WAIT_MS_MAX / 1000)
        except (KafkaException, SystemError) as error:
            cause = kafka_error(error)
            return None if cause.code() == KafkaError._TIMED_OUT else cause
        raise AssertionError("a transaction that lost records was committed")
