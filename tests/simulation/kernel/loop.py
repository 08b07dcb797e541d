"""An event loop of asyncio in virtual time, run by one simulated thread."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kernel.scheduler import Killed, Process, Task
from kernel.threads import microseconds

T = TypeVar("T")


class SimulatedLoop(asyncio.BaseEventLoop):
    """It sleeps in the kernel; work for other threads goes to tasks of the same process."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._kernel = process.kernel
        self._selector = self
        self._sleeper: Task | None = None
        self._was_called = False
        self._calls = 0
        self._made: list[asyncio.Task[Any]] = []
        """Tasks in the order of their making: sets of them have none."""
        self.signals: dict[int, Callable[[], object]] = {}
        self.set_task_factory(self._make)
        process.at_death.append(self._forget)

    def run_main(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine as `asyncio.run` does: what is left when it ends is cancelled."""
        try:
            return self.run_until_complete(main)
        finally:
            if not self._process.is_dead:
                self._cancel_rest()
                self.close()

    def run_forever(self) -> None:
        """Run until it is stopped, as what runs in the current thread."""
        task = self._kernel.current
        assert task is not None, "only tasks run loops"
        task.loop = self
        try:
            super().run_forever()
        finally:
            task.loop = None

    def time(self) -> float:
        """Return the seconds of virtual time."""
        return self._kernel.now_us / 1_000_000

    def select(self, timeout: float | None) -> list[object]:
        """Sleep until it is time, or until another thread calls; in place of a selector."""
        if not self._was_called and timeout != 0:
            self._sleeper = self._kernel.current
            self._kernel.block(microseconds(timeout))
            self._sleeper = None
        self._was_called = False
        return []

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Start a thread for each call, as long as the pool is not exhausted."""
        assert executor is None, "only the default executor is simulated"
        future = self.create_future()
        self._calls += 1

        def work() -> None:
            try:
                result, error = func(*args), None
            except Exception as failure:
                result, error = None, failure
            self.call_soon_threadsafe(settle, result, error)

        def settle(result: Any, error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._process.spawn(f"call-{self._calls}", work)
        return future

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """Call soon, unless the process is dead: then nobody listens any more."""
        if self._process.is_dead:
            raise Killed
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """Call soon, also while a killed process is cleaned up: nothing will run."""
        if self._process.is_dead:
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Any, *args: Any
    ) -> None:
        """Keep the handler for the simulated signal: see `deliver`."""
        self.signals[sig] = lambda: callback(*args)

    def deliver(self, sig: int) -> None:
        """Deliver a signal; one without a handler kills."""
        handler = self.signals.get(sig)
        if handler is None:
            self._kernel.kill(self._process)
        else:
            self.call_soon_threadsafe(handler)

    def _write_to_self(self) -> None:
        self._was_called = True
        if self._sleeper is not None:
            self._kernel.wake(self._sleeper)

    def _process_events(self, event_list: list[object]) -> None:
        """Do nothing: there are no events."""

    def _make(self, loop: Any, coro: Any, **options: Any) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self._made = [each for each in self._made if not each.done()]
        self._made.append(task)
        return task

    def _cancel_rest(self) -> None:
        left = [task for task in self._made if not task.done()]
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(asyncio.wait(left))

    def _forget(self) -> None:
        """Keep what a dead process has left from complaining when it is collected."""
        for task in self._made:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                task.get_coro().close()
        self._made.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        if not self.is_closed():
            self._closed = True
