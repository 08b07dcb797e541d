"""The client for asyncio: the same calls as awaitables, over the same outbox and verdicts.

One thread runs everything that could block (the first connection, a full queue, the user's own
producer), in the order of the calls. A task that awaits costs no thread.

Invariants: the loop is never blocked; at most CALLS_MAX calls are under way, the others wait their
turn; a cancelled call leaves nothing behind once what it sent has its outcome.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, Literal, Self, TypeVar, Unpack, overload

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
from delayd.client.connection import VERDICT_TIMEOUT_MS, WINDOW, ClientOptions, Connection, connect
from delayd.client.errors import (
    RequestRefusedError,
    no_receipt,
    receipts_unreachable,
    refuse_to_wait,
)
from delayd.client.outcomes import Scheduled, Sent, Verdict
from delayd.client.retrying import RetryPolicy, retry
from delayd.client.verdicts import Deadline
from delayd.errors import DelaydError
from delayd.request import Op

CALLS_MAX: Final = 1_000
"""Calls under way: enough to fill Kafka's batches."""

T = TypeVar("T")
R = TypeVar("R", Sent, Scheduled)


class AsyncClient:
    """`Client` for one event loop: same arguments, outcomes and errors.

    An asynchronous context manager; `close` ends it otherwise.
    """

    def __init__(self, bootstrap: str, **options: Unpack[ClientOptions]) -> None:
        self._use(connect(bootstrap, **options))

    @classmethod
    def over(cls, connection: Connection) -> Self:
        """Return one over this connection; of several, whoever closes ends all."""
        made = cls.__new__(cls)
        made._use(connection)
        return made

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._outbox, self._verdicts = self._connection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="delayd-async")
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._closed = False

    @overload
    async def schedule(
        self,
        topic: str,
        value: Content,
        *,
        wait: Literal[False] = False,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled: ...

    @overload
    async def schedule(
        self,
        topic: str,
        value: Content,
        *,
        wait: Literal[True],
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[ScheduleOptions],
    ) -> Verdict: ...

    async def schedule(
        self,
        topic: str,
        value: Content,
        *,
        wait: bool = False,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled | Verdict:
        """As `Client.schedule`."""
        if wait:
            options["receipts"] = True
        asked = ask(self._outbox.buffer, topic, value, **options)
        return await (self._verdict(asked, timeout_ms) if wait else self._sent(Scheduled, asked))

    async def schedule_many(
        self, requests: Iterable[Request] | AsyncIterable[Request]
    ) -> AsyncGenerator[Scheduled | DelaydError, None]:
        """As `Client.schedule_many`; the source may be asynchronous too."""
        under_way: deque[asyncio.Task[Scheduled | DelaydError]] = deque()
        try:
            async for request in _asynchronous(requests):
                under_way.append(asyncio.create_task(self._outcome(request)))
                if len(under_way) >= WINDOW:
                    yield await under_way[0]
                    under_way.popleft()
            while under_way:
                yield await under_way[0]
                under_way.popleft()
        finally:
            for task in under_way:
                task.cancel()

    @overload
    async def cancel(
        self, id: str, *, wait: Literal[True] = True, timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Verdict: ...

    @overload
    async def cancel(
        self, id: str, *, wait: Literal[False], timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Sent: ...

    async def cancel(
        self, id: str, *, wait: bool = True, timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Verdict | Sent:
        """As `Client.cancel`."""
        return await self._decided(ask_cancel(id), wait, timeout_ms)

    @overload
    async def fire(
        self, id: str, *, wait: Literal[True] = True, timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Verdict: ...

    @overload
    async def fire(
        self, id: str, *, wait: Literal[False], timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Sent: ...

    async def fire(
        self, id: str, *, wait: bool = True, timeout_ms: int = VERDICT_TIMEOUT_MS
    ) -> Verdict | Sent:
        """As `Client.fire`."""
        return await self._decided(ask_fire(id), wait, timeout_ms)

    @overload
    async def reschedule(
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
    async def reschedule(
        self,
        id: str,
        *,
        in_: Span | None = None,
        at: Moment | None = None,
        by: Span | None = None,
        wait: Literal[False],
        timeout_ms: int = VERDICT_TIMEOUT_MS,
    ) -> Sent: ...

    async def reschedule(
        self,
        id: str,
        *,
        in_: Span | None = None,
        at: Moment | None = None,
        by: Span | None = None,
        wait: bool = True,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
    ) -> Verdict | Sent:
        """As `Client.reschedule`."""
        asked = ask_reschedule(id, in_=in_, at=at, by=by)
        return await self._decided(asked, wait, timeout_ms)

    @overload
    async def replace(
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
    async def replace(
        self,
        id: str,
        topic: str,
        value: Content,
        *,
        wait: Literal[False],
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[Options],
    ) -> Scheduled: ...

    async def replace(
        self,
        id: str,
        topic: str,
        value: Content,
        *,
        wait: bool = True,
        timeout_ms: int = VERDICT_TIMEOUT_MS,
        **options: Unpack[Options],
    ) -> Verdict | Scheduled:
        """As `Client.replace`."""
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.REPLACE, **options)
        if not wait:
            return await self._sent(Scheduled, asked)
        return await self._verdict(asked, timeout_ms)

    async def debounce(
        self, id: str, topic: str, value: Content, **options: Unpack[DebounceOptions]
    ) -> Scheduled:
        """As `Client.debounce`."""
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.DEBOUNCE, **options)
        return await self._sent(Scheduled, asked)

    async def debounce_in(
        self,
        producer: object,
        id: str,
        topic: str,
        value: Content,
        **options: Unpack[DebounceOptions],
    ) -> "asyncio.Future[Scheduled]":
        """As `Client.debounce_in`."""
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.DEBOUNCE, **options)
        return await self._handed(producer, Scheduled, asked)

    async def schedule_in(
        self, producer: object, topic: str, value: Content, **options: Unpack[ScheduleOptions]
    ) -> "asyncio.Future[Scheduled]":
        """As `Client.schedule_in`: awaiting the call hands it over, the result is a future."""
        asked = ask(self._outbox.buffer, topic, value, **options)
        return await self._handed(producer, Scheduled, asked)

    async def cancel_in(
        self, producer: object, id: str, *, wait: bool = False
    ) -> "asyncio.Future[Sent]":
        """As `Client.cancel_in`."""
        refuse_to_wait(wait)
        asked = ask_cancel(id)
        return await self._handed(producer, Sent, asked)

    async def fire_in(self, producer: object, id: str) -> "asyncio.Future[Sent]":
        """As `Client.fire_in`."""
        return await self._handed(producer, Sent, ask_fire(id))

    async def reschedule_in(
        self,
        producer: object,
        id: str,
        *,
        in_: Span | None = None,
        at: Moment | None = None,
        by: Span | None = None,
    ) -> "asyncio.Future[Sent]":
        """As `Client.reschedule_in`."""
        asked = ask_reschedule(id, in_=in_, at=at, by=by)
        return await self._handed(producer, Sent, asked)

    async def replace_in(
        self,
        producer: object,
        id: str,
        topic: str,
        value: Content,
        *,
        wait: bool = False,
        **options: Unpack[Options],
    ) -> "asyncio.Future[Scheduled]":
        """As `Client.replace_in`."""
        refuse_to_wait(wait)
        asked = ask(self._outbox.buffer, topic, value, id=id, op=Op.REPLACE, **options)
        return await self._handed(producer, Scheduled, asked)

    async def retry(
        self, record: object, error: BaseException | str, policy: RetryPolicy | None = None
    ) -> Scheduled:
        """As `Client.retry`."""
        return await self._sent(Scheduled, retry(record, error, policy).ask(self._outbox.buffer))

    async def retry_in(
        self,
        producer: object,
        record: object,
        error: BaseException | str,
        policy: RetryPolicy | None = None,
    ) -> "asyncio.Future[Scheduled]":
        """As `Client.retry_in`: awaiting the call hands it over, the result is a future."""
        asked = retry(record, error, policy).ask(self._outbox.buffer)
        return await self._handed(producer, Scheduled, asked)

    async def flush(self, timeout_ms: int | None = None) -> None:
        """As `Client.flush`."""
        await asyncio.to_thread(self._outbox.flush, timeout_ms)

    async def close(self) -> None:
        """As `Client.close`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _end(self) -> None:
        self._connection.close()
        self._thread.shutdown()

    async def _sent(self, kind: type[R], asked: Ask) -> R:
        async with _Call(self) as call:
            sent = await call.on_thread(lambda: self._outbox.send(kind, asked))
            return await asyncio.wrap_future(sent)

    async def _handed(self, producer: object, kind: type[R], asked: Ask) -> "asyncio.Future[R]":
        async with _Call(self) as call:
            sent = await call.on_thread(lambda: self._outbox.send_in(producer, kind, asked))
            return asyncio.wrap_future(sent)

    async def _decided(self, asked: Ask, wait: bool, timeout_ms: int) -> Verdict | Sent:
        if not wait:
            return await self._sent(Sent, asked)
        return await self._verdict(asked, timeout_ms)

    async def _verdict(self, asked: Ask, timeout_ms: int) -> Verdict:
        deadline = Deadline.after(timeout_ms)
        async with _Call(self) as call:
            await call.on_thread(self._outbox.check_buffer)
            with self._verdicts.ticket(asked, deadline) as ticket:
                try:
                    async with asyncio.timeout(deadline.left_s()):
                        await asyncio.wrap_future(ticket.ready)
                except TimeoutError as error:
                    raise receipts_unreachable(timeout_ms) from error
                try:
                    async with asyncio.timeout(deadline.left_s()):
                        acknowledged = await call.on_thread(lambda: self._outbox.send(Sent, asked))
                        acknowledged.add_done_callback(ticket.follow)
                        return await asyncio.wrap_future(ticket.answer)
                except TimeoutError as error:
                    raise no_receipt(timeout_ms, asked.op) from error

    async def _outcome(self, request: Request) -> Scheduled | DelaydError:
        try:
            asked = request.ask(self._outbox.buffer)
            return await self._sent(Scheduled, asked)
        except DelaydError as error:
            return error


class _Call:
    """One of the CALLS_MAX calls: its place is free again when its work on the thread is over."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._work: Future[Any] | None = None
        self._given_up = False

    async def on_thread(self, do: Callable[[], T]) -> T:
        """Return the result of `do`, which the thread runs in turn unless it was given up."""

        def unless_given_up() -> T:
            if self._given_up:
                raise RequestRefusedError("the call was cancelled before it was sent")
            return do()

        if self._client._closed:
            raise RequestRefusedError("the client is closed", remedy="make a new one")
        self._work = self._client._thread.submit(copy_context().run, unless_given_up)
        result = asyncio.wrap_future(self._work)
        result.add_done_callback(_note_error)
        # Shielded: work that is not begun must come to its end too, or it would pile up unseen.
        return await asyncio.shield(result)

    async def __aenter__(self) -> Self:
        await self._client._calls.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._given_up = True
        work, calls = self._work, self._client._calls
        if work is None or work.done():
            calls.release()
            return
        loop = asyncio.get_running_loop()

        def release(_: "Future[Any]") -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(calls.release)

        work.add_done_callback(release)


def _note_error(result: "asyncio.Future[Any]") -> None:
    """Consume the error of a cancelled call, so that asyncio does not log it."""
    if not result.cancelled():
        result.exception()


async def _asynchronous(
    requests: Iterable[Request] | AsyncIterable[Request],
) -> AsyncIterator[Request]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request
