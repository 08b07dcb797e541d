"""A part of a benchmark in a process of its own, so that its processor time and memory are its own
and it shares no interpreter's lock.

`python -m delayd.bench.job` reads pickles: a function and its arguments, which may hold passwords,
then orders. It writes pickles of what the function says, its result last.

Invariants: it is killed when its context is left; its complaints are in the error's message.
"""

import contextlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from delayd.bench.errors import BenchError
from delayd.runtime.gc_tuning import tune_collector

LOG_TAIL_CHARS: Final = 600


class Job:
    """A running part."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    def next(self) -> Any:
        """Return what it says next. Raises BenchError if it ends before."""
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except EOFError:
            code = self._process.wait()
        told = " ".join(self._log.read_text(errors="replace").split())
        raise BenchError(
            f"a part of it ended with {code}: {told[-LOG_TAIL_CHARS:]}",
            remedy="is there room on the disk, and memory?",
        )

    def tell(self, order: object) -> None:
        """Give it an order."""
        assert self._process.stdin is not None
        try:
            pickle.dump(order, self._process.stdin)
            self._process.stdin.flush()
        except BrokenPipeError:
            self.next()  # says why it ended

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def started(work: Callable[..., object], *arguments: object, **named: object) -> Iterator[Job]:
    """Call the function in a process of its own, until the context is left."""
    with tempfile.TemporaryDirectory(prefix="delayd-bench-log-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        with process:
            try:
                job = Job(process, log)
                job.tell((work, arguments, named))
                yield job
            finally:
                process.kill()


def run(work: Callable[..., object], **named: object) -> Any:
    """Return the result of the function, called in such a process. Raises BenchError if it
    fails."""
    with started(work, **named) as job:
        return job.next()


def heard() -> Any:
    """Return, in a job, the next order; None if there are no more."""
    try:
        return pickle.load(sys.stdin.buffer)
    except EOFError:
        return None


def say(what: object) -> None:
    """Tell, in a job, something to the process that started it."""
    pickle.dump(what, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def main() -> None:
    """Run the process."""
    tune_collector()
    work, arguments, named = heard()
    result = work(*arguments, **named)
    with contextlib.suppress(BrokenPipeError):
        say(result)


if __name__ == "__main__":
    main()
