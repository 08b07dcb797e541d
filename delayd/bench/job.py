"""A part of a benchmark in a process of its own: `python -m MODULE`.

Its arguments are the first line of its standard input, as JSON: they may hold passwords. It prints
lines of JSON on its standard output. Processor time and memory are its own, and it shares no
interpreter's lock.

Invariants: it is killed when its context is left; its complaints are in the error's message.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from delayd.bench.errors import BenchError

LOG_TAIL_CHARS: Final = 600


class Job:
    """A running part."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def said(self) -> Generator[dict[str, Any], None, None]:
        """Yield its lines, as they come. Raises BenchError if it ends before it should."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)
        self._process.wait()
        told = " ".join(self._log.read_text(errors="replace").split())
        raise BenchError(
            f"a part of it ended with {self._process.returncode}: {told[-LOG_TAIL_CHARS:]}",
            remedy="is there room on the disk, and memory?",
        )

    def next(self) -> dict[str, Any]:
        """Return its next line. Raises as `said`."""
        with closing(self.said()) as said:
            return next(said)

    def tell(self, order: dict[str, Any]) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.next()  # says why it ended

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.wait()


@contextmanager
def started(module: str, *words: str, **arguments: Any) -> Iterator[Job]:
    """Run the module, with these words and arguments, until the context is left."""
    with tempfile.TemporaryDirectory(prefix="delayd-bench-log-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        with process:
            try:
                job = Job(process, log)
                job.tell(arguments)
                yield job
            finally:
                process.kill()


def run(module: str, *words: str, **arguments: Any) -> dict[str, Any]:
    """Return the result that such a process prints at its end. Raises BenchError if it fails."""
    with started(module, *words, **arguments) as job:
        return job.next()


def arguments_given() -> dict[str, Any]:
    """Return, in a job, its arguments."""
    given: dict[str, Any] = json.loads(sys.stdin.readline())
    return given


def say(what: dict[str, Any]) -> None:
    """Print, in a job, one line for the process that started it."""
    print(json.dumps(what), flush=True)
