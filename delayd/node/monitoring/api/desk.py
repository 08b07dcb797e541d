"""The threads in which the API works: few, and with a bounded queue before them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from delayd.node.monitoring.api.problems import BusyError

T = TypeVar("T")

QUEUE_MAX: Final = 16
"""Requests that wait for a thread; more are told to come back."""


class Desk:
    """Works for one kind of requests. Lives on the event loop."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"delayd-api-{name}")
        self._under_way_max = threads + QUEUE_MAX
        self._under_way = 0

    async def do(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises. BusyError: nothing was begun.

        If the client goes away meanwhile, the work is done all the same.
        """
        if self._under_way >= self._under_way_max:
            raise BusyError("all threads of the API are at work", remedy="ask again in a second")
        self._under_way += 1
        doing = asyncio.get_running_loop().run_in_executor(self._pool, work)
        doing.add_done_callback(self._note_done)
        return await asyncio.shield(doing)

    def _note_done(self, doing: "asyncio.Future[T]") -> None:
        self._under_way -= 1
        if not doing.cancelled():
            doing.exception()  # Nobody may be left to look at it.

    def stop(self) -> None:
        """Begin nothing more, and wait for nothing."""
        self._pool.shutdown(wait=False, cancel_futures=True)
