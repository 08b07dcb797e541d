"""Requests inside a transaction of the user's own producer, which `Client.transaction` opens."""

from concurrent.futures import Future
from typing import Any, TypeVar, Unpack

from delayd.client.asking import (
    Ask,
    Content,
    DebounceOptions,
    Moment,
    Options,
    ScheduleOptions,
    Span,
    ask,
    ask_cancel,
    ask_fire,
    ask_reschedule,
)
from delayd.client.errors import not_done
from delayd.client.outbox import Outbox
from delayd.client.outcomes import Scheduled, Sent
from delayd.client.retrying import RetryPolicy, retry
from delayd.request import Op

T = TypeVar("T", Sent, Scheduled)


class Transaction:
    """An open transaction; made by `Client.transaction`. Its futures say where a request lies."""

    def __init__(self, outbox: Outbox, producer: object) -> None:
        self._outbox = outbox
        self._producer = producer
        self._futures: list[Future[Any]] = []

    def schedule(
        self, topic: str, value: Content, **options: Unpack[ScheduleOptions]
    ) -> "Future[Scheduled]":
        """As `Client.schedule_in`."""
        return self._send(Scheduled, ask(self._outbox.buffer, topic, value, **options))

    def replace(
        self, id: str, topic: str, value: Content, **options: Unpack[Options]
    ) -> "Future[Scheduled]":
        """As `Client.replace_in`."""
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.REPLACE, **options)
        return self._send(Scheduled, asked)

    def debounce(
        self, id: str, topic: str, value: Content, **options: Unpack[DebounceOptions]
    ) -> "Future[Scheduled]":
        """As `Client.debounce_in`."""
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.DEBOUNCE, **options)
        return self._send(Scheduled, asked)

    def cancel(self, id: str) -> "Future[Sent]":
        """As `Client.cancel_in`."""
        return self._send(Sent, ask_cancel(id))

    def fire(self, id: str) -> "Future[Sent]":
        """As `Client.fire_in`."""
        return self._send(Sent, ask_fire(id))

    def reschedule(
        self,
        id: str,
        *,
        in_: Span | None = None,
        at: Moment | None = None,
        by: Span | None = None,
    ) -> "Future[Sent]":
        """As `Client.reschedule_in`."""
        return self._send(Sent, ask_reschedule(id, in_=in_, at=at, by=by))

    def retry(
        self, record: object, error: BaseException | str, policy: RetryPolicy | None = None
    ) -> "Future[Scheduled]":
        """As `Client.retry_in`."""
        return self._send(Scheduled, retry(record, error, policy).ask(self._outbox.buffer))

    def check(self) -> None:
        """Raise, after a flush, what a request failed with."""
        for future in self._futures:
            if not future.done():
                raise not_done("the producer did not report every request of the transaction")
            future.result()

    def _send(self, kind: type[T], asked: Ask) -> "Future[T]":
        future = self._outbox.send_in(self._producer, kind, asked)
        self._futures.append(future)
        return future
