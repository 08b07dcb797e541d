"""A function called in a process of its own, so that its processor time and memory are its own and
it shares no interpreter's lock with whoever started it.

`python -m delayd.dev.job` reads pickles: the function and its arguments, which may hold passwords,
then orders. It writes pickles of what the function says, its result last.

Invariants: it is killed when its context is left, and ignores the terminal's Ctrl-C; its complaints
are in its log.
"""

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from delayd.errors import DelaydError
from delayd.runtime.gc_tuning import tune_collector


class Job:
    """A running call. `failure` makes an error of the exit code of one that ended too soon."""

    def __init__(
        self, process: subprocess.Popen[bytes], failure: Callable[[int], DelaydError]
    ) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.pid = process.pid
        self._process = process
        self._input, self._output = process.stdin, process.stdout
        self._failure = failure

    def next(self) -> Any:
        """Return what it says next. Raises its failure if it ends before."""
        try:
            return pickle.load(self._output)
        except (EOFError, pickle.UnpicklingError):
            raise self._failure(self._process.wait()) from None

    def tell(self, order: object) -> None:
        """Give it an order. Raises its failure if it has ended."""
        try:
            pickle.dump(order, self._input)
            self._input.flush()
        except BrokenPipeError:
            raise self._failure(self._process.wait()) from None

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def started(
    log: Path,
    failure: Callable[[int], DelaydError],
    work: Callable[..., object],
    *arguments: object,
    **named: object,
) -> Iterator[Job]:
    """Call the function in a process of its own, until the context is left."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    with process:
        job = Job(process, failure)
        try:
            job.tell((work, arguments, named))
            yield job
        finally:
            job.kill()
            process.communicate()  # forgets what neither side has read


def heard() -> Any:
    """Return, in such a process, the next order; None if there are no more."""
    try:
        return pickle.load(sys.stdin.buffer)
    except EOFError:
        return None


def say(what: object) -> None:
    """Tell, in such a process, something to whoever started it."""
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
