"""Sending dead letters again, each with its answer.

Not here: what a redrive looks like (`delayd.request.redrives`), and which letters to send.

Invariants: redrives are sent in the order in which they come, so that letters of one partition keep
theirs; UNDER_WAY_MAX are under way; an answer is the receipt of the very request that was sent.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

from delayd.client.asking import Ask
from delayd.client.client import (
    ACK_TIMEOUT_MS,
    VERDICT_TIMEOUT_MS,
    no_receipt,
    receipts_unreachable,
)
from delayd.client.drivers import open_driver
from delayd.client.outbox import Outbox
from delayd.client.outcomes import Verdict
from delayd.client.verdicts import EARLY_MAX, Ticket, Verdicts
from delayd.config.security import Security
from delayd.errors import DelaydError
from delayd.request import Op
from delayd.request.redrives import Redrive

UNDER_WAY_MAX: Final = EARLY_MAX // 2
"""Redrives without an answer. All may be of one id, and a ticket may see the answers to as many
before itself and behind itself until it knows which is its own."""


class Redriver:
    """Sends redrives through librdkafka. A context manager; used by one thread.

    `security` and `overrides` as of `Client`. Raises ConfigError for what the library refuses.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        buffer: str,
        receipts: str,
        security: Security | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        library = open_driver("confluent", bootstrap, security, overrides or {}, ACK_TIMEOUT_MS)
        self._outbox = Outbox(library, buffer, ACK_TIMEOUT_MS)
        self._verdicts = Verdicts(lambda: library.reader(receipts), ACK_TIMEOUT_MS)

    def redrive(
        self, redrives: Iterable[Redrive], timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Iterator[Verdict | DelaydError]:
        """Send each, and its answer, in the same order: `scheduled`, `duplicate` or `rejected`.

        Or the error for which there is none: VerdictUnknownError or OutcomeUnknownError if it may
        have been sent. `timeout_ms` counts from the sending of each. Lazy, as
        `Client.schedule_many`.
        """
        under_way: deque[tuple[Ticket, float] | DelaydError] = deque()
        try:
            for each in redrives:
                under_way.append(self._send(each, timeout_ms))
                if len(under_way) >= UNDER_WAY_MAX:
                    yield self._outcome(under_way.popleft(), timeout_ms)
            while under_way:
                yield self._outcome(under_way.popleft(), timeout_ms)
        finally:
            for left in under_way:
                if not isinstance(left, DelaydError):
                    left[0].close()

    def close(self) -> None:
        """Wait for what is being sent, then give back sockets and threads. Idempotent."""
        self._verdicts.close()
        self._outbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, redrive: Redrive, timeout_ms: int) -> tuple[Ticket, float] | DelaydError:
        """The wait for its answer, and the monotonic second at which that is over."""
        asked = Ask(
            redrive.key,
            redrive.value,
            redrive.headers,
            asked_ms=0,
            relative=False,
            op=Op.REDRIVE,
            id=redrive.told,
            partition=redrive.partition,
        )
        self._outbox.check_buffer()
        deadline_s = time.monotonic() + timeout_ms / 1000
        ticket = self._verdicts.ticket(redrive.told, Op.REDRIVE)
        try:
            ticket.ready.result(max(0.0, deadline_s - time.monotonic()))
            self._outbox.send(asked).add_done_callback(ticket.follow)
        except TimeoutError:
            ticket.close()
            return receipts_unreachable(timeout_ms)
        except DelaydError as error:
            ticket.close()
            return error
        return ticket, deadline_s

    def _outcome(
        self, sent: tuple[Ticket, float] | DelaydError, timeout_ms: int
    ) -> Verdict | DelaydError:
        if isinstance(sent, DelaydError):
            return sent
        ticket, deadline_s = sent
        with ticket:
            try:
                return ticket.answer.result(max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                return no_receipt(timeout_ms, Op.REDRIVE)
            except DelaydError as error:
                return error
