"""The cashier: payments as they come, each a cancel of its order's time-out.

One thread with an asyncio client. It waits for acknowledgements only: whether the verdicts are true
is not for the sender of the cancels to say, so the witness reads them (answers.py).

Invariants: a payment is sent once, never before its time; every error is kept, and ends the thread.
"""

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Final, Self

from delayd.client import AsyncClient
from delayd.dev.batch import Payments
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock

TICK_MS: Final = 20
"""How late a payment may be sent."""


class Cashier:
    """Sends the payments of a batch, whose orders were scheduled before. `show` gets the count."""

    def __init__(self, bootstrap: str, payments: Payments, show: Callable[[int], None]) -> None:
        self._bootstrap = bootstrap
        self._payments = payments
        self._show = show
        self._clock = SystemClock()
        self._thread = Thread(target=self._run, name="cashier", daemon=True)
        self._stopping = False
        self.sent = 0
        """Payments that Kafka has acknowledged."""
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping = True
        self._thread.join()

    def wait(self, timeout_ms: int) -> bool:
        """Wait until all payments are sent. Raise the error that ended the thread; return False
        if the time was up."""
        self._thread.join(timeout_ms / 1000)
        if self.error is not None:
            raise self.error
        return not self._thread.is_alive() and self.sent == self._payments.count

    def _run(self) -> None:
        try:
            asyncio.run(self._pay())
        except* DelaydError as errors:  # whoever waits raises it
            self.error = errors.exceptions[0]

    async def _pay(self) -> None:
        batch = self._payments.batch
        async with AsyncClient(self._bootstrap) as client, asyncio.TaskGroup() as under_way:
            for number in self._payments.in_order():
                at_ms = self._payments.at_ms(number)
                while self._clock.wall_ms() < at_ms and not self._stopping:
                    await asyncio.sleep(TICK_MS / 1000)
                if self._stopping:
                    return
                under_way.create_task(self._cancel(client, batch.key(number).decode()))

    async def _cancel(self, client: AsyncClient, order: str) -> None:
        await client.cancel(order, wait=False)
        self.sent += 1
        self._show(self.sent)
