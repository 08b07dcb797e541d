"""Jobs of an audit that run side by side: of little input, most of a job is done by one core, which
plans it.

Invariant: a job needs only what was begun before it. So they end, however few run at once.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Jobs:
    """Starts jobs in the order in which they are begun."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        """Without a pool each is carried out at once, before `begin` returns."""
        self._pool = pool

    def begin(self, job: Callable[..., T], *needs: "Future[Any]") -> "Future[T]":
        """Begin a job, which is called with the results of others once they are there."""

        def call() -> T:
            return job(*(need.result() for need in needs))

        if self._pool is not None:
            return self._pool.submit(call)
        done: Future[T] = Future()
        done.set_result(call())
        return done


@contextmanager
def jobs_at_once(count: int) -> Iterator[Jobs]:
    """Yield jobs of which `count` run at once. They have ended when this is left; what has not
    begun by then, if it is left by an exception, never does."""
    if count == 1:
        yield Jobs(None)
        return
    with ThreadPoolExecutor(count, thread_name_prefix="audit") as pool:
        try:
            yield Jobs(pool)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
