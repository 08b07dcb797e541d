"""Waits for receipts: one thread reads them for all waits.

A wait is a ticket. A call takes it before it sends the request, so the reader is at the end of the
receipts before a master can write the receipt. The ticket learns the request's source when Kafka
acknowledges the request. The receipt may come earlier, so until then the ticket keeps all receipts
for its id. The receipts of a request without an id are under its source: until a ticket knows it,
all receipts under the source of their own are kept, once for all such tickets.

Not here: what a verdict means; sending.

Invariants:
- a ticket's answer is a receipt whose source is that of its own request, or an error;
- a ticket that is not closed gets its answer or error at the latest when the reader fails or
  `close` is called; time-outs are the caller's;
- while nobody waits there is no thread, except for IDLE_MS after the last wait;
- memory: WAITS_MAX tickets with EARLY_MAX receipts each, and WAITS_MAX receipts under sources.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Final, Self

from delayd.client.asking import Ask
from delayd.client.driver import Reader
from delayd.client.errors import (
    OutcomeUnknownError,
    ReceiptsUnreadableError,
    RequestRefusedError,
    no_receipt,
    receipts_unreachable,
    verdict_unknown,
)
from delayd.client.outcomes import Sent, Verdict, verdict_of
from delayd.errors import DelaydError
from delayd.request import Op

WAITS_MAX: Final = 20_000
"""Tickets at a time; as many as requests without an acknowledgement."""

EARLY_MAX: Final = 100
"""Receipts of one id that are kept for a request whose source is not known yet."""

IDLE_MS: Final = 30_000
"""How long the reader stays after the last wait; the next one need not open it again."""

POLL_MS: Final = 100
"""How soon the reader notices that it is to end."""

CLOSE_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a wait, on the monotonic clock."""

    timeout_ms: int
    at_s: float

    @classmethod
    def after(cls, timeout_ms: int) -> Self:
        """Return the deadline `timeout_ms` from now."""
        return cls(timeout_ms, time.monotonic() + timeout_ms / 1000)

    def left_s(self) -> float:
        """Return the seconds left; 0 when it has passed."""
        return max(0.0, self.at_s - time.monotonic())


class Ticket:
    """One wait for the verdict on one request. A context manager; closing it forgets the wait."""

    def __init__(
        self,
        verdicts: "Verdicts",
        key: bytes | None,
        op: Op,
        deadline: Deadline,
        ready: "Future[None]",
    ) -> None:
        self.key = key
        """Of its receipts; None until the source is known of a request without an id."""
        self.op: Final = op
        self.deadline: Final = deadline
        self.ready: Final = ready
        """Ends when the request may be sent, or with the reader's error: then it must not be."""
        self.answer: Final[Future[Verdict]] = Future()
        self.answer.set_running_or_notify_cancel()
        self._verdicts = verdicts
        self._lock = Lock()
        self._source: str | None = None
        self._early: dict[str, Verdict] = {}

    def wait_until_ready(self) -> None:
        """Return when the request may be sent; KafkaUnreachableError at the deadline."""
        try:
            self.ready.result(self.deadline.left_s())
        except TimeoutError as error:
            raise receipts_unreachable(self.deadline.timeout_ms) from error

    def wait(self) -> Verdict:
        """Return the answer; VerdictUnknownError at the deadline."""
        try:
            return self.answer.result(self.deadline.left_s())
        except TimeoutError as error:
            raise no_receipt(self.deadline.timeout_ms, self.op) from error

    def follow(self, acknowledged: "Future[Sent]") -> None:
        """Take the outcome of the request: its source is known now, or its error."""
        error = acknowledged.exception()
        if isinstance(error, OutcomeUnknownError):
            self.fail(error)
        elif error is not None:
            self._end(error)
        else:
            source = acknowledged.result().source
            with self._lock:
                self._source = source
                verdict = self._early.get(source)
                self._early.clear()
            if self.key is None:
                verdict = self._verdicts.name(self, source)
            if verdict is not None:
                self._end(verdict)

    def deliver(self, verdict: Verdict) -> None:
        """Take a receipt for this id: the answer to this request, or to another."""
        with self._lock:
            if self._source is None:
                if len(self._early) >= EARLY_MAX:
                    del self._early[next(iter(self._early))]
                self._early[verdict.source] = verdict
                return
            mine = verdict.source == self._source
        if mine:
            self._end(verdict)

    def fail(self, error: BaseException) -> None:
        """End the wait: no receipt will come to this ticket."""
        unknown = verdict_unknown(str(error), self.op)
        unknown.__cause__ = error
        self._end(unknown)

    def __enter__(self) -> "Ticket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop waiting. Idempotent."""
        self._verdicts.forget(self)

    def _end(self, result: Verdict | BaseException) -> None:
        with self._lock:
            if self.answer.done():
                return
            # Under the lock, since two threads may end it; what waits for it takes no lock of ours.
            if isinstance(result, BaseException):
                self.answer.set_exception(result)
            else:
                self.answer.set_result(result)


class _Reading:
    """One life of the reader: from the first ticket until nobody waits, or a failure."""

    def __init__(self) -> None:
        self.ready: Future[None] = Future()
        self.ready.set_running_or_notify_cancel()
        self.tickets: dict[bytes, list[Ticket]] = {}
        self.unnamed: set[Ticket] = set()
        """Those that do not know their key yet."""
        self.under_sources: dict[str, Verdict] = {}
        """Receipts that may be theirs."""
        self.idle_since_s: float | None = None
        self.thread: Thread | None = None


