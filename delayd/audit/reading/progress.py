"""The progress of an audit on standard error: a bar on a terminal, a line now and then elsewhere.

Invariant: it never makes an audit fail; what Spark does not say is not shown.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from delayd.runtime.clock import SystemClock

LOOK_S: Final = 0.25
LINE_MS: Final = 10_000
"""How often there is a line where there is no terminal."""


class Tasks(NamedTuple):
    """The tasks of the Spark stages that are running."""

    done: int
    total: int


def active_tasks() -> Tasks:
    """Count the tasks of the Spark that this process runs, if it does."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return Tasks(0, 0)
    try:
        tracker = context.statusTracker()
        running = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    except (Py4JError, OSError, AttributeError):  # it is on its way out
        return Tasks(0, 0)
    return Tasks(
        sum(stage.numCompletedTasks for stage in running if stage is not None),
        sum(stage.numTasks for stage in running if stage is not None),
    )


class Progress:
    """Shows named stages while they last; it may be made before there is a Spark. Stages of several
    threads are shown as one."""

    def __init__(
        self,
        console: Console | None = None,
        tasks: Callable[[], Tasks] = active_tasks,
        *,
        line_ms: int = LINE_MS,
    ) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._tasks = tasks
        self._line_ms = line_ms
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._open: list[str] = []
        self._end_shown: Callable[[], None] | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show, while this lasts, its name and the share of tasks that are done."""
        started_ms = self._clock.monotonic_ms()
        self._begin(name)
        ended = "failed after"
        try:
            yield
            ended = "done in"
        finally:
            self._end(name)
            seconds = (self._clock.monotonic_ms() - started_ms) / 1000
            self._console.print(f"{name}: {ended} {seconds:.1f} s", markup=False, highlight=False)

    def _begin(self, name: str) -> None:
        with self._lock:
            self._open.append(name)
            if self._end_shown is None:
                over = threading.Event()
                show = self._bar if self._console.is_terminal else self._lines
                shown = threading.Thread(target=show, args=(over,), name="progress", daemon=True)
                shown.start()

                def end() -> None:
                    over.set()
                    shown.join()

                self._end_shown = end

    def _end(self, name: str) -> None:
        with self._lock:
            self._open.remove(name)
            if not self._open and self._end_shown is not None:
                self._end_shown()
                self._end_shown = None

    def _names(self) -> str:
        return ", ".join([*self._open])

    def _bar(self, over: threading.Event) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        with Bar(*columns, console=self._console, transient=True) as bar:
            shown = bar.add_task(self._names(), total=None)
            while not over.wait(LOOK_S):
                done, total = self._tasks()
                bar.update(shown, description=self._names())
                if total:
                    bar.update(shown, completed=done, total=total)

    def _lines(self, over: threading.Event) -> None:
        while not over.wait(self._line_ms / 1000):
            done, total = self._tasks()
            share = f": {100 * done // total} %" if total else ""
            if names := self._names():
                self._console.print(f"{names}{share}", markup=False, highlight=False)
