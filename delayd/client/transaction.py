"""Requests inside a transaction of the user's own producer.

Not here: the producer's configuration and `init_transactions`, which stay the user's.

Invariant: a transaction is committed only if every request that was sent through it is in it
(kafka-python would commit without a record that failed).
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, Unpack

from delayd.client.asking import Ask, Content, Options, ScheduleOptions, ask, ask_cancel
from delayd.client.errors import not_done
from delayd.client.outbox import Outbox
from delayd.client.outcomes import Scheduled, Sent
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
        return self._kept(
            self._outbox.schedule_in, ask(self._outbox.buffer, topic, value, **options)
        )

    def replace(
        self, id: str, topic: str, value: Content, **options: Unpack[Options]
    ) -> "Future[Scheduled]":
        """As `Client.replace_in`."""
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.REPLACE, **options)
        return self._kept(self._outbox.schedule_in, asked)

    def cancel(self, id: str) -> "Future[Sent]":
        """As `Client.cancel_in`."""
        return self._kept(self._outbox.send_in, ask_cancel(id))

    def check(self) -> None:
        """Raise, after a flush, what a request failed with."""
        for future in self._futures:
            if not future.done():
                raise not_done("the producer did not report every request of the transaction")
            future.result()

    def _kept(self, send: "Callable[[object, Ask], Future[T]]", asked: Ask) -> "Future[T]":
        future = send(self._producer, asked)
        self._futures.append(future)
        return future
