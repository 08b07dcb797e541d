"""The scheduler: who goes on, and what time it is.

Time is a whole number of microseconds. What can go on stands in one heap, by the moment from which
it may, and among equals in an order drawn from the seed. A task runs until it blocks; there is no
other way to lose the turn, so what lies between two calls of a port is one action.

Death: `kill` marks a process dead at once. Its tasks are unwound before anybody else gets the turn;
whatever their `finally` asks of a port raises Killed again, so that nothing of it gets out.
"""

import asyncio.events
import heapq
from collections.abc import Callable
from random import Random

import greenlet

UNWINDINGS_MAX = 100
"""How often a dead task may call a port while it is unwound."""


class Killed(BaseException):
    """The process of this task is dead."""


class Task:
    """One simulated thread."""

    def __init__(self, process: "Process", name: str, run: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.turn = 0
        """Which block it is in; what would end an earlier one is void."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that runs in it, if one does: see `SimulatedLoop.run_forever`."""
        self.at_end: list[Callable[[], None]] = []
        self._run = run
        self.greenlet = greenlet.greenlet(self._main, parent=process.kernel.hub)

    @property
    def is_done(self) -> bool:
        """Return whether it has ended."""
        return bool(self.greenlet.dead)

    def _main(self, _: bool) -> None:
        try:
            self._run()
        except Killed:
            assert self.process.is_dead, "only the dead are killed"
        finally:
            for note in self.at_end:
                note()

    def __repr__(self) -> str:
        return f"{self.process.name}.{self.name}"


class Waiting:
    """Tasks that wait for the same bell."""

    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._tasks: list[Task] = []

    def wait(self, timeout_us: int | None) -> bool:
        """Wait for the next ring (True), or until the time has passed (False)."""
        task = self._kernel.current
        assert task is not None, "only tasks wait"
        self._tasks.append(task)
        woken = self._kernel.block(timeout_us)
        if task in self._tasks:
            self._tasks.remove(task)
        return woken

    def ring(self) -> None:
        """Wake all of them."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            self._kernel.wake(task)


class Process:
    """What lives and dies together."""

    def __init__(self, kernel: "Kernel", name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.is_dead = False
        self.paused_until_us = 0
        self.tasks: list[Task] = []
        self.at_death: list[Callable[[], None]] = []
        """Called once all tasks have ended, as an operating system cleans up."""

    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        """Start a new task, which may run from now on."""
        if self.is_dead:
            raise Killed
        task = Task(self, name, run)
        self.tasks.append(task)
        self.kernel.wake(task)
        return task


class Kernel:
    """All processes of a run."""

    def __init__(self, random: Random) -> None:
        self.now_us = 0
        self.suspended_us = 0
        """For how long all machines were suspended."""
        self.hub = greenlet.getcurrent()
        self.current: Task | None = None
        self.switches = 0
        self._random = random
        self._heap: list[tuple[int, float, int, int, Task, bool]] = []
        self._pushed = 0
        self._condemned: list[Process] = []

    def process(self, name: str) -> Process:
        """Return a new process without tasks."""
        return Process(self, name)

    def run(self, until_us: int) -> None:
        """Let everything happen that happens before this moment. Only from outside of all tasks."""
        assert self.current is None, "a task cannot run the others"
        while self._heap and self._heap[0][0] <= until_us:
            at_us, _, _, turn, task, woken = heapq.heappop(self._heap)
            if turn != task.turn or task.is_done:
                continue
            if task.process.paused_until_us > max(at_us, self.now_us):
                self._push(task.process.paused_until_us, task, woken)
                continue
            self.now_us = max(self.now_us, at_us)
            self._switch(task, woken)
            self._bury()
        self.now_us = max(self.now_us, until_us)

    def suspend(self, us: int) -> None:
        """Suspend all machines together, and resume them: nothing happens, wall clocks go on."""
        assert self.current is None, "a task cannot suspend the others"
        self.suspended_us += us

    # For tasks.

    def block(self, timeout_us: int | None) -> bool:
        """Give up the turn until somebody wakes this task (True) or the time has passed (False)."""
        task = self.current
        assert task is not None, "only tasks block"
        if task.process.is_dead:
            raise Killed
        if timeout_us is not None:
            self._push(self.now_us + timeout_us, task, False)
        woken: bool = self.hub.switch()
        if task.process.is_dead:
            raise Killed
        return woken

    def sleep(self, us: int) -> None:
        """Let time pass, and others act. Outside of tasks nothing happens."""
        if self.current is not None:
            self.block(us)

    def wake(self, task: Task) -> None:
        """Let a blocked task go on, now."""
        self._push(self.now_us, task, True)

    def kill(self, process: Process) -> None:
        """End a process here and now; raises Killed in a task of its own."""
        if not process.is_dead:
            process.is_dead = True
            self._condemned.append(process)
        if self.current is None:
            self._bury()
        elif self.current.process is process:
            raise Killed

    def pause(self, process: Process, us: int) -> None:
        """Let none of its tasks run for a while; its clocks go on (SIGSTOP, a long collection)."""
        process.paused_until_us = max(process.paused_until_us, self.now_us + us)
        task = self.current
        if task is not None and task.process is process:
            self.block(us)

    def _push(self, at_us: int, task: Task, woken: bool) -> None:
        self._pushed += 1
        heapq.heappush(
            self._heap, (at_us, self._random.random(), self._pushed, task.turn, task, woken)
        )

    def _switch(self, task: Task, woken: bool) -> None:
        task.turn += 1
        self.switches += 1
        self._enter(task)
        try:
            task.greenlet.switch(woken)
        finally:
            self._leave(task)

    def _enter(self, task: Task) -> None:
        self.current = task
        if task.loop is not None:
            # One OS thread runs many event loops: each finds itself running.
            asyncio.events._set_running_loop(task.loop)

    def _leave(self, task: Task) -> None:
        if task.loop is not None:
            asyncio.events._set_running_loop(None)
        self.current = None
        if task.is_done and task in task.process.tasks:
            task.process.tasks.remove(task)

    def _bury(self) -> None:
        while self._condemned:
            process = self._condemned.pop(0)
            for task in list(process.tasks):
                self._unwind(task)
            process.tasks.clear()
            for clean in process.at_death:
                clean()
            process.at_death.clear()

    def _unwind(self, task: Task) -> None:
        for _ in range(UNWINDINGS_MAX):
            if task.is_done:
                return
            task.turn += 1
            self._enter(task)
            try:
                task.greenlet.throw(Killed)
            except Killed:
                pass  # It had not begun.
            finally:
                self._leave(task)
        raise AssertionError(f"{task} does not die")
