"""The client for threads: calls that block, futures, and transactions of the user's own producer.

Not here: that producer's configuration and `init_transactions`, which stay the user's.

Invariant: a transaction is committed only if every request that was sent through it is in it
(kafka-python would commit without a record that failed).
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Literal, TypeVar, Unpack, overload

from delayd.client.asking import (
    Ask,
    Content,
    DebounceOptions,
    Moment,
    Options,
    Request,
    ScheduleOptions,
    Span,
    ask,
    ask_cancel,
    ask_fire,
    ask_reschedule,
)
from delayd.client.connection import (
    VERDICT_TIMEOUT_MS,
    WINDOW,
    Connected,
    Connection,
)
from delayd.client.errors import RequestRefusedError, outcome_unknown, refuse_to_wait
from delayd.client.outbox import transacting
from delayd.client.outcomes import Scheduled, Sent, Verdict
from delayd.client.retrying import RetryPolicy, retry
from delayd.client.transaction import Transaction as Transaction
from delayd.client.verdicts import Deadline
from delayd.errors import DelaydError
from delayd.request import Op

T = TypeVar("T", Sent, Scheduled)


class Client(Connected):
    """Schedules messages, cancels and replaces them. For several threads; not across a fork.

    The options are those of `ClientOptions`. Nothing is sent or awaited before the first request.
    Raises ConfigError for what the library refuses.
    """

    def _use(self, connection: Connection) -> None:
        super()._use(connection)
        self._in_transaction: set[int] = set()

    @overload
    def schedule(
        self,
        topic: str,
        value: Content,
        *,
        wait: Literal[False] = False,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled: ...

    @overload
    def schedule(
        self,
        topic: str,
        value: Content,
        *,
        wait: Literal[True],
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[ScheduleOptions],
    ) -> Verdict: ...

    def schedule(
        self,
        topic: str,
        value: Content,
        *,
        wait: bool = False,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled | Verdict:
        """Schedule one message and wait for the broker's acknowledgement.

        Exactly one of `in_` (counted from the broker's append time), `at` and `cron`; a number is
        in ms. With `cron` it recurs until it is cancelled or replaced, or until `until`.
        `partition` is of the target. With an `id` the message can be cancelled and replaced, and a
        second schedule while it is pending does nothing (its receipt says `duplicate` or
        `conflict`); `key`, text in UTF-8 then, is the delivered record's, by default the id.

        With `wait=True` it asks for receipts and returns when the master has decided: `scheduled`,
        `duplicate`, `conflict`, `over-quota` or `rejected` (why is in `detail`);
        VerdictUnknownError after `timeout_ms`. A cluster under rules older than 5 rejects such a
        request.

        Raises RequestRefusedError or NotScheduledError (nothing is scheduled),
        KafkaUnreachableError or NotInitialisedError (nothing was sent), and OutcomeUnknownError:
        a repeated request without an id may be scheduled twice.
        """
        if not wait:
            return self._acknowledged(self.schedule_async(topic, value, **options), Op.SCHEDULE)
        options["receipts"] = True
        return self._verdict(ask(self._outbox.buffer, topic, value, **options), timeout_ms)

    def schedule_async(
        self, topic: str, value: Content, **options: Unpack[ScheduleOptions]
    ) -> "Future[Scheduled]":
        """Schedule one message; the future ends with the result or the error of `schedule`.

        Raises at once what it can refuse at once. Waits while too much is unacknowledged
        (20,000 requests or 64 MiB). The future cannot be cancelled (the request is on its way), and
        its callbacks must not wait for this client: they run on the thread it is waiting for.
        """
        return self._outbox.send(Scheduled, ask(self._outbox.buffer, topic, value, **options))

    def acknowledged(self, future: "Future[Scheduled]") -> Scheduled:
        """Return what a future of `schedule_async` ends with, or raise it."""
        return self._acknowledged(future, Op.SCHEDULE)

    def schedule_many(self, requests: Iterable[Request]) -> Iterator[Scheduled | DelaydError]:
        """Schedule each request, and yield its outcome in the same order once it is known.

        An outcome is what `schedule` would have returned or raised: one bad request does not stop
        the others. Lazy: it takes and sends requests while the caller iterates over the outcomes,
        1,000 under way at a time, so an endless source does as well as a list. If the caller stops
        early, those under way are still sent.
        """
        under_way: deque[Future[Scheduled] | DelaydError] = deque()
        for request in requests:
            try:
                asked = request.ask(self._outbox.buffer)
                under_way.append(self._outbox.send(Scheduled, asked))
            except DelaydError as error:
                under_way.append(error)
            if len(under_way) >= WINDOW:
                yield self._outcome(under_way.popleft())
        while under_way:
            yield self._outcome(under_way.popleft())

    @overload
    def cancel(
        self, id: str, *, wait: Literal[True] = True, timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Verdict: ...

    @overload
    def cancel(
        self, id: str, *, wait: Literal[False], timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Sent: ...

    def cancel(
        self, id: str, *, wait: bool = True, timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Verdict | Sent:
        """Cancel whatever is pending under the id, and wait for the verdict.

        `cancelled` means that it will never be delivered, `too-late` that it was (or is dead), and
        `not-found` that delayd knows nothing of the id. `timeout_ms` counts from the call;
        VerdictUnknownError after it: cancel the same id again, which gets the same answer for as
        long as the id is remembered (24 hours after the due time). With `wait=False` returns when
        Kafka has the request. Other errors as of `schedule`.
        """
        return self._decided(ask_cancel(id), wait, timeout_ms)

    @overload
    def fire(
        self, id: str, *, wait: Literal[True] = True, timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Verdict: ...

    @overload
    def fire(
        self, id: str, *, wait: Literal[False], timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Sent: ...

    def fire(
        self, id: str, *, wait: bool = True, timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Verdict | Sent:
        """Deliver what is pending under the id now, once, and wait for the verdict.

        Verdicts: `rescheduled` (it is due now), `too-late`, `not-found`. Of a series the current
        occurrence goes out, and the series goes on. Needs rules version 7. Waiting and errors as of
        `cancel`. The same call again is `too-late` once it is delivered; of a series it fires the
        next occurrence.
        """
        return self._decided(ask_fire(id), wait, timeout_ms)

    @overload
    def reschedule(
        self,
        id: str,
        *,
        in_: Span | None = None,
        at: Moment | None = None,
        by: Span | None = None,
        wait: Literal[True] = True,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
    ) -> Verdict: ...

    @overload
    def reschedule(
        self,
        id: str,
        *,
        in_: Span | None = None,
        at: Moment | None = None,
        by: Span | None = None,
        wait: Literal[False],
        timeout_ms: int = VERDICT_TIMEOUT_MS,
    ) -> Sent: ...

    def reschedule(
        self,
        id: str,
        *,
        in_: Span | None = None,
        at: Moment | None = None,
        by: Span | None = None,
        wait: bool = True,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
    ) -> Verdict | Sent:
        """Give what is pending under the id another due time, and wait for the verdict.

        Exactly one of `at` (a time), `in_` (a delay from now on) and `by` (so much later than it is
        due, or earlier: `"-10m"`, a negative timedelta). Value, key and headers stay as they are. A
        series is not moved: `rejected`. Verdicts, waiting and errors as of `fire`.
        """
        return self._decided(ask_reschedule(id, in_=in_, at=at, by=by), wait, timeout_ms)

    @overload
    def replace(
        self,
        id: str,
        topic: str,
        value: Content,
        *,
        wait: Literal[True] = True,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[Options],
    ) -> Verdict: ...

    @overload
    def replace(
        self,
        id: str,
        topic: str,
        value: Content,
        *,
        wait: Literal[False],
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[Options],
    ) -> Scheduled: ...

    def replace(
        self,
        id: str,
        topic: str,
        value: Content,
        *,
        wait: bool = True,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[Options],
    ) -> Verdict | Scheduled:
        """Schedule a message in place of whatever is pending under the id.

        Verdicts: `replaced`, `scheduled` (nothing was pending), `too-late` (the old one was
        delivered before; the new one will be too). With `at`, the same call again gets the verdict
        of the first one and schedules nothing; with `in_` it postpones the message. `options` as of
        `schedule`, waiting and errors as of `cancel`.
        """
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.REPLACE, **options)
        if not wait:
            return self._acknowledged(self._outbox.send(Scheduled, asked), Op.REPLACE)
        return self._verdict(asked, timeout_ms)

    def debounce(
        self, id: str, topic: str, value: Content, **options: Unpack[DebounceOptions]
    ) -> Scheduled:
        """Send a message of which only the last one counts: it is delivered `in_` after the last
        call with this id, and at the latest `max_wait` after the first one since the last delivery.

        `in_` and `max_wait` as `in_` of `schedule`; `options` are some of its own. `due_ms` of the
        result is as if no call came before or after. There is no verdict to wait for: with
        `receipts=True` each call gets one, without only one that takes the place of something else.
        Errors as of `schedule`. Needs rules version 7.
        """
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.DEBOUNCE, **options)
        return self._acknowledged(self._outbox.send(Scheduled, asked), Op.DEBOUNCE)

    def debounce_in(
        self,
        producer: object,
        id: str,
        topic: str,
        value: Content,
        **options: Unpack[DebounceOptions],
    ) -> "Future[Scheduled]":
        """As `debounce`, through the user's own producer (`schedule_in`)."""
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.DEBOUNCE, **options)
        return self._outbox.send_in(producer, Scheduled, asked)

    def schedule_in(
        self, producer: object, topic: str, value: Content, **options: Unpack[ScheduleOptions]
    ) -> "Future[Scheduled]":
        """Send the request through the user's own producer, in its transaction if it has one open.

        `producer` is a confluent_kafka.Producer or a kafka.KafkaProducer. The future ends when that
        reports (librdkafka does so inside its `poll`, `flush` and `commit_transaction`); the
        message is scheduled only once the transaction is committed. Raises RequestRefusedError,
        and NotScheduledError if the producer does not take the record.
        """
        asked = ask(self._outbox.buffer, topic, value, **options)
        return self._outbox.send_in(producer, Scheduled, asked)

    def cancel_in(self, producer: object, id: str, *, wait: bool = False) -> "Future[Sent]":
        """As `schedule_in`. Its verdict comes after the commit, as a receipt for its source."""
        refuse_to_wait(wait)
        return self._outbox.send_in(producer, Sent, ask_cancel(id))

    def fire_in(self, producer: object, id: str) -> "Future[Sent]":
        """As `cancel_in`."""
        return self._outbox.send_in(producer, Sent, ask_fire(id))

    def reschedule_in(
        self,
        producer: object,
        id: str,
        *,
        in_: Span | None = None,
        at: Moment | None = None,
        by: Span | None = None,
    ) -> "Future[Sent]":
        """As `cancel_in`."""
        asked = ask_reschedule(id, in_=in_, at=at, by=by)
        return self._outbox.send_in(producer, Sent, asked)

    def replace_in(
        self,
        producer: object,
        id: str,
        topic: str,
        value: Content,
        *,
        wait: bool = False,
        **options: Unpack[Options],
    ) -> "Future[Scheduled]":
        """As `schedule_in`. Its verdict comes after the commit, as a receipt for its source."""
        refuse_to_wait(wait)
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.REPLACE, **options)
        return self._outbox.send_in(producer, Scheduled, asked)

    def retry(
        self, record: object, error: BaseException | str, policy: RetryPolicy | None = None
    ) -> Scheduled:
        """Schedule a consumed record that failed once more (`delayd.retry`), as `schedule` does.

        Commit its offset afterwards: a consumer that dies between the two retries it twice.
        """
        asked = retry(record, error, policy).ask(self._outbox.buffer)
        return self._acknowledged(self._outbox.send(Scheduled, asked), Op.SCHEDULE)

    def retry_in(
        self,
        producer: object,
        record: object,
        error: BaseException | str,
        policy: RetryPolicy | None = None,
    ) -> "Future[Scheduled]":
        """As `schedule_in`: with `send_offsets_to_transaction`, neither lost nor doubled."""
        asked = retry(record, error, policy).ask(self._outbox.buffer)
        return self._outbox.send_in(producer, Scheduled, asked)

    @contextmanager
    def transaction(self, producer: object) -> "Iterator[Transaction]":
        """Open a transaction of the user's own producer: commit at the end, abort on an exception.

        Before the commit every request in it must have been acknowledged, else it is aborted and
        NotScheduledError or OutcomeUnknownError raised. Inside, the same thread cannot wait for a
        verdict: none can come while the transaction hides the buffer.
        """
        owned = transacting(producer)
        thread = threading.get_ident()
        if thread in self._in_transaction:
            raise RequestRefusedError("this thread has a transaction open already")
        owned.producer.begin_transaction()
        self._in_transaction.add(thread)
        try:
            transaction = Transaction(self._outbox, producer)
            try:
                yield transaction
                owned.flush()
                transaction.check()
            except BaseException as error:
                try:
                    owned.producer.abort_transaction()
                except Exception as second:  # the first one is what the user has to know
                    error.add_note(f"the abort failed too, discard the producer: {second}")
                raise
            owned.producer.commit_transaction()
        finally:
            self._in_transaction.discard(thread)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every request so far has its outcome; OutcomeUnknownError if some have not."""
        self._outbox.flush(timeout_ms)

    def _decided(self, asked: Ask, wait: bool, timeout_ms: int) -> Verdict | Sent:
        """Send what is about an id; return its verdict, or its place."""
        if not wait:
            return self._acknowledged(self._outbox.send(Sent, asked), asked.op)
        return self._verdict(asked, timeout_ms)

    def _verdict(self, asked: Ask, timeout_ms: int) -> Verdict:
        if threading.get_ident() in self._in_transaction:
            raise RequestRefusedError(
                "no verdict can come while this thread has its transaction open",
                remedy="send it in the transaction, or wait after the commit",
            )
        deadline = Deadline.after(timeout_ms)
        self._outbox.check_buffer()
        with self._verdicts.ticket(asked, deadline) as ticket:
            ticket.wait_until_ready()
            self._outbox.send(Sent, asked).add_done_callback(ticket.follow)
            return ticket.wait()

    def _acknowledged(self, future: "Future[T]", op: Op) -> T:
        try:
            return future.result(self._outbox.bound_ms / 1000)
        except TimeoutError as error:
            raise outcome_unknown("the driver did not report in time", op) from error

    def _outcome(self, of: "Future[Scheduled] | DelaydError") -> Scheduled | DelaydError:
        if isinstance(of, DelaydError):
            return of
        try:
            return self._acknowledged(of, Op.SCHEDULE)
        except DelaydError as error:
            return error
