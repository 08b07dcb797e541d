"""A part of a benchmark in a process of its own."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from delayd.bench.errors import BenchError
from delayd.dev import job
from delayd.dev.job import Job

LOG_TAIL_CHARS: Final = 600


@contextmanager
def started(work: Callable[..., object], *arguments: object, **named: object) -> Iterator[Job]:
    """Call the function in a process of its own, until the context is left. Its failure is a
    BenchError."""
    with tempfile.TemporaryDirectory(prefix="delayd-bench-log-") as folder:
        log = Path(folder, "log")

        def failure(code: int) -> BenchError:
            told = " ".join(log.read_text(errors="replace").split())
            return BenchError(
                f"a part of it ended with {code}: {told[-LOG_TAIL_CHARS:]}",
                remedy="is there room on the disk, and memory?",
            )

        with job.started(log, failure, work, *arguments, **named) as part:
            yield part


def run(work: Callable[..., object], **named: object) -> Any:
    """Return the result of the function, called in such a process. Raises BenchError if it
    fails."""
    with started(work, **named) as part:
        return part.next()