class Verdicts:
    """Hands out tickets. Used by any thread."""

    def __init__(self, make_reader: Callable[[], Reader], open_timeout_ms: int) -> None:
        self._make_reader = make_reader
        self._open_timeout_ms = open_timeout_ms
        self._lock = Lock()
        self._reading: _Reading | None = None
        self._count = 0
        self._closed = False

    def ticket(self, asked: Ask, deadline: Deadline) -> Ticket:
        """Return a wait for the verdict on a request that is not sent yet."""
        with self._lock:
            if self._closed:
                raise RequestRefusedError("the client is closed", remedy="make a new one")
            if self._count >= WAITS_MAX:
                raise RequestRefusedError(
                    f"{WAITS_MAX} requests wait for their verdicts",
                    remedy="wait for some, or send with wait=False",
                )
            reading = self._reading
            if reading is None:
                reading = self._reading = _Reading()
                reading.thread = Thread(
                    target=self._read, args=(reading,), name="delayd-receipts", daemon=True
                )
                reading.thread.start()
            key = None if asked.id is None else asked.id.encode()
            ticket = Ticket(self, key, asked.op, deadline, reading.ready)
            if key is None:
                reading.unnamed.add(ticket)
            else:
                reading.tickets.setdefault(key, []).append(ticket)
            reading.idle_since_s = None
            self._count += 1
            return ticket

    def name(self, ticket: Ticket, source: str) -> Verdict | None:
        """Let a ticket without a key wait under its source; return its receipt if that came."""
        with self._lock:
            reading = self._reading
            if reading is None or ticket not in reading.unnamed:
                return None
            reading.unnamed.remove(ticket)
            ticket.key = source.encode()
            reading.tickets.setdefault(ticket.key, []).append(ticket)
            verdict = reading.under_sources.get(source)
            if not reading.unnamed:
                reading.under_sources.clear()
            return verdict

    def forget(self, ticket: Ticket) -> None:
        """End that wait."""
        with self._lock:
            reading, key = self._reading, ticket.key
            if reading is None:
                return
            if key is None:
                self._count -= ticket in reading.unnamed
                reading.unnamed.discard(ticket)
            elif ticket in reading.tickets.get(key, ()):
                reading.tickets[key].remove(ticket)
                if not reading.tickets[key]:
                    del reading.tickets[key]
                self._count -= 1

    def close(self) -> None:
        """End every wait with its error, and the thread. Idempotent."""
        with self._lock:
            self._closed = True
            reading = self._reading
        if reading is not None:
            self._end(reading, RequestRefusedError("the client was closed during the wait"))
            if reading.thread is not None:
                reading.thread.join(CLOSE_MS / 1000)

    def _read(self, reading: _Reading) -> None:
        reader: Reader | None = None
        try:
            reader = self._make_reader()
            reader.open(self._open_timeout_ms)
            with self._lock:
                if not reading.ready.done():
                    reading.ready.set_result(None)
            while self._goes_on(reading):
                for key, value in reader.poll(POLL_MS):
                    self._hand_out(reading, key, value)
        except Exception as error:  # the only handler of this thread: whoever waits must be told
            self._end(reading, error)
        finally:
            if reader is not None:
                reader.close()

    def _goes_on(self, reading: _Reading) -> bool:
        with self._lock:
            if self._reading is not reading:
                return False
            if reading.tickets or reading.unnamed:
                return True
            now_s = time.monotonic()
            if reading.idle_since_s is None:
                reading.idle_since_s = now_s
            if now_s - reading.idle_since_s >= IDLE_MS / 1000:
                self._reading = None
                return False
            return True

    def _hand_out(self, reading: _Reading, key: bytes | None, value: bytes | None) -> None:
        with self._lock:
            if not reading.unnamed and (key or b"") not in reading.tickets:
                return
        verdict = verdict_of(value)
        if verdict is None:  # not an answer; what cannot be read cannot be anyone's
            return
        with self._lock:
            # Both under one lock: a ticket learns its key before this, or finds the receipt.
            if reading.unnamed and verdict.source.encode() == key:
                if len(reading.under_sources) >= WAITS_MAX:
                    del reading.under_sources[next(iter(reading.under_sources))]
                reading.under_sources[verdict.source] = verdict
            tickets = list(reading.tickets.get(key or b"", ()))
        for ticket in tickets:
            ticket.deliver(verdict)

    def _end(self, reading: _Reading, error: Exception) -> None:
        with self._lock:
            if self._reading is reading:
                self._reading = None
                self._count = 0
            tickets = [each for waiting in reading.tickets.values() for each in waiting]
            tickets += reading.unnamed
            reading.tickets.clear()
            reading.unnamed.clear()
            if not reading.ready.done():
                unreadable = ReceiptsUnreadableError(
                    f"the reader of receipts failed: {error!r}",
                    remedy="nothing was sent: repeat the call, and report the error if it repeats",
                )
                is_known = isinstance(error, DelaydError)
                reading.ready.set_exception(error if is_known else unreadable)
        for ticket in tickets:
            ticket.fail(error)
